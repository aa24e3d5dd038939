"""Compute Engine: requests and CPU time of `fleet up` and `fleet down`, on the emulator of the API.

The emulated instances are OpenSSH servers of this computer. The program's time is its CPU time; the rest of the wall
time is spent in the emulator and the hosts, which share the cores.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from sys import executable

from benchmarks.harness.command import environment, run
from benchmarks.harness.hosts import FLEET
from benchmarks.harness.model import Goal, Sample
from benchmarks.harness.peers import MissingError
from benchmarks.harness.session import Session
from tests.emulator import Emulator
from tests.emulator.guests import SshGuests, obstacle

TITLE = "Compute Engine, on the emulator"
_OPERATION_S = 0.5
# `up` asks for host keys in batches until all are there; `down` deletes in them.
_POLLS = {
    "up": ("Operations.wait", "aggregatedList", "firewalls.list", "batch"),
    "down": ("Operations.wait", "aggregatedList", "firewalls.list"),
}


def measure(session: Session) -> None:
    """Count requests for several sizes of a fleet, and measure the CPU time of the program."""
    if reason := obstacle():
        raise MissingError(f"the emulator's instances cannot run here: {reason}")
    sizes = session.pick((1,), (2, 8, 64), (2, 8, 64))
    ups: dict[str, list[Sample]] = {}
    downs: dict[str, list[Sample]] = {}
    with _emulated(_OPERATION_S) as emulator:
        for workers in sizes:
            up, down = _once(emulator, workers)
            ups[f"fleet up, {workers} workers"], downs[f"fleet down, {workers} workers"] = [up], [down]
    for title, series in (("create", ups), ("delete", downs)):
        first, *_, last = [*series, list(series)[-1]]
        session.keep_scene(
            f"{title} instances, operations of {_OPERATION_S:g} s", series, [Goal("requests", last, first, 1.0)]
        )
    if session.is_quick:
        return
    with _emulated(0.0) as emulator:
        session.measure(
            "create 8 instances, operations that take no time",
            {"fleet up": lambda: _once(emulator, 8)[0]},
            [Goal("client_cpu", "fleet up", "", 2.0)],
            metric="client_cpu",
            runs=session.pick(1, 3, 7),
        )


@contextmanager
def _emulated(operation_s: float) -> Iterator[Emulator]:
    """Yield an emulator whose instances have an OpenSSH server."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        with Emulator(operation_s=operation_s, guests=SshGuests(directory), directory=directory) as emulator:
            yield emulator


def _once(emulator: Emulator, workers: int) -> tuple[Sample, Sample]:
    """Run `up` and `down` of a fleet."""
    with tempfile.TemporaryDirectory() as state:
        words = ("--provider", "gce", "--workers", str(workers), "--python", executable, "--yes")
        return _command(emulator, state, "up", *words), _command(emulator, state, "down", "--yes")


def _command(emulator: Emulator, state: str, verb: str, *arguments: str) -> Sample:
    env = environment(FLEET_STATE_DIR=state, FLEET_GCE_ENDPOINT=emulator.url, FLEET_GCE_PROJECT="proj-1")
    before = _requests(emulator, verb)
    sample = run([FLEET, verb, *arguments], env=env, timeout_s=300)
    return {**sample, "requests": _requests(emulator, verb) - before}


def _requests(emulator: Emulator, verb: str) -> int:
    """Return the number of HTTP requests other than polling. A batch is one request."""
    calls: dict[str, int] = emulator.state()["calls"]
    return sum(
        count
        for name, count in calls.items()
        if not name.startswith("batch.") and not any(poll in name for poll in _POLLS[verb])
    )
