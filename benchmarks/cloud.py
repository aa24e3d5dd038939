"""Compute Engine: calls of `fleet up` and `fleet down` by number of workers, and CPU time of the program in `up`.

Everything runs on this computer: the API emulator, whose operations take a known time, and one sshd per instance. The
program's time is its CPU time; the rest of the wall time is spent in the emulator and the hosts, which share the
cores. For comparison: `up` of a local fleet of the same size.

Run: .venv/bin/python -m benchmarks.cloud
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from subprocess import run

from tests.emulator import Emulator
from tests.emulator.guests import SshGuests, obstacle

WORKERS = (2, 8, 64)
RUNS = 3
OWN_GOAL_S = 2.0
OPERATION_S = 0.5
# `up` asks for host keys in batches until all are there; `down` deletes in them.
POLLS = {
    "up": ("Operations.wait", "aggregatedList", "firewalls.list", "batch"),
    "down": ("Operations.wait", "aggregatedList", "firewalls.list"),
}
PROGRAM = Path(sys.executable).parent / "fleet"


@dataclass(frozen=True)
class Measured:
    """Measurements of a command.

    Attributes:
        seconds: Wall time.
        cpu_s: CPU time of the program and its children.
        calls: HTTP requests other than polling.
        polls: HTTP requests that poll an operation.
    """

    seconds: float
    cpu_s: float
    calls: int
    polls: int


@contextmanager
def emulated(operation_s: float) -> Iterator[Emulator]:
    """Yield an emulator whose instances have an OpenSSH server."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        with Emulator(operation_s=operation_s, guests=SshGuests(directory), directory=directory) as emulator:
            yield emulator


def requests_of(emulator: Emulator, verb: str) -> tuple[int, int]:
    """Return the numbers of HTTP requests other than polling, and of polling. A batch is one request."""
    calls = {name: count for name, count in emulator.state()["calls"].items() if not name.startswith("batch.")}
    polls = sum(count for name, count in calls.items() if any(poll in name for poll in POLLS[verb]))
    return sum(calls.values()) - polls, polls


def measured(emulator: Emulator, state: Path, *arguments: str) -> Measured:
    """Run `fleet` with these arguments.

    Raises:
        RuntimeError: It failed.
    """
    env = {
        **os.environ,
        "FLEET_STATE_DIR": str(state),
        "FLEET_GCE_ENDPOINT": emulator.url,
        "FLEET_GCE_PROJECT": "proj-1",
        "PYTHONDONTWRITEBYTECODE": "",
    }
    calls, polls = requests_of(emulator, arguments[0])
    before, begun = os.times(), time.perf_counter()
    done = run([str(PROGRAM), *arguments], env=env, capture_output=True, text=True, check=False, timeout=300)
    seconds, after = time.perf_counter() - begun, os.times()
    if done.returncode:
        raise RuntimeError(f"fleet {arguments[0]} ended with {done.returncode}: {done.stderr[-2000:]}")
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    now_calls, now_polls = requests_of(emulator, arguments[0])
    return Measured(seconds, cpu_s, now_calls - calls, now_polls - polls)


def once(emulator: Emulator, workers: int) -> tuple[Measured, Measured]:
    """Run `up` and `down` of a fleet."""
    with tempfile.TemporaryDirectory() as name:
        words = ("up", "--provider", "gce", "--workers", str(workers), "--python", sys.executable, "--yes")
        return measured(emulator, Path(name), *words), measured(emulator, Path(name), "down", "--yes")


def local(emulator: Emulator, workers: int) -> Measured:
    """Run `up` of a local fleet."""
    with tempfile.TemporaryDirectory() as name:
        up = measured(emulator, Path(name), "up", "--provider", "local", "--workers", str(workers))
        measured(emulator, Path(name), "down", "--yes")
        return up


def main() -> None:
    """Measure and print."""
    if why := obstacle():
        sys.exit(f"the emulator's instances cannot run here: {why}")
    print(f"requests, operations of {OPERATION_S:g} s")
    with emulated(OPERATION_S) as emulator:
        counted = {workers: once(emulator, workers) for workers in WORKERS}
    for workers, (up, down) in counted.items():
        print(
            f"{workers:>3} workers   up {up.calls:>3} + {up.polls:>3} polling   "
            f"down {down.calls:>3} + {down.polls:>3} polling"
        )
    same = len({(up.calls, down.calls) for up, down in counted.values()}) == 1
    print(f"requests other than polling do not grow with the workers: {'reached' if same else 'MISSED'}")
    with emulated(0.0) as emulator:
        once(emulator, 8)
        ups = [(once(emulator, 8)[0], local(emulator, 8)) for _ in range(RUNS)]
    report("up of 8 instances, operations that take no time", [cloud for cloud, _ in ups])
    report("up of 8 local servers", [local for _, local in ups])
    cpu_s = median(cloud.cpu_s for cloud, _ in ups)
    print(
        f"CPU time {cpu_s:.2f} s; goal: at most {OWN_GOAL_S:g} s   {'reached' if cpu_s <= OWN_GOAL_S else 'MISSED'}"
    )


def report(title: str, runs: Sequence[Measured]) -> None:
    """Print wall and CPU time of the program."""
    seconds = [item.seconds for item in runs]
    print(
        f"{title:<50} {median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f}, n={len(runs)}), "
        f"CPU {median(item.cpu_s for item in runs):.2f} s"
    )


if __name__ == "__main__":
    main()
