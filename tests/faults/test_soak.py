"""Play a sample of `./scripts/soak faults` and of `./scripts/soak results`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak import results
from tests.soak.faults import Campaign
from tests.soak.histories import plan

pytestmark = pytest.mark.wire


def test_a_sample_of_histories_keeps_every_promise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two histories: a killed supervisor; a session that stays frozen."""
    campaign = Campaign(seed=43, histories=2, minutes=0, lanes=1, keep=tmp_path)
    assert campaign.run() == 0, capsys.readouterr().out
    assert sum(history.hit.total() for history in campaign.played) > 0


def test_a_seed_always_gives_the_same_history() -> None:
    assert plan(7) == plan(7)
    assert len({plan(seed) for seed in range(50)}) == 50


def test_no_result_is_lost_in_a_sample_of_interrupted_pulls() -> None:
    """One history: faults during `train --pull`; a pulled file is edited; `down` without a pull of the chief."""
    reports: list[str] = []
    assert results.run(seed=204, histories=1, report=reports.append) == 0, reports


def test_a_seed_always_gives_the_same_interrupted_pulls() -> None:
    assert results.plan(7) == results.plan(7)
    assert len({results.plan(seed) for seed in range(50)}) == 50
