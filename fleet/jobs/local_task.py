"""Run the task of one node in a job without a fleet: follow it, stop it at signals, and prepare its directories."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from fleet.errors import FleetError, NotReadyError
from fleet.events import Level, Note, Sink
from fleet.jobs.evidence import Evidence
from fleet.jobs.following.log_view import LogView, Selection
from fleet.jobs.following.watches import LossWatch
from fleet.jobs.restarts import Restarts
from fleet.remote.client import AgentClient
from fleet.remote.merge import split
from fleet.remote.publication import log_chunk, publish
from train.agent.protocol import records

_STOP_S = 60.0  # beyond the grace period


class LocalTask:
    """The task of this node.

    Args:
        agent: The agent on this node, which has prepared the task.
        commit: Request that starts the task.

    Attributes:
        stopped_by: Name of the signal that ended the job, ``SIGTERM``; empty if none did.
    """

    def __init__(self, agent: AgentClient, commit: records.Commit) -> None:
        self._agent = agent
        self._commit = commit
        self._runs = False
        self._follows = False
        self.stopped_by = ""
        self._stop_by = float("inf")
        self._evidence = Evidence(())
        self._restarts = Restarts()
        self._losses = LossWatch()
        self._view = LogView(Selection(startup=False))

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
        first, self.stopped_by = not self.stopped_by, self.stopped_by or signal.Signals(number).name
        if first and self._follows:
            self._request_stop()

    def _request_stop(self) -> None:
        request = records.Stop(self._commit.job, self._commit.slot, self._commit.grace_s)
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
                if isinstance(record, (records.Stopped, records.Refused)):
                    return

    def follow(self, sink: Sink, *, leads: bool) -> records.JobResult:
        """Emit the events of the task until the job ends.

        Args:
            sink: Takes the task's output, and on the leader also the events that all nodes report.
            leads: Whether this node is the leader.

        Raises:
            NotReadyError: this node refuses the request, the job cannot be stopped, or the agent has ended.
        """
        result: records.JobResult | None = None
        stream = self._agent.follow(records.Follow(self._commit.job, self._commit.slot, attempt=1))
        self._follows = True
        if self.stopped_by and self._stop_by == float("inf"):  # the signal came before this call
            self._request_stop()
        for record, payload in stream:
            if isinstance(record, records.JobResult):
                result = record
            else:
                self._report(record, payload, sink, leads=leads)
            if time.monotonic() > self._stop_by:
                limit_s = self._commit.grace_s + _STOP_S
                raise NotReadyError(f"the job did not end within {limit_s:g} s of {self.stopped_by}")
        self._runs = self._follows = False
        if result is None:
            raise NotReadyError("the agent did not report how the job ended")
        for chunk in self._view.finish():
            sink.emit(chunk)
        for note in (*self._view.notes(), *(self._losses.final(result.attempt) if leads else ())):
            sink.emit(note)
        return result

    def _report(self, record: records.Record, payload: bytes, sink: Sink, *, leads: bool) -> None:
        self._evidence.add(record, payload)
        for note in (*self._restarts.add(record), *self._losses.add(record, payload)) if leads else ():
            sink.emit(note)
        if isinstance(record, records.Log):
            for piece, data in split(record, payload):
                for chunk in self._view.add(log_chunk(piece, data)):
                    sink.emit(chunk)
        elif isinstance(record, records.HangInspection) or (leads and isinstance(record, records.AttemptEnded)):
            sink.emit(publish(record))
        elif leads and isinstance(record, records.Notice):
            sink.emit(Note(record.text, Level.WARNING))


@contextlib.contextmanager
def result_directories(directory: Path, task: str) -> Iterator[dict[str, str]]:
    """Create the directories for the results of a task that runs in place; yield the variables that name them.

    Other jobs use directories of the agents. Empty ones are removed at the end.

    Args:
        directory: Directory of the job.
        task: The task of this node.
    """
    logs, model = directory / task / "logs", directory / task / "model"
    make_directory(logs)
    make_directory(model)
    try:
        yield {
            "FLEET_LOG_DIR": str(logs),
            "FLEET_MODEL_DIR": str(model),
            "AIP_TENSORBOARD_LOG_DIR": str(logs),
            "AIP_MODEL_DIR": str(model),
        }
    finally:
        remove_empty(logs, model, logs.parent, directory / "checkpoints", directory)


def make_directory(path: Path) -> None:
    """Create a directory of the job.

    Raises:
        NotReadyError: it cannot be created.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NotReadyError(
            f"the directory {path} cannot be made",
            cause=error.strerror or "",
            hint="name a directory of your own: --workdir DIR",
        ) from error


def remove_empty(*paths: Path) -> None:
    """Remove those of the directories that are empty."""
    for path in paths:
        with contextlib.suppress(OSError):
            path.rmdir()


def create_mark(directory: Path | None) -> Path | None:
    """Create a file in the checkpoint directory that other nodes look for; None: the directory is a URL."""
    if directory is None:
        return None
    make_directory(directory)
    descriptor, name = tempfile.mkstemp(prefix=".fleet-seen-", dir=directory)
    os.close(descriptor)
    return Path(name)


def sees_mark(directory: Path | None, mark: str) -> bool:
    """Return whether this node shares the checkpoint directory of rank 0, which is created if it does not exist."""
    if directory is None:
        return True
    make_directory(directory)
    return mark in {path.name for path in directory.iterdir()}
