from __future__ import annotations

from fleet.remote.quoting import show_command


def test_control_characters_of_a_command_are_visible_and_can_be_pasted() -> None:
    assert show_command(["python", "a b", "\x1b", "it's\n", "\\\x07", ""]) == (
        r"python 'a b' $'\x1b' $'it\'s\n' $'\\\x07' ''"
    )
