"""Store what concerns the start of a host: what it needs to rejoin its running job, and that a job holds it.

A supervisor ends with its host. Another one needs the secret of the job and the environment of its session, which
only their owner can read.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
from typing import Any, Dict, Sequence

from train.agent.files.disk import list_names, read_json, write_atomic
from train.agent.files.paths import HostPaths, TaskPaths
from train.agent.protocol.records import Commit, Member, to_dict

MARKS = "/run/fleet/jobs"
"""Directory of the startup script of an instance (provision/gce/api/startup.sh), which does not power off as idle
while there is a mark of a job in it."""

_PROGRAM = (
    "import sys; sys.path.insert(0, {agent!r}); from train.agent.requests.join import rejoin_jobs; "
    "rejoin_jobs({root!r})"
)


def store_boot(
    host: HostPaths, paths: TaskPaths, request: Commit, session: Dict[str, str], umask: int, gpus: int
) -> None:
    """Store what this host needs to rejoin a job after a restart.

    Args:
        host: Paths of the fleet on this host.
        paths: Paths of the task.
        request: The commit; values of ``--secret`` must not be stored, so that a job with any does not rejoin.
        session: Environment of the session in which the job was committed.
        umask: Of the user's script.
        gpus: Number of GPUs that the host has.

    Raises:
        OSError: the disk is full.
    """
    if not request.rejoins or request.secret_env:
        return
    values = {"secret": request.secret, "session": session, "umask": umask, "gpus": gpus}
    _write(paths, values)
    program = _PROGRAM.format(agent=agent_path(), root=host.common)
    command = shlex.join([sys.executable, "-I", "-S", "-c", program])
    write_atomic(HostPaths(host.common).boot, f"#!/bin/sh\nexec {command}\n".encode(), 0o700)


def store_members(paths: TaskPaths, members: Sequence[Member]) -> None:
    """Store where the members of the job are now: those that were restarted listen on other ports.

    Does nothing if this host would not rejoin the job.

    Raises:
        OSError: the disk is full.
    """
    values = read_json(paths.boot)
    if values is not None:
        _write(paths, {**values, "members": to_dict(list(members))})


def _write(paths: TaskPaths, values: Dict[str, Any]) -> None:
    write_atomic(paths.boot, json.dumps(values).encode("utf-8", "surrogateescape"), sync=True)


def agent_path() -> str:
    """Return the directory or archive from which this agent was imported."""
    path = os.path.abspath(__file__)
    for _ in __name__.split("."):
        path = os.path.dirname(path)
    return path


def job_mark() -> str:
    """Return the path of the file that shows the job of this process; the script deletes it after the process."""
    return os.path.join(MARKS, str(os.getpid()))


def mark_job() -> None:
    """Create that file, if this host has such a script."""
    with contextlib.suppress(OSError):
        os.close(os.open(job_mark(), os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))


def has_job() -> bool:
    """Return whether a job holds this host."""
    return any(os.path.exists(f"/proc/{name}") for name in list_names(MARKS) if name.isdigit())
