"""Show the startup script of an instance that a job holds this host, so that it does not power off as idle."""

from __future__ import annotations

import contextlib
import os

from train.agent.files.disk import list_names

# The startup script creates the directory: provision/gce/api/startup.sh.
DIRECTORY = "/run/fleet/jobs"


def job_mark() -> str:
    """Return the path of the file that shows the job of this process; the script deletes it after the process."""
    return os.path.join(DIRECTORY, str(os.getpid()))


def mark_job() -> None:
    """Create that file, if this host has such a script."""
    with contextlib.suppress(OSError):
        os.close(os.open(job_mark(), os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))


def has_job() -> bool:
    """Return whether a job holds this host."""
    return any(os.path.exists(f"/proc/{name}") for name in list_names(DIRECTORY) if name.isdigit())
