"""Run the campaign `standins`: all cases of tests/faults/test_standins.py, in random orders."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.faults.test_standins import CASES, play_cases


def run(seed: int, rounds: int, report: Callable[[str], None]) -> int:
    """Play all cases `rounds` times; return the number of violations."""
    chance = random.Random(seed)
    violations = 0
    for number in range(rounds):
        with tempfile.TemporaryDirectory(prefix="fleet-soak-") as directory:
            for name, done in play_cases(chance.sample(sorted(CASES), len(CASES)), Path(directory)).items():
                if error := done.exception():
                    violations += 1
                    report(f"violation: {name}: {type(error).__name__}: {error}")
        report(f"round {number + 1} of {rounds}: {len(CASES)} cases, {violations} violations")
    return violations
