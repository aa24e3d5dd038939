"""Play a sample of `./scripts/soak faults` and of `./scripts/soak results`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.soak import histories, results

pytestmark = pytest.mark.wire


@pytest.mark.parametrize("seed", [43, 44])
def test_a_sample_of_histories_keeps_every_promise(seed: int, tmp_path: Path) -> None:
    """Play two histories: a killed supervisor; a session that stays frozen."""
    hit = Counter[str]()
    histories.play(seed, hit, tmp_path)
    assert hit


def test_no_result_is_lost_in_a_sample_of_interrupted_pulls(tmp_path: Path) -> None:
    """Play one history: faults during `train --pull`; a pulled file is edited; `down` without a pull of the chief."""
    hit = Counter[str]()
    results.play(204, hit, tmp_path)
    assert hit


def test_a_seed_always_gives_the_same_history() -> None:
    for plan in (histories.plan, results.plan):
        assert plan(7) == plan(7)
        assert len({str(plan(seed)) for seed in range(50)}) == 50
