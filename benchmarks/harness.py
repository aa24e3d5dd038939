"""Run commands interleaved and shuffled, and compare their medians."""

from __future__ import annotations

import random
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Series:
    """Wall times of one subject in seconds, in the order of measurement."""

    name: str
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median, in seconds."""
        return statistics.median(self.seconds)

    def __str__(self) -> str:
        low, high = min(self.seconds), max(self.seconds)
        return f"{self.name:<34} {self.median:7.3f} s  ({low:.3f} to {high:.3f}, n={len(self.seconds)})"


def interleaved(subjects: dict[str, Callable[[], float]], runs: int, *, seed: int = 0) -> dict[str, Series]:
    """Run every subject `runs` times after one warm-up, in a shuffled order within each round.

    Args:
        subjects: Functions by name that run once and return their seconds.
        runs: Number of counted rounds.
        seed: Seed of the order.
    """
    order = random.Random(seed)
    times: dict[str, list[float]] = {name: [] for name in subjects}
    for round_number in range(runs + 1):
        names = list(subjects)
        order.shuffle(names)
        for name in names:
            seconds = subjects[name]()
            if round_number:
                times[name].append(seconds)
    return {name: Series(name, tuple(values)) for name, values in times.items()}


def command(arguments: Sequence[str], *, codes: Sequence[int] = (0,), env: dict[str, str] | None = None) -> float:
    """Return the wall seconds of a command, whose output is discarded.

    Raises:
        RuntimeError: It ended with another exit code than `codes`.
    """
    start = time.perf_counter()
    done = subprocess.run(arguments, check=False, capture_output=True, env=env, timeout=300)
    seconds = time.perf_counter() - start
    if done.returncode not in codes:
        raise RuntimeError(f"{arguments[0]} ended with {done.returncode}: {done.stderr[-500:]!r}")
    return seconds


def ratio(series: dict[str, Series], subject: str, peer: str, goal: float) -> str:
    """Return a line with the ratio of the medians and the goal."""
    value = series[subject].median / series[peer].median
    verdict = "reached" if value <= goal else "MISSED"
    return f"{subject} / {peer} = {value:.2f}   goal: at most {goal:.2f}   {verdict}"
