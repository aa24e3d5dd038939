from __future__ import annotations

from pathlib import Path

import pytest

from fleet.config import caller, for_fleet, state_root, with_fleet


def test_the_next_command_names_the_fleet_where_it_is_not_the_default() -> None:
    text = "fleet up --workers 2, `fleet logs -f`; fleet down --fleet demo, a fleet of two"
    assert for_fleet(text, "default") == text
    assert for_fleet(text, "demo") == (
        "fleet up --fleet demo --workers 2, `fleet logs --fleet demo -f`; fleet down --fleet demo, a fleet of two"
    )


def test_next_commands_name_a_fleet_that_is_not_the_default_one() -> None:
    lines = "fleet logs -f\nfleet train --fleet demo task.py\nfleet train task.py -- --fleet x\ngcloud auth login"
    assert with_fleet(lines, "default") == lines
    assert with_fleet(lines, "b") == (
        "fleet logs --fleet b -f\nfleet train --fleet demo task.py\nfleet train --fleet b task.py -- --fleet x\n"
        "gcloud auth login"
    )
    assert with_fleet("fleet gc --yes\nfleet doctor", "b") == "fleet gc --yes\nfleet doctor"


def test_the_state_directory_can_be_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLEET_STATE_DIR", str(tmp_path))
    assert state_root() == tmp_path
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLEET_STATE_DIR", "state")
    assert state_root() == tmp_path / "state"
    monkeypatch.delenv("FLEET_STATE_DIR")
    assert state_root().name == "fleet"


@pytest.mark.parametrize(
    ("login", "computer", "label"),
    [
        ("ann", "laptop.example.org", "ann-laptop"),
        ("DOM\\Ann", "Ann's Mac", "dom-ann-ann-s-mac"),
        ("a" * 80, "b", "a" * 63),
    ],
)
def test_who_calls_is_a_label(monkeypatch: pytest.MonkeyPatch, login: str, computer: str, label: str) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: login)
    monkeypatch.setattr("socket.gethostname", lambda: computer)
    assert caller() == label


def test_a_user_without_a_name_has_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> str:
        raise KeyError

    monkeypatch.setattr("getpass.getuser", unknown)
    monkeypatch.setattr("socket.gethostname", lambda: "x")
    monkeypatch.setattr("os.getuid", lambda: 1234)
    assert caller() == "1234-x"
