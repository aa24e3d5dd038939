"""Throughput of logs to a pipe, while a job runs and afterwards, and the memory of the client."""

from __future__ import annotations

import sys
from functools import partial

from benchmarks.harness.hosts import Hosts
from benchmarks.harness.model import Goal, Sample
from benchmarks.harness.readers import Throughput
from benchmarks.harness.scripts import EMIT, write_script
from benchmarks.harness.session import Session

TITLE = "Throughput of logs"
_LINE_BYTES = 120
_MEMORY_GOAL_MB = 120.0


def measure(session: Session) -> None:
    """Read lines of 120 bytes with the name of the host in front of each."""
    for workers in session.pick((2,), (8, 64), (8, 64)):
        session.attempt(f"live logs of {workers} hosts", partial(_live, session, workers))
    for workers in session.pick((2,), (8, 64), (8, 64)):
        session.attempt(f"stored logs of {workers} hosts", partial(_stored, session, workers))


def _live(session: Session, workers: int) -> None:
    hosts, script = session.local(workers), write_script(session.directory(), EMIT, "emit.py")
    lines = session.pick(2_000, 1_000_000, 4_000_000) // workers // 500 * 500
    emit = f"{sys.executable} {script} {lines} text"

    def read(arguments: list[str]) -> Sample:
        return hosts.run(arguments, reader=Throughput(lines * workers), timeout_s=200)

    session.measure(
        f"live logs of {workers} hosts, {lines * workers:,} lines of {_LINE_BYTES} bytes",
        {
            "fleet train": lambda: read(hosts.fleet("train", "--raw", str(script), "--", str(lines), "text")),
            "pdsh": lambda: read(hosts.pdsh(emit)),
        },
        [Goal("rate", "fleet train", "pdsh", 4.0, at_least=True), Goal("client_cpu", "fleet train", "pdsh")],
        metric="rate",
        runs=session.pick(1, 3, 7),
        warmups=0,
    )


def _stored(session: Session, workers: int) -> None:
    hosts, script = session.local(workers), write_script(session.directory(), EMIT, "emit.py")
    size = session.pick(250_000, 250_000_000, 250_000_000)
    lines = size // _LINE_BYTES // workers // 500 * 500
    hosts.run_fleet("train", str(script), "--", str(lines), "text", timeout_s=200)
    copy = session.directory()
    emitted = [sys.executable, str(script), str(lines), "text"]
    hosts.run(["/bin/sh", "-c", 'out="$1" && shift && exec "$@" > "$out"', "sh", str(copy), *emitted])

    def read(arguments: list[str]) -> Sample:
        return hosts.run(arguments, reader=Throughput(lines * workers), timeout_s=200)

    session.measure(
        f"logs of a finished job on {workers} hosts, {size // 1_000_000} MB in all",
        {
            "fleet logs": lambda: read(hosts.fleet("logs", "--raw")),
            "pdsh cat": lambda: read(hosts.pdsh(f"cat {copy}")),
        },
        _stored_goals(hosts),
        metric="throughput",
        runs=session.pick(1, 3, 7),
        warmups=0,
    )
    session.release(hosts)


def _stored_goals(hosts: Hosts) -> list[Goal]:
    goals = [Goal("memory", "fleet logs", "", _MEMORY_GOAL_MB)]
    if len(hosts.hosts) <= 8:
        goals.append(Goal("throughput", "fleet logs", "pdsh cat", 4.0, at_least=True))
    return goals
