"""Where a job that runs in place leaves what it makes, and whether all nodes see the same there."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from fleet.errors import NotReadyError
from fleet.jobs.policy import replication


class Directories:
    """Directories for the results of a job that runs in place; results in the agents' directories belong to the job.

    Args:
        directory: Of the job.
        task: Of this node.
    """

    def __init__(self, directory: Path, task: str) -> None:
        self._logs, self._model = directory / task / "logs", directory / task / "model"

    @property
    def env(self) -> dict[str, str]:
        """Variables that say so to the script."""
        logs, model = str(self._logs), str(self._model)
        return {
            "FLEET_LOG_DIR": logs,
            "FLEET_MODEL_DIR": model,
            "AIP_TENSORBOARD_LOG_DIR": logs,
            "AIP_MODEL_DIR": model,
        }

    def __enter__(self) -> Directories:
        for path in (self._logs, self._model):
            _make(path)
        return self

    def __exit__(self, *_: object) -> None:
        for path in (self._logs, self._model, self._logs.parent):
            _remove_empty(path)
        tidy(self._logs.parents[1])


def _make(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NotReadyError(
            f"the directory {path} cannot be made",
            cause=error.strerror or "",
            hint="name a directory of your own: --workdir DIR",
        ) from error


def tidy(directory: Path) -> None:
    """Remove the directory of a job that has left nothing in it."""
    _remove_empty(directory / "checkpoints")
    _remove_empty(directory)


def _remove_empty(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.rmdir()


def _checkpoints(given: str, directory: Path, job: str) -> Path | None:
    """The directory of checkpoints; None where it is at a URL."""
    return None if "://" in given else directory / (Path(given).expanduser() if given else Path(job) / "checkpoints")


def mark(given: str, directory: Path, job: str) -> Path | None:
    """Leave a file in the directory of checkpoints by which the others see whether they share it; None: at a URL."""
    path = _checkpoints(given, directory, job)
    if path is None:
        return None
    _make(path)
    descriptor, name = tempfile.mkstemp(prefix=".fleet-seen-", dir=path)
    os.close(descriptor)
    return Path(name)


class Copies:
    """How checkpoints get to the other nodes: not at all where all nodes share their directory.

    Args:
        given: The directory, as the user named it; empty: one of the job's.
        directory: Where the script runs.
        job: Name of the job.
        mark: Name of the file that rank 0 has left there.
    """

    def __init__(self, given: str, directory: Path, job: str, mark: str) -> None:
        self._mark = mark
        self._path = _checkpoints(given, directory, job)
        kept = replication(given or job, 100.0)
        self.replication = kept if self._path is None else kept._replace(directory=str(self._path))

    def shared(self) -> bool:
        """Whether this node sees the directory of rank 0; it has one in any case from now on."""
        if self._path is None:
            return True
        _make(self._path)
        return self._mark in {path.name for path in self._path.iterdir()}

    def decide(self, *, shared: bool) -> None:
        """Copy nothing within a directory that all nodes share."""
        if shared:
            self.replication = self.replication._replace(mib_s=0.0)
