"""A killed worker: the others are stopped, and all start again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from functools import partial

from benchmarks.harness import by_hand, tensorflow
from benchmarks.harness.command import end
from benchmarks.harness.model import Goal, Sample
from benchmarks.harness.scripts import write_script
from benchmarks.harness.session import Case, Session

TITLE = "A killed worker"
_ALONE = "TensorFlow by hand"


def measure(session: Session) -> None:
    """Kill a worker during training; measure until the others are stopped, and until the next attempt steps."""
    workers = session.pick(2, 4, 4)
    hosts = session.local(workers)
    script = write_script(session.directory(), tensorflow.script(is_standin=session.is_quick, forever=True))

    def killed(pids: list[int], processes: list[subprocess.Popen[bytes]]) -> tuple[float, float]:
        """Kill a worker; return when, and the seconds until all have ended."""
        os.kill(pids[1], signal.SIGKILL)
        begin = time.time()

        def all_ended() -> bool:
            for process in processes:
                process.poll()
            return not any(tensorflow.is_alive(pid) for pid in pids)

        tensorflow.wait_until(all_ended, "the end of all tasks")
        return begin, time.time() - begin

    def fleet(*options: str) -> Sample:
        nothing = subprocess.DEVNULL
        arguments = ["train", "--restarts", "1", *options, str(script), "--", str(hosts.marks)]
        client = subprocess.Popen(
            hosts.fleet(*arguments), env=hosts.environment(), stdin=nothing, stdout=nothing, stderr=nothing,
            start_new_session=True,
        )  # fmt: skip
        try:
            first = tensorflow.read_marks(hosts.marks, "stepped", workers)
            time.sleep(session.pick(0.2, 2.0, 2.0))  # until the warm process waits
            begin, stopped = killed([pid for _, pid in first], [client])
            steps = tensorflow.read_marks(hosts.marks, "stepped", workers, attempt=2)
            with contextlib.suppress(subprocess.TimeoutExpired):
                client.wait(60)
        finally:
            end(client)
            hosts.run_fleet("stop", codes=(0, 101, 102))
        return {"stopped": stopped, "next_step": max(at for at, _ in steps) - begin}

    def alone() -> Sample:
        with by_hand.workers(script, hosts.marks, workers) as processes:
            first = tensorflow.read_marks(hosts.marks, "stepped", workers)
            _, stopped = killed([pid for _, pid in first], processes)
        return {"stopped": stopped}

    cases: dict[str, Case] = {"fleet train": fleet}
    if session.supports("train", "--cold"):
        cases["fleet train --cold"] = partial(fleet, "--cold")
    if not session.is_quick:  # only TensorFlow notices that a worker is gone
        cases[_ALONE] = alone
    session.measure(
        f"one of {workers} workers killed" + (" (stand-in)" if session.is_quick else ""),
        cases,
        [
            Goal("next_step", "fleet train", "fleet train --cold", 0.4),
            Goal("stopped", "fleet train", "", 2.0),
            Goal("stopped", "fleet train", _ALONE),
        ],
        metric="next_step",
        runs=session.pick(1, 3, 7),
        warmups=0,
        before=hosts.clear_marks,
    )
