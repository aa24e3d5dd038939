from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.console.log_lines import LINE_MAX, clean, render_line

SGR = re.compile(r"\x1b\[[0-9;:]*m")


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("abc\x08\x08X", "aX"),
        ("abc\x08\x08\x08\x08\x08X", "X"),
        ("abc\x08\x08", "abc"),
        ("a\x08b\x08c", "c"),
        ("one\rtwo\r", "two"),
        ("\r\r", ""),
    ],
)
def test_carriage_returns_and_backspaces(line: str, shown: str) -> None:
    assert render_line(line) == shown


@pytest.mark.parametrize(
    "evil",
    [
        "\x1b[2J",  # clear the screen
        "\x1b[10;20H",  # move the cursor
        "\x1b[6n",  # request its position; the terminal sends it as input
        "\x1b]0;title\x07",
        "\x1b]52;c;ZXZpbA==\x1b\\",  # the clipboard
        "\x1bP+q544e\x1b\\",
        "\x1b_application\x1b\\",
        "\x1bc",  # reset
        "\x1b[>4;2m",  # modifyOtherKeys: ends with m, but is not a colour
        "\x1b[?25l",
        "\x1b(0",
        "\x9b2J",
        "\x9d0;title\x9c",
        "\x07",
        "\x0e",
        "\x7f",
        "\u202e",  # right to left from here on
        "\x1b",
        "\x1b[",
        "\x1b[31",
    ],
)
def test_nothing_but_text_and_colours_reaches_the_terminal(evil: str) -> None:
    assert render_line(f"before{evil}") == "before"
    assert clean(f"before{evil}") == "before"
    assert render_line(f"{evil}\x1b[1;31mred\x1b[0m").endswith("\x1b[1;31mred\x1b[0m\x1b[0m")


@given(st.text(st.sampled_from("a\x1b[]0;mPX^_\\\x07\x9b\x9c\x9d5?>H \r\x08é")))
def test_no_mixture_of_sequences_makes_a_new_one(text: str) -> None:
    shown = SGR.sub("", render_line(text))
    assert not re.search(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]", shown)
    assert not re.search(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]", clean(text))
    assert clean("a\nb\x1b[31mc\x1b[0m\ud800") == "a bc"


def test_long_lines_are_cut_with_a_mark_and_lose_their_colors() -> None:
    assert render_line("x" * LINE_MAX) == "x" * LINE_MAX
    assert render_line("x" * (LINE_MAX + 2048)) == "x" * LINE_MAX + " … 2.0 KiB more"
    assert render_line("\x1b[32m" + "y" * (LINE_MAX + 5)) == "y" * LINE_MAX + " … 5 B more"


def test_colors_do_not_count_unless_there_are_more_than_text() -> None:
    line = "\x1b[32mabcdef\x1b[0m" * (LINE_MAX // 6)
    assert render_line(line) == line + "\x1b[0m"
    assert render_line("\x1b[32;1;4mx" * LINE_MAX) == "x" * LINE_MAX
