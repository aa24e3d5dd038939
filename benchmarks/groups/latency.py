"""Latency of log lines, from a task to the client's standard output."""

from __future__ import annotations

import sys

from benchmarks.harness.model import Goal, Sample
from benchmarks.harness.readers import Latency
from benchmarks.harness.scripts import RATE, write_script
from benchmarks.harness.session import Session

TITLE = "Latency of log lines"
_RATE_HZ = 10


def measure(session: Session) -> None:
    """Print lines at a rate on all hosts, and compare the time in each line with the time when it arrives."""
    workers, seconds = session.pick((2, 1), (64, 12), (64, 30))
    hosts, script = session.local(workers), write_script(session.directory(), RATE, "rate.py")

    def read(arguments: list[str]) -> Sample:
        return hosts.run(arguments, reader=Latency(skip_s=seconds / 4))

    rate = f"{sys.executable} {script} {_RATE_HZ} {seconds}"
    session.measure(
        f"{workers} hosts, {_RATE_HZ} lines per second each; the first quarter is not counted",
        {
            "fleet train": lambda: read(
                hosts.fleet("train", "--raw", str(script), "--", str(_RATE_HZ), str(seconds))
            ),
            "pdsh": lambda: read(hosts.pdsh(rate)),
        },
        [Goal("p50", "fleet train", "", 2.0), Goal("p99", "fleet train", "pdsh", 1.0)],
        metric="p99",
        runs=session.pick(1, 4, 9),
        warmups=0,
    )
