"""Run a long job with a fault every few seconds, and measure whether clients and agents grow."""

from __future__ import annotations

import contextlib
import random
import signal
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.soak.histories import Fault, Faults
from tests.soak.lane import HOSTS, UP, Client, Lane, new_lane
from tests.soak.processes import ProcessKind, memory_and_files

_SAMPLE_S = 10.0
_AFTER_S = 900.0
_KILLED = ("session", "conversation", "listener", "supervisor", "task", "watchdog", "replicator", "host", "computer")
_STOPPED = ("session", "conversation", "supervisor", "client")
_NEED_REPAIR = ("listener", "watchdog", "host", "computer")
_Samples = dict[str, list[tuple[int, int]]]


def play(seed: int, minutes: float, hit: Counter[str], directory: Path) -> None:
    """Run a job for this time, with the faults of a seed; print how the memory of clients and agents changed."""
    chance = random.Random(f"soak hour {seed}")
    samples: _Samples = defaultdict(list)
    with new_lane(directory) as lane:
        until = time.time() + 60 * minutes
        words = ("train", "task.py", "--restarts", "200", "--host-timeout", "60", "--grace", "2")
        client = lane.start(*words, "--", "100000000", "0.1", str(until))
        faults = Faults(lane, client)
        strike_at = time.time() + 15.0
        while client.process.poll() is None and time.time() < until:
            _sample(lane, client, samples)
            if strike_at <= time.time() < until - 60:
                _strike(lane, faults, chance)
                strike_at = time.time() + chance.uniform(15.0, 45.0)
            time.sleep(_SAMPLE_S)
        client.end(60 * minutes + _AFTER_S)
        faults.settle()
        hit.update(faults.hit)
        broken = [*_check(lane, client)]
    for name, values in sorted(samples.items()):
        print(f"the long job, {name}: {_growth(values)}", flush=True)
    assert not broken, "; ".join(broken)


def _strike(lane: Lane, faults: Faults, chance: random.Random) -> None:
    kinds = [*((target, signal.SIGKILL) for target in _KILLED), *((target, signal.SIGSTOP) for target in _STOPPED)]
    target, number = chance.choice(kinds)
    faults.strike(Fault("running", 0.0, target, chance.choice(HOSTS), number, chance.choice([1.0, 5.0, 25.0])))
    if target in _NEED_REPAIR:
        time.sleep(chance.uniform(0.5, 5.0))
        lane.run(*UP)


def _sample(lane: Lane, client: Client, samples: _Samples) -> None:
    with contextlib.suppress(psutil.Error):
        samples["client"].append(memory_and_files(psutil.Process(client.process.pid)))
    for process in lane.processes():
        if process.part is not ProcessKind.TASK:
            samples[process.part.value].append((process.rss_kib, process.files))


def _growth(samples: list[tuple[int, int]]) -> str:
    """Return the medians of memory and open files in the first and in the last fifth of the samples."""
    fifth = max(1, len(samples) // 5)
    first, last = ([statistics.median(column) for column in zip(*part, strict=True)]
                   for part in (samples[:fifth], samples[-fifth:]))  # fmt: skip
    return f"{first[0]:.0f} -> {last[0]:.0f} KiB, {first[1]:.0f} -> {last[1]:.0f} files"


def _check(lane: Lane, client: Client) -> Iterator[str]:
    again = lane.run(*UP)
    logs = lane.run("logs", "-f", "--job", client.job)
    if client.hung or again.hung or logs.hung:
        yield "a command did not end"
    if client.code != logs.code or client.code not in (0, 100):
        yield f"`train` ended with {client.code}, `logs -f` with {logs.code}"
    for worker in HOSTS:
        stored, shown, later = lane.stored(client.job, worker), client.lines(worker), logs.lines(worker)
        if later != stored:
            yield f"`logs -f` shows {len(later)} of {len(stored)} lines of {worker}"
        if shown != stored and not client.reports_gap(worker):
            yield f"`train` shows {len(shown)} of {len(stored)} lines of {worker}, and does not report it"
    if "Traceback" in client.words + logs.words:
        yield "a traceback was printed"
