from __future__ import annotations

import pytest

from fleet.console.pages import wrap_text


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
