from __future__ import annotations

from pathlib import Path

import pytest

from fleet.state import caller, state_root


def test_the_state_directory_can_be_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLEET_STATE_DIR", str(tmp_path))
    assert state_root() == tmp_path
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLEET_STATE_DIR", "state")
    assert state_root() == tmp_path / "state"
    monkeypatch.delenv("FLEET_STATE_DIR")
    assert state_root().name == "fleet"


def test_a_user_without_a_name_has_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> str:
        raise KeyError

    monkeypatch.setattr("getpass.getuser", unknown)
    monkeypatch.setattr("socket.gethostname", lambda: "x")
    monkeypatch.setattr("os.getuid", lambda: 1234)
    assert caller() == "1234-x"
