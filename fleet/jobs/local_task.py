"""Run the task of one node in a job without a fleet: follow it through the local agent, and stop it at signals."""

from __future__ import annotations

import contextlib
import signal
import time
from types import FrameType
from typing import Any

from fleet.errors import FleetError, NotReadyError
from fleet.events import Level, Note, Sink
from fleet.jobs.evidence import Evidence
from fleet.jobs.following.losses import LossWatch
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
        for note in self._losses.final(result.attempt) if leads else ():
            sink.emit(note)
        return result

    def _report(self, record: Record, payload: bytes, sink: Sink, *, leads: bool) -> None:
        self._evidence.add(record, payload)
        for note in (*self._restarts.add(record), *self._losses.add(record, payload)) if leads else ():
            sink.emit(note)
        if isinstance(record, Log):
            for piece, data in split(record, payload):
                sink.emit(log_chunk(piece, data))
        elif isinstance(record, HangInspection) or (leads and isinstance(record, AttemptEnded)):
            sink.emit(publish(record))
        elif leads and isinstance(record, Notice):
            sink.emit(Note(record.text, Level.WARNING))
