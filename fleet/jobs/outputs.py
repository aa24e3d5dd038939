"""Where a job that runs in place leaves what it makes, and whether all nodes see the same there."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from fleet.errors import NotReadyError
from fleet.jobs.policy import replication


class Folders:
    """Where this node's results go, in the folder where the script runs: those of agents' folders go with the job.

    Args:
        folder: Of the job.
        task: Of this node.
    """

    def __init__(self, folder: Path, task: str) -> None:
        self._logs, self._model = folder / task / "logs", folder / task / "model"

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

    def __enter__(self) -> Folders:
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
            f"the folder {path} cannot be made",
            cause=error.strerror or "",
            hint="name a directory of your own: --workdir DIR",
        ) from error


def tidy(folder: Path) -> None:
    """Remove the folder of a job that has left nothing in it."""
    _remove_empty(folder / "checkpoints")
    _remove_empty(folder)


def _remove_empty(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.rmdir()


def _checkpoints(given: str, folder: Path, job: str) -> Path | None:
    """The folder of checkpoints; None where it is at a URL."""
    return None if "://" in given else folder / (Path(given).expanduser() if given else Path(job) / "checkpoints")


def mark(given: str, folder: Path, job: str) -> Path | None:
    """Leave a file in the folder of checkpoints by which the others see whether they share it; None: at a URL."""
    path = _checkpoints(given, folder, job)
    if path is None:
        return None
    _make(path)
    descriptor, name = tempfile.mkstemp(prefix=".fleet-seen-", dir=path)
    os.close(descriptor)
    return Path(name)


class Copies:
    """How checkpoints get to the other nodes: not at all where all nodes share their folder.

    Args:
        given: The folder, as the user named it; empty: one of the job's.
        folder: Where the script runs.
        job: Name of the job.
        mark: Name of the file that rank 0 has left there.
    """

    def __init__(self, given: str, folder: Path, job: str, mark: str) -> None:
        self._mark = mark
        self._path = _checkpoints(given, folder, job)
        kept = replication(given or job, 100.0)
        self.replication = kept if self._path is None else kept._replace(folder=str(self._path))

    def shared(self) -> bool:
        """Whether this node sees the folder of rank 0; it has one in any case from now on."""
        if self._path is None:
            return True
        _make(self._path)
        return self._mark in {path.name for path in self._path.iterdir()}

    def decide(self, *, shared: bool) -> None:
        """Copy nothing within a folder that all nodes share."""
        if shared:
            self.replication = self.replication._replace(mib_s=0.0)
