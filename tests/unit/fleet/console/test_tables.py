"""Columns, lines that are cut, paragraphs, and values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.text import Text

from fleet.console import formatting
from fleet.console.formatting import wrap_text
from fleet.console.tables import Column, fit, join_ends, make_line, make_table, render
from fleet.errors import fold, order
from provision import quantities

WORDS = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=60)


def column(title: str, *cells: str, rank: int = 0, right: bool = False, least: int = 0) -> Column:
    return Column(title, cells, str, rank=rank, right=right, least=least)


def titles(columns: list[Column], room: int) -> list[str]:
    return render(make_table(columns, room), room).splitlines()[0].split()


@given(WORDS, st.integers(1, 40))
def test_a_text_is_cut_to_the_terminal(text: str, width: int) -> None:
    assert cell_len(fit(text, width)) <= width
    assert all(cell_len(line) <= width for line in render([make_line(text)], width).splitlines())
    if cell_len(text) <= width:
        assert fit(text, width) == text


def test_two_texts_at_the_ends_of_a_line() -> None:
    assert join_ends(Text("left"), "right", 20).plain == "left           right"
    assert join_ends(Text("a long text"), "right", 14).plain == "a long…  right"


def test_columns_line_up_also_with_wide_characters() -> None:
    table = make_table([column("N", "学習", "a"), column("M", "1", "100", right=True)], 80)
    assert render(table, 80) == "N       M\n学習    1\na     100\n"


def test_columns_of_the_highest_rank_go_first_and_empty_ones_always() -> None:
    columns = [column("A", "aaaa"), column("B", "bbbb", rank=2), column("C", "cccc", rank=1), column("D", "")]
    assert [titles(columns, width) for width in (80, 12, 4)] == [["A", "B", "C"], ["A", "C"], ["A"]]


def test_columns_that_were_shown_keep_their_places() -> None:
    before: dict[str, int] = {}
    first = make_table([column("A", "aaa"), column("B", "", rank=1, least=4), column("C", "cc", rank=2)], 13, before)
    second = make_table([column("A", "a"), column("B", "b", rank=1, least=4), column("C", "c", rank=2)], 13, before)
    assert render(first, 13) == "A          C\naaa        cc\n"  # the room for B is kept
    assert render(second, 13) == "A    B     C\na    b     c\n"


def test_text_of_a_host_is_no_markup_and_controls_nothing() -> None:
    table = make_table([column("T", "[red]a[/red]\x1b[2J", ":smile: \x07b")], 40)
    assert render(table, 40, color=True) == "\x1b[2mT\x1b[0m\n[red]a[/red]\n:smile: b\n"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("give another name with --fleet", ["give another", "name with", "--fleet"]),
        ("use `fleet up --spot` now", ["use", "`fleet up --spot`", "now"]),
        ("a_word_that_is_too_long x", ["a_word_that_is_too_long", "x"]),
        ("", [""]),
    ],
)
def test_lines_end_at_spaces_outside_of_commands(text: str, lines: list[str]) -> None:
    assert wrap_text(text, 18 if "`" in text else 12).split("\n") == lines
    assert wrap_text(text, 0) == text


VALUES = [
    (formatting.format_clock, [(-1, "0:00"), (754, "12:34"), (3723, "1:02:03"), (2 * 86400 + 3723, "2d 01:02:03")]),
    (quantities.format_span, [(0.4, "0 s"), (60, "1 min"), (12000, "3 h 20 min"), (190000, "2 d 4 h")]),
    (formatting.format_size, [(999, "999 B"), (1000, "1.0 KiB"), (5_200_000, "5.0 MiB"), (10**18, "909494.7 TiB")]),
    (formatting.format_short_size, [(999, "999B"), (1000, "1.0K"), (12_345_678_900, "11G"), (-1, "")]),
    (formatting.format_metric, [(0.34121, "0.3412"), (12.3456, "12.346"), (99999.9, "99999.9"), (123456.0, "1.2e+05"),
                                (0.00012, "1.2e-04"), (-0.5, "-0.5000"), (float("-inf"), "-inf")]),
    (quantities.format_money, [(0, "$0.00"), (0.001, "<$0.01"), (0.07, "$0.07"), (1234.5, "$1,234.50")]),
    (formatting.shorten_metric, [("sparse_categorical_accuracy", "ACCURACY"), ("val_accuracy", "VAL_ACCURACY")]),
    (fold, [((), ""), (("worker-1", "worker-0", "worker-10", "worker-2"), "worker-[0-2,10]"),
            (("worker-1", "chief-0", "worker-0"), "chief-0, worker-[0-1]"),
            (("alpha", "worker-01", "beta"), "worker-01, alpha, beta")]),
]  # fmt: skip


@pytest.mark.parametrize(("function", "cases"), VALUES)
def test_values(function: object, cases: list[tuple[object, str]]) -> None:
    assert [function(value) for value, _ in cases] == [text for _, text in cases]  # type: ignore[operator]


def test_order_counts_as_people_do() -> None:
    shuffled = ["worker-10", "worker-2", "evaluator-0", "other", "chief-0"]
    assert sorted(shuffled, key=order) == ["chief-0", "worker-2", "worker-10", "evaluator-0", "other"]
