"""Prepare the result directories of a job that runs in place, and detect whether all nodes share them."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from fleet.errors import NotReadyError
from fleet.jobs.policy import replication


class Directories:
    """Directories for the results of a job that runs in place; other jobs use directories of the agents.

    Args:
        directory: Directory of the job.
        task: The task of this node.
    """

    def __init__(self, directory: Path, task: str) -> None:
        self._logs, self._model = directory / task / "logs", directory / task / "model"

    @property
    def env(self) -> dict[str, str]:
        """Return the variables that pass the directories to the script."""
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
    """Remove the directory of a job if it is empty."""
    _remove_empty(directory / "checkpoints")
    _remove_empty(directory)


def _remove_empty(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.rmdir()


def _checkpoints(given: str, directory: Path, job: str) -> Path | None:
    """Return the directory of checkpoints; None if it is a URL."""
    return None if "://" in given else directory / (Path(given).expanduser() if given else Path(job) / "checkpoints")


def mark(given: str, directory: Path, job: str) -> Path | None:
    """Create a file in the checkpoint directory that other nodes look for; None if the directory is a URL."""
    path = _checkpoints(given, directory, job)
    if path is None:
        return None
    _make(path)
    descriptor, name = tempfile.mkstemp(prefix=".fleet-seen-", dir=path)
    os.close(descriptor)
    return Path(name)


class Copies:
    """Decides whether checkpoints are copied to the other nodes, which is not necessary if they share a directory.

    Args:
        given: The directory given by the user; empty: a directory of the job.
        directory: Working directory of the script.
        job: Name of the job.
        mark: Name of the file that rank 0 created in the directory.
    """

    def __init__(self, given: str, directory: Path, job: str, mark: str) -> None:
        self._mark = mark
        self._path = _checkpoints(given, directory, job)
        kept = replication(given or job, 100.0)
        self.replication = kept if self._path is None else kept._replace(directory=str(self._path))

    def shared(self) -> bool:
        """Return whether this node shares the directory of rank 0; create the directory if it does not exist."""
        if self._path is None:
            return True
        _make(self._path)
        return self._mark in {path.name for path in self._path.iterdir()}

    def decide(self, *, shared: bool) -> None:
        """Disable copying if all nodes share the directory."""
        if shared:
            self.replication = self.replication._replace(mib_s=0.0)
