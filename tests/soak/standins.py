"""Run the campaign `standins`: all cases of tests/faults/test_standins.py, warm and cold, and simulated histories."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.faults.simulation import BrokenPropertyError
from tests.faults.test_growth import play as play_growth
from tests.faults.test_histories import KINDS, play
from tests.faults.test_standins import CASES, play_cases

_HISTORIES = 500
"""Histories in simulated time, per round and function."""


def run(seed: int, rounds: int, report: Callable[[str], None]) -> int:
    """Play all cases in random orders, and random histories, `rounds` times; return the number of violations."""
    chance = random.Random(seed)
    violations = 0
    for number in range(rounds):
        for warm in (False, True):
            with tempfile.TemporaryDirectory(prefix="fleet-soak-") as directory:
                names = chance.sample(sorted(CASES), len(CASES))
                for name, done in play_cases(names, Path(directory) / "cases", warm=warm).items():
                    if error := done.exception():
                        violations += 1
                        report(f"violation: {name}, {'warm' if warm else 'cold'}: {type(error).__name__}: {error}")
        violations += _simulate([chance.randrange(10**9) for _ in range(_HISTORIES)], report)
        report(f"round {number + 1} of {rounds}: {len(CASES)} cases, warm and cold, {violations} violations")
    return violations


def _simulate(seeds: Sequence[int], report: Callable[[str], None]) -> int:
    violations = 0
    for seed in seeds:
        for kind in (*KINDS, "growth"):
            try:
                play_growth(seed) if kind == "growth" else play(seed, kind)
            except BrokenPropertyError as broken:
                violations += 1
                report(f"violation: history {seed} of kind {kind}: {broken}")
    return violations
