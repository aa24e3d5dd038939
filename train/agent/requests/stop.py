"""The requests Stop and Release: end a job, or all of a fleet on this host, with every process."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Optional

from train.agent.files.disk import remove_scratch, remove_tree
from train.agent.files.paths import HostPaths, TaskPaths
from train.agent.host import control
from train.agent.host.jobs import find_task, newest_tasks
from train.agent.host.processes import ProcessId, await_exit, end_leftovers, is_alive, supervisor_of
from train.agent.protocol.channel import Channel
from train.agent.protocol.errors import RefusedError
from train.agent.protocol.records import Refusal, Release, Released, Stop, Stopped
from train.agent.supervisor.warm import end_server

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


SHARED_DIRECTORY = ".fleet"  # of all fleets on a host; removed with the last of them
_JOBS = 10_000
_DEADLINE_S = 10.0
_PAUSE_S = 0.05


def release_host(channel: Channel, host: HostPaths, request: Release) -> Released:
    """Answer Release: end every job of the fleet on this host, and remove its directory.

    Raises:
        RefusedError: a file cannot be removed.
        TimeoutError: processes survive SIGKILL.
    """
    running = False
    for paths in newest_tasks(host, _JOBS):
        job, task = os.path.split(paths.directory)
        running |= stop(channel, host, Stop(os.path.basename(job), task, request.grace_s)).running
        remove_scratch(paths.scratch)
    end_server(host.warm)
    _remove(host.root)
    shared = os.path.dirname(host.root)
    if os.path.basename(shared) == SHARED_DIRECTORY:
        with contextlib.suppress(OSError):  # another fleet is there
            os.rmdir(shared)
    return Released(running)


def _remove(directory: str) -> None:
    """Remove a directory, even while the last writes into it finish."""
    end = time.monotonic() + _DEADLINE_S
    while True:
        try:
            remove_tree(directory)
        except OSError as error:
            if time.monotonic() > end:
                raise RefusedError(
                    Refusal.FAULT,
                    f"{error.filename or directory} cannot be removed: {error.strerror}",
                    f"remove {directory} there by hand, then repeat fleet down",
                ) from error
            time.sleep(_PAUSE_S)  # the kernel does not report the end of the last writer
        else:
            return
