"""The request SmokeTest: run the prepared script alone, as a cluster of one, until its first step."""

from __future__ import annotations

import time
from collections import deque
from typing import Deque, Dict, List, Optional, Tuple

from train.agent.files.disk import make_scratch, write_atomic
from train.agent.host.processes import end_leftovers
from train.agent.host.runner import OverdueError, Steps, run
from train.agent.protocol.channel import Channel
from train.agent.protocol.cluster import expand_placeholders
from train.agent.protocol.errors import RefusedError
from train.agent.protocol.records import Exit, Refusal, SmokeTest, SmokeTestResult
from train.agent.requests.prepare import Reservation
from train.agent.supervisor.environment import TaskIdentity, task_environment
from train.agent.supervisor.progress import ProgressParser

LONGEST_S = 3600.0
_TASK = "worker-0"
LINES = 20  # last lines of output in the result
LONGEST_LINE = 500  # characters
DEADLINE_S = 2 * LONGEST_S  # the trial's own time is over before


class SteppedError(Exception):
    """The task has made its first step."""


def run_smoke_test(channel: Channel, reservation: Reservation, request: SmokeTest) -> SmokeTestResult:
    """Run the smoke test; afterwards no process is left and the reservation can be released.

    Raises:
        RefusedError: nothing was prepared that could be run.
        ClientGoneError: the client disconnected, and the task was ended.
        OSError: it cannot be started.
    """
    paths = reservation.paths
    command, env = _yield_environment(reservation, request)
    watch = _OutputWatch(Steps(channel), min(request.seconds, LONGEST_S))
    ended: Optional[Exit] = None
    try:
        ended = run(command, env, paths.source, watch.steps, deadline_s=DEADLINE_S, on_lines=watch.on_lines)
    except (SteppedError, OverdueError):
        pass
    finally:
        end_leftovers(paths)
    return watch.result(ended)


def _yield_environment(reservation: Reservation, request: SmokeTest) -> Tuple[List[str], Dict[str, str]]:
    """Return command and environment of a task that runs without a supervisor, and give the port to the task.

    Args:
        reservation: What was prepared.
        request: The program.

    Raises:
        RefusedError: nothing was prepared that could be run.
    """
    prepared, members = reservation.request, [reservation.member()._replace(task=_TASK)]
    if prepared.dry_run or reservation.port is None or not request.command:
        raise RefusedError(Refusal.REQUEST, f"{prepared.slot} of job {prepared.job} is not prepared on this host")
    user = {**request.env, **request.secret_env}
    env = task_environment(
        reservation.session,
        user,
        identity=TaskIdentity(prepared.fleet, prepared.job, _TASK, 1, members),
        paths=reservation.paths,
        scratch=make_scratch(reservation.paths.scratch, reservation.session.get("TMPDIR") or "/tmp"),  # noqa: S108
        host_environment=reservation.host_environment(user),
    )
    write_atomic(reservation.paths.processes, b"{}")  # who comes next ends what we leave, if we are killed
    reservation.port.yield_to_task()
    return expand_placeholders(request.command, members, _TASK, 1), env


class _OutputWatch:
    """Watch the task's output until its first step or its deadline."""

    def __init__(self, steps: Steps, seconds: float) -> None:
        self.steps = steps
        self._seconds = seconds
        self._began = time.monotonic()
        self._parser = ProgressParser(_TASK, _TASK, 1)
        self._lines: Deque[str] = deque(maxlen=LINES)
        self._stepped = False
        steps.report_step("running the script by itself")

    def on_lines(self, lines: List[str]) -> bool:
        """Parse new lines; return True if there were any.

        Raises:
            SteppedError: it has made a step.
            OverdueError: its time is over.
        """
        for line in lines:
            if line.strip():
                self._lines.append(line.rstrip()[:LONGEST_LINE])
            self._parser.feed(line.encode("utf-8", "replace") + b"\n", time.time())
        seen = self._parser.latest
        if seen is not None and (seen.step > 0 or seen.metrics):
            self._stepped = True
            raise SteppedError
        seconds = time.monotonic() - self._began
        if seconds > self._seconds:
            raise OverdueError
        self.steps.report_step("running the script by itself", f"{seconds:.0f} s")
        return bool(lines)

    def result(self, ended: Optional[Exit]) -> SmokeTestResult:
        return SmokeTestResult(round(time.monotonic() - self._began, 1), self._stepped, ended, list(self._lines))
