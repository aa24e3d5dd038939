"""Create the identifiers of jobs."""

from __future__ import annotations

import secrets
import time


def job_id(now: float) -> str:
    """Return a job name that sorts by time: ``20261121-094500-k3f9``."""
    letters = "abcdefghijkmnpqrstuvwxyz23456789"
    suffix = "".join(secrets.choice(letters) for _ in range(4))
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime(now)) + f"-{suffix}"
