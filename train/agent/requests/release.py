"""The request Release: end all jobs of the fleet on this host, and remove its files."""

import contextlib
import os
import time

from train.agent.files.disk import remove_scratch, remove_tree
from train.agent.files.paths import HostPaths
from train.agent.host.jobs import newest_tasks
from train.agent.protocol.channel import Channel
from train.agent.protocol.errors import RefusedError
from train.agent.protocol.records import Refusal, Release, Released, Stop
from train.agent.requests.stop import stop
from train.agent.supervisor.warm import end_server

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
            time.sleep(_PAUSE_S)  # there is no event for the end of the last writer
        else:
            return
