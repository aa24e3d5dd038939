"""Run the task of one node in a job without a fleet: follow it, stop it at signals, and prepare its directories."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import Any

from fleet.errors import FleetError, NotReadyError
from fleet.events import Level, Note, Sink
from fleet.jobs.evidence import Evidence
from fleet.jobs.following.log_view import LogView, Selection
from fleet.jobs.following.watches import LossWatch
from fleet.jobs.policy import replication
from fleet.jobs.restarts import Restarts
from fleet.remote.client import AgentClient
from fleet.remote.merge import split
from fleet.remote.publication import log_chunk, publish
from train.agent.protocol.records import (
    AttemptEnded,
    Commit,
    Follow,
    HangInspection,
    JobResult,
    Log,
    Notice,
    Record,
    Refused,
    Stop,
    Stopped,
)

_STOP_S = 60.0  # beyond the grace period


class LocalTask:
    """The task of this node.

    Args:
        agent: The agent on this node, which has prepared the task.
        commit: Request that starts the task.
    """

    def __init__(self, agent: AgentClient, commit: Commit) -> None:
        self._agent = agent
        self._commit = commit
        self._runs = False
        self._follows = False
        self._signal = ""
        self._stop_by = float("inf")
        self._evidence = Evidence(())
        self._restarts = Restarts()
        self._losses = LossWatch()
        self._view = LogView(Selection(startup=False))

    @property
    def stopped_by(self) -> str:
        """Return the name of the signal that ended the job, ``SIGTERM``; empty if none did."""
        return self._signal

    def evidence(self, *, log: bool) -> dict[str, Any]:
        """Return the evidence about the task's last attempt as plain JSON values, with the log if `log`."""
        return self._evidence.newest(self._commit.slot, log=log)

    def start(self) -> None:
        """Start the task, together with the others. From then on, signals stop the whole job gracefully.

        Raises:
            NotReadyError: this node refuses the request, or the agent has ended.
        """
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._signalled)
        self._agent.commit(self._commit)
        self._runs = True

    def _signalled(self, number: int, _frame: FrameType | None) -> None:
        first, self._signal = not self._signal, self._signal or signal.Signals(number).name
        if first and self._follows:
            self._request_stop()

    def _request_stop(self) -> None:
        request = Stop(self._commit.job, self._commit.slot, self._commit.grace_s)
        self._stop_by = time.monotonic() + request.grace_s + _STOP_S
        self._agent.transport.send(request, doing="stopping the job")

    def give_up(self) -> None:
        """Stop a committed task, and with it the job, if the agent still handles requests."""
        if not self._runs:
            return
        self._runs = False
        with contextlib.suppress(FleetError):
            self._request_stop()
            while time.monotonic() < self._stop_by:  # the rest of the answer to Follow comes first
                record, _ = self._agent.transport.receive(self._commit.grace_s + _STOP_S, "stopping the job")
                if isinstance(record, (Stopped, Refused)):
                    return

    def follow(self, sink: Sink, *, leads: bool) -> JobResult:
        """Emit the events of the task until the job ends.

        Args:
            sink: Takes the task's output, and on the leader also the events that all nodes report.
            leads: Whether this node is the leader.

        Raises:
            NotReadyError: this node refuses the request, the job cannot be stopped, or the agent has ended.
        """
        result: JobResult | None = None
        records = self._agent.follow(Follow(self._commit.job, self._commit.slot, attempt=1))
        self._follows = True
        if self._signal and self._stop_by == float("inf"):  # the signal came before this call
            self._request_stop()
        for record, payload in records:
            if isinstance(record, JobResult):
                result = record
            else:
                self._report(record, payload, sink, leads=leads)
            if time.monotonic() > self._stop_by:
                limit_s = self._commit.grace_s + _STOP_S
                raise NotReadyError(f"the job did not end within {limit_s:g} s of {self._signal}")
        self._runs = self._follows = False
        if result is None:
            raise NotReadyError("the agent did not report how the job ended")
        for chunk in self._view.finish():
            sink.emit(chunk)
        for note in (*self._view.notes(), *(self._losses.final(result.attempt) if leads else ())):
            sink.emit(note)
        return result

    def _report(self, record: Record, payload: bytes, sink: Sink, *, leads: bool) -> None:
        self._evidence.add(record, payload)
        for note in (*self._restarts.add(record), *self._losses.add(record, payload)) if leads else ():
            sink.emit(note)
        if isinstance(record, Log):
            for piece, data in split(record, payload):
                for chunk in self._view.add(log_chunk(piece, data)):
                    sink.emit(chunk)
        elif isinstance(record, HangInspection) or (leads and isinstance(record, AttemptEnded)):
            sink.emit(publish(record))
        elif leads and isinstance(record, Notice):
            sink.emit(Note(record.text, Level.WARNING))


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
