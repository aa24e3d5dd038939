from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fleet.cli.fleets import extend, up
from provision.model import FleetSpec, Host, Instance
from tests.unit.fleet.clouds import World, host


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Return a world whose hosts answer immediately."""

    def reach(_spec: FleetSpec, instances: Sequence[Instance], *_: Any, **__: Any) -> list[Host]:
        return [host(instance.name) for instance in instances]

    monkeypatch.setattr(up, "reach", reach)
    monkeypatch.setattr(extend, "reach", reach)

    return World(tmp_path / "state")
