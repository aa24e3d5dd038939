from __future__ import annotations

import pytest
from rich.cells import cell_len

from tests.unit.fleet.console.screens import FIX, screens, stored

SCREENS, STORED = screens(), stored()


@pytest.mark.parametrize("title", SCREENS)
def test_a_screen_shows_what_it_should(title: str) -> None:
    assert SCREENS[title]() == STORED[title], "if this is better: python -m tests.unit.fleet.console.screens"


def test_no_line_is_wider_than_the_terminal_and_none_has_control_characters() -> None:
    assert SCREENS.keys() == STORED.keys()
    for title, text in STORED.items():
        width = int(title.rpartition(" ")[2]) or 1000
        lines = [line for line in text.splitlines() if FIX not in line]  # a command
        assert all(cell_len(line) <= width for line in lines), title
        assert all(line.isprintable() for line in lines), title
