from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.text import Text

from fleet.console.tables import Column, fit, join_ends, make_line, make_table, render

WORDS = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=60)


def column(title: str, *cells: str, rank: int = 0, right: bool = False, least: int = 0) -> Column:
    return Column(title, tuple(map(Text, cells)), rank=rank, right=right, least=least)


def titles(columns: list[Column], room: int, before: dict[str, int] | None = None) -> list[str]:
    return render(make_table(columns, room, before), room).splitlines()[0].split()


@given(WORDS, st.integers(1, 40))
def test_a_text_is_cut_to_the_terminal(text: str, width: int) -> None:
    assert cell_len(fit(text, width)) <= width
    assert all(cell_len(line) <= width for line in render(make_line(text), width).splitlines())
    if cell_len(text) <= width:
        assert fit(text, width) == text


def test_two_texts_at_the_ends_of_a_line() -> None:
    assert render(join_ends(Text("left"), Text("right")), 20) == "left           right\n"
    assert render(join_ends(Text("a long text"), Text("right")), 14) == "a long…  right\n"


def test_wide_characters() -> None:
    assert fit("学習中", 5) == "学習…"
    table = make_table([column("N", "学習", "a"), column("M", "x", "y")], 80)
    assert render(table, 80) == "N     M\n学習  x\na     y\n"


def test_columns_line_up() -> None:
    table = make_table([column("TASK", "worker-0", "w"), column("N", "1", "100", right=True)], 80)
    assert render(table, 80) == "TASK        N\nworker-0    1\nw         100\n"


def test_columns_of_the_highest_rank_go_first_and_empty_ones_always() -> None:
    columns = [column("A", "aaaa"), column("B", "bbbb", rank=2), column("C", "cccc", rank=1), column("D", "")]
    assert titles(columns, 80) == ["A", "B", "C"]
    assert titles(columns, 12) == ["A", "C"]
    assert titles(columns, 4) == ["A"]


def test_columns_that_were_shown_keep_their_places() -> None:
    before: dict[str, int] = {}
    first = make_table([column("A", "aaa"), column("B", "", rank=1, least=4), column("C", "cc", rank=2)], 13, before)
    second = make_table([column("A", "a"), column("B", "b", rank=1, least=4), column("C", "c", rank=2)], 13, before)
    assert render(first, 13) == "A          C\naaa        cc\n"  # the room for B is kept
    assert render(second, 13) == "A    B     C\na    b     c\n"


def test_text_of_a_host_is_no_markup_and_controls_nothing() -> None:
    cells = ["[red]a[/red]\x1b[2J", ":smile: \x07b"]
    table = make_table([Column.of("T", cells, str)], 40)
    assert render(table, 40, color=True) == "\x1b[2mT           \x1b[0m\n[red]a[/red]\n:smile: b    \n".replace(
        "b    ", "b"
    )
