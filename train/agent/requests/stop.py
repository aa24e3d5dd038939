"""The request Stop: end the whole job, and answer when no process of it is left on this host."""

from __future__ import annotations

import os
import signal
from typing import Optional

from train.agent.files.paths import HostPaths, TaskPaths
from train.agent.host import control
from train.agent.host.jobs import find_task
from train.agent.host.processes import ProcessId, await_exit, end_leftovers, is_alive, supervisor_of
from train.agent.protocol.channel import Channel
from train.agent.protocol.records import Stop, Stopped

# Beyond the grace period: SIGKILL, the news to the chief and back, and a peer that does not answer.
MARGIN_S = 35.0
_EXIT_S = 5.0


def stop(_: Channel, host: HostPaths, request: Stop) -> Stopped:
    """Answer Stop: end a job, and return when no process of it is left on this host.

    Raises:
        RefusedError: the job does not exist here.
        TimeoutError: processes survive SIGKILL.
    """
    paths = find_task(host, request.job, request.slot)
    supervisor = supervisor_of(paths)
    connection = control.connect(paths.control)
    if connection is None:
        has_killed = end_leftovers(paths)
        return Stopped(killed=has_killed, running=has_killed)
    with connection:
        control.send_record(connection, request)
        try:
            answers = list(control.receive_all(connection, request.grace_s + MARGIN_S))
        except TimeoutError:
            return _end_by_force(paths, supervisor)
    if supervisor is not None and not await_exit(supervisor, _EXIT_S):
        return _end_by_force(paths, supervisor)
    return Stopped(any(isinstance(answer, Stopped) and answer.killed for answer in answers), running=True)


def _end_by_force(paths: TaskPaths, supervisor: Optional[ProcessId]) -> Stopped:
    if supervisor is not None and is_alive(supervisor):
        os.kill(supervisor.pid, signal.SIGKILL)
        await_exit(supervisor, _EXIT_S)
    end_leftovers(paths)
    return Stopped(killed=True, running=True)
