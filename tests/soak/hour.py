"""Run a long job with a fault every few seconds, and measure whether clients and agents grow."""

from __future__ import annotations

import random
import shutil
import signal
import statistics
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from tests.soak.histories import Fault, Faults
from tests.soak.lane import HOSTS, Client, Lane
from tests.soak.processes import ProcessKind, memory_and_files

_SAMPLE_S = 10.0
_AFTER_S = 900.0
_KINDS = (
    ("session", signal.SIGKILL), ("session", signal.SIGSTOP), ("conversation", signal.SIGKILL),
    ("conversation", signal.SIGSTOP), ("listener", signal.SIGKILL), ("supervisor", signal.SIGKILL),
    ("supervisor", signal.SIGSTOP), ("task", signal.SIGKILL), ("watchdog", signal.SIGKILL),
    ("replicator", signal.SIGKILL), ("client", signal.SIGSTOP), ("host", signal.SIGKILL),
    ("computer", signal.SIGKILL),
)  # fmt: skip
_NEED_REPAIR = ("listener", "watchdog", "host", "computer")


@dataclass
class Hour:
    """The outcome of the long job."""

    seconds: float = 0.0
    code: int | None = None
    attempts: int = 0
    hit: Counter[str] = field(default_factory=Counter)
    lines: dict[str, tuple[int, int, int]] = field(default_factory=dict)  # stored, shown by `train`, shown by `logs`
    growth: dict[str, str] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)


def play_hour(lane: Lane, seed: int, minutes: float, keep: Path) -> Hour:
    """Run a job for `minutes`, with the faults of a seed."""
    chance = random.Random(f"soak hour {seed}")
    hour = Hour()
    began = time.monotonic()
    until = time.time() + 60 * minutes
    client = lane.start(
        "train", "task.py", "--restarts", "200", "--host-timeout", "60", "--grace", "2",
        "--", "100000000", "0.1", str(until),
    )  # fmt: skip
    faults = Faults(lane, client, set(), ())
    samples: dict[str, list[tuple[float, int, int]]] = defaultdict(list)
    strike_at = began + 15.0
    while client.process.poll() is None and time.time() < until:
        _sample(lane, client, samples)
        if time.monotonic() >= strike_at and until - time.time() > 60:
            _strike(lane, faults, chance)
            strike_at = time.monotonic() + chance.uniform(15.0, 45.0)
        time.sleep(_SAMPLE_S)
    client.end(60 * minutes + _AFTER_S)
    faults.settle()
    hour.seconds = time.monotonic() - began
    hour.code, hour.hit = client.code, faults.hit
    _check(lane, client, hour)
    hour.growth = {name: _growth(values) for name, values in sorted(samples.items()) if len(values) > 3}
    if hour.violations or time.time() < until:
        shutil.copytree(lane.output, keep / "hour", dirs_exist_ok=True)
    return hour


def _strike(lane: Lane, faults: Faults, chance: random.Random) -> None:
    target, number = chance.choice(_KINDS)
    frozen_s = chance.choice([1.0, 5.0, 25.0]) if number is signal.SIGSTOP else 0.0
    faults.strike(Fault("running", 0.0, target, chance.choice(HOSTS), number, frozen_s))
    if target in _NEED_REPAIR:
        time.sleep(chance.uniform(0.5, 5.0))
        lane.up()


def _sample(lane: Lane, client: Client, samples: dict[str, list[tuple[float, int, int]]]) -> None:
    now = time.monotonic()
    try:
        samples["client"].append((now, *memory_and_files(client.process.pid)))
    except OSError:
        return
    for process in lane.processes():
        if process.part is not ProcessKind.TASK:
            samples[process.part.value].append((now, process.rss_kib, process.files))


def _growth(samples: list[tuple[float, int, int]]) -> str:
    """Return the medians of memory and open files in the first and in the last fifth of the samples."""
    fifth = max(1, len(samples) // 5)
    parts = []
    for at, unit in ((1, "KiB"), (2, "files")):
        first, last = (
            statistics.median(sample[at] for sample in part) for part in (samples[:fifth], samples[-fifth:])
        )
        parts.append(f"{first:.0f} -> {last:.0f} {unit} (largest {max(sample[at] for sample in samples)})")
    return ", ".join(parts)


def _check(lane: Lane, client: Client, hour: Hour) -> None:
    again = lane.up()
    job = client.job
    logs = lane.run("logs", "-f", "--job", job)
    if client.hung or again.hung or logs.hung:
        hour.violations.append("a command did not end")
    if client.code != logs.code or client.code not in (0, 100):
        hour.violations.append(f"`train` ended with {client.code}, `logs -f` with {logs.code}")
    for worker in HOSTS:
        stored, shown, later = lane.stored(job, worker), client.lines(worker), logs.lines(worker)
        hour.lines[worker] = len(stored), len(shown), len(later)
        if later != stored:
            hour.violations.append(f"`logs -f` shows {len(later)} of {len(stored)} lines of {worker}")
        if shown != stored and not client.reports_gap(worker):
            hour.violations.append(
                f"`train` shows {len(shown)} of {len(stored)} lines of {worker}, and does not say so"
            )
        attempts = {line.split(" ")[1] for line in stored if line.count(" ") == 2}
        hour.attempts = max(hour.attempts, *map(int, attempts or {"0"}))
    if "Traceback" in client.words + logs.words:
        hour.violations.append("a traceback was printed")
