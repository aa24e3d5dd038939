from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fleet.console.columns import (
    Column,
    Layout,
    Span,
    arrange_table,
    choose,
    crop,
    fit,
    justify,
    measure_line,
    measure_text,
    render,
    settle,
)

WORDS = st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=60)


def column(title: str, *cells: str, rank: int = 0, right: bool = False) -> Column:
    return Column(title, tuple(Span(cell) for cell in cells), rank=rank, right=right)


@given(WORDS, st.integers(0, 40))
def test_fit_never_takes_more(text: str, width: int) -> None:
    assert measure_text(fit(text, width)) <= width
    if measure_text(text) <= width:
        assert fit(text, width) == text


@given(st.lists(WORDS, max_size=5), st.lists(WORDS, max_size=2), st.integers(0, 80))
def test_crop_and_justify_never_take_more(left: list[str], right: list[str], width: int) -> None:
    line = tuple(Span(text) for text in left)
    ends = tuple(Span(fit(text, width // 3)) for text in right)
    assert measure_line(crop(line, width)) <= width
    assert measure_line(justify(line, ends, width)) <= width


def test_wide_and_combining_characters() -> None:
    assert measure_text("学習") == 4
    assert measure_text("e\u0301") == 1
    assert fit("学習中", 5) == "学習…"
    assert fit("学習中", 4) == "学…"


def test_columns_line_up() -> None:
    lines = arrange_table([column("TASK", "worker-0", "w"), column("N", "1", "100", right=True)], 80)
    assert render(lines, color=False) == "TASK        N\nworker-0    1\nw         100\n"


def test_columns_of_the_highest_rank_go_first_and_empty_ones_always() -> None:
    columns = [column("A", "aaaa"), column("B", "bbbb", rank=2), column("C", "cccc", rank=1), column("D", "")]
    assert [chosen.title for chosen in choose(columns, 80)] == ["A", "B", "C"]
    assert [chosen.title for chosen in choose(columns, 12)] == ["A", "C"]
    assert [chosen.title for chosen in choose(columns, 2)] == ["A"]


def test_columns_that_were_shown_keep_their_places() -> None:
    first = [
        column("A", "a"),
        Column("B", (Span(""),), 1, reserve=4),
        column("C", "cc", rank=2),
        column("D", "d", rank=3),
    ]
    layout, shown = settle(Layout(), first, 12)
    assert [(chosen.title, chosen.width) for chosen in shown] == [
        ("A", 1),
        ("", 4),
        ("C", 2),
    ]  # the room for B is kept
    second = [
        column("A", "aa"),
        Column("B", (Span("b"),), 1, reserve=4),
        column("C", "", rank=2),
        column("D", "d", rank=3),
    ]
    layout, shown = settle(layout, second, 12)
    assert [(chosen.title, chosen.width) for chosen in shown] == [("A", 2), ("B", 4), ("C", 2)]
    wide = [column("A", "aaaa"), Column("B", (Span("b" * 6),), 1, reserve=4), column("C", "cc", rank=2)]
    assert [chosen.title for chosen in settle(layout, wide, 12)[1]] == ["A", "B"]
    assert [chosen.title for chosen in settle(layout, second, 13)[1]] == ["A", "B", "D"]


def test_render_lets_no_control_character_through() -> None:
    line = (Span("a\x1b[2Jb\x07", "red"), Span("c"))
    assert render([line], color=True) == "\x1b[31mab\x1b[0mc\n"
    assert render([line], color=False) == "abc\n"
