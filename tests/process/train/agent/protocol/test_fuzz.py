"""Send damaged bytes to everything that reads from a network or a host; `./scripts/soak fuzz` runs longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak import fuzz
from tests.soak.fuzz import GROWTH_MAX, TARGETS
from tests.soak.mangler import Mangler

_SEED = 20261122
_LIGHT = 4  # the rounds of a pass are divided by this


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_input_is_refused_and_a_true_peer_is_served_afterwards(name: str) -> None:
    target, rounds = TARGETS[name]
    before = fuzz._memory_peak()
    target(Mangler(_SEED), rounds // _LIGHT)
    assert fuzz._memory_peak() - before < GROWTH_MAX


def test_damaged_bundles_are_refused(tmp_path: Path) -> None:
    fuzz.fuzz_bundles(Mangler(_SEED), 100, str(tmp_path))
