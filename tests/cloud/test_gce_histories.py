"""After any fault, `fleet down` or `fleet gc` leaves no resource, and no error is reported as success."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cloud.histories import History, reached, store_nothing
from tests.emulator import Emulator

SHARES = 4
HISTORIES = 80


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    with Emulator(operation_s=0.003) as running:
        yield running


@pytest.mark.parametrize("share", range(SHARES))
def test_no_resource_is_left_after_any_history(
    share: int, emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleet.commands.fleets.up.reach", reached)
    monkeypatch.setattr("fleet.fleets.agents.running_job", lambda *_: "")
    monkeypatch.setattr("fleet.commands.fleets.down.survey", store_nothing)
    monkeypatch.setenv("FLEET_ADDRESS_URL", f"{emulator.url}/emulator/address")
    for seed in range(share, HISTORIES, SHARES):
        emulator.reset()
        History(seed, emulator, tmp_path / str(seed), monkeypatch).play()
