"""Start skew: from the start of user code on the first host to that on the last."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

from benchmarks.harness.model import Goal, Sample
from benchmarks.harness.scripts import START, write_script
from benchmarks.harness.session import Session

TITLE = "Start skew"
# The scripts run for a while: the end of a task would delay the start of another.
_SECONDS = "0.5"
_PEER = "pdsh over open ControlMasters"


def measure(session: Session) -> None:
    """Compare the times that the scripts wrote in their first line. All hosts share a clock."""
    for workers in session.pick((2,), (8, 64), (8, 64)):
        session.attempt(f"start skew of {workers} hosts", partial(_skew, session, workers))


def _skew(session: Session, workers: int) -> None:
    hosts, script = session.local(workers), write_script(session.directory(), START)
    command = f"{sys.executable} {script} {hosts.marks} {_SECONDS}"

    def starts(start: Callable[[], Sample]) -> Sample:
        sample, times = start(), hosts.starts()
        return {**sample, "skew": 1000 * (times[-1] - times[0])}

    hosts.open_masters()
    session.measure(
        f"{workers} hosts",
        {
            "fleet train": lambda: starts(
                lambda: hosts.run_fleet("train", str(script), "--", str(hosts.marks), _SECONDS)
            ),
            _PEER: lambda: starts(lambda: hosts.run(hosts.pdsh(command, warm=True))),
        },
        [Goal("skew", "fleet train", _PEER, 0.06)],
        metric="skew",
        runs=session.pick(1, 7, 15),
        before=hosts.clear_marks,
    )
    hosts.close_masters()
    session.release(hosts)
