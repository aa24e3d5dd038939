from __future__ import annotations

from pathlib import Path

import pytest

from fleet.config import for_fleet, state_root


def test_the_next_command_names_the_fleet_where_it_is_not_the_default() -> None:
    text = "fleet up --workers 2, `fleet logs -f`; fleet down --fleet demo, a fleet of two"
    assert for_fleet(text, "default") == text
    assert for_fleet(text, "demo") == (
        "fleet up --fleet demo --workers 2, `fleet logs --fleet demo -f`; fleet down --fleet demo, a fleet of two"
    )


def test_the_state_folder_can_be_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLEET_STATE_DIR", str(tmp_path))
    assert state_root() == tmp_path
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLEET_STATE_DIR", "state")
    assert state_root() == tmp_path / "state"
    monkeypatch.delenv("FLEET_STATE_DIR")
    assert state_root().name == "fleet"
