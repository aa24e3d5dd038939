"""Run the task of one node in a job without a client: start it through the local agent, and follow it to the end."""

from __future__ import annotations

import contextlib
import signal
import time
from types import FrameType
from typing import Any

from fleet.errors import NotReadyError
from fleet.events import Level, LogChunk, Note, Sink
from fleet.jobs.evidence import Evidence
from fleet.jobs.restarts import Restarts
from fleet.remote.local import LocalAgent
from fleet.steps import read_steps
from train.agent.protocol.records import (
    AttemptEnded,
    Commit,
    Committed,
    End,
    Follow,
    HangInspection,
    JobResult,
    Log,
    Notice,
    Prepare,
    Prepared,
    Record,
    Refused,
    Stop,
    Stopped,
    Want,
    name_of,
)
from train.errors import LocalAgentError

PREPARE_S = 120.0
_SILENCE_S = 20.0
_COMMIT_S = 30.0
_STOP_S = 60.0  # beyond the grace period


class Slot:
    """The task of this node.

    Args:
        agent: The agent that supervises the task.
        job: Name of the job.
        task: ``worker-1``.
        node: Name of this node, for messages.
    """

    def __init__(self, agent: LocalAgent, job: str, task: str, node: str) -> None:
        self._agent = agent
        self._job = job
        self._task = task
        self._node = node
        self._grace_s = 0.0
        self._runs = False
        self._follows = False
        self._signal = ""
        self._stop_by = float("inf")
        self._evidence = Evidence(())
        self._restarts = Restarts()

    @property
    def stopped_by(self) -> str:
        """Return the name of the signal that ended the job, ``SIGTERM``; empty if none did."""
        return self._signal

    def evidence(self, *, log: bool) -> dict[str, Any]:
        """Return the evidence about the task's last attempt as plain JSON values, with the log if `log`."""
        return self._evidence.newest(self._task, log=log)

    def prepare(self, request: Prepare) -> Prepared:
        """Reserve the resources of the task.

        Raises:
            NotReadyError: this node refuses the request.
            LocalAgentError: the agent has ended.
        """
        self._agent.send(request)
        answer = self._answer(PREPARE_S, "preparing the task", Want, Prepared)
        if isinstance(answer, Want):
            answer = self._answer(PREPARE_S, "preparing the task", Prepared)
        assert isinstance(answer, Prepared)  # noqa: S101 - _answer returns nothing else
        return answer

    def commit(self, request: Commit) -> None:
        """Start the task, together with the others. From then on, signals stop the whole job gracefully.

        Raises:
            NotReadyError: this node refuses the request.
            LocalAgentError: the agent has ended.
        """
        self._grace_s = request.grace_s
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._signalled)
        self._agent.send(request)
        self._answer(_COMMIT_S, "starting the task", Committed)
        self._runs = True

    def _signalled(self, number: int, _frame: FrameType | None) -> None:
        first, self._signal = not self._signal, self._signal or signal.Signals(number).name
        if first and self._follows:
            self._ask_to_stop()

    def _ask_to_stop(self) -> None:
        self._stop_by = time.monotonic() + self._grace_s + _STOP_S
        self._agent.send(Stop(self._job, self._task, self._grace_s))

    def give_up(self) -> None:
        """Stop a committed task, and with it the job, if the agent still handles requests."""
        if not self._runs:
            return
        self._runs = False
        with contextlib.suppress(LocalAgentError):
            self._ask_to_stop()
            while time.monotonic() < self._stop_by:
                record, _ = self._agent.receive(self._grace_s + _STOP_S, "stopping the job")
                if isinstance(record, (Stopped, Refused)):
                    return

    def follow(self, sink: Sink, *, leads: bool) -> JobResult:
        """Emit the events of the task until the job ends.

        Args:
            sink: Takes the task's output, and on the leader also the events that all nodes report.
            leads: Whether this node is the leader.

        Raises:
            NotReadyError: this node refuses the request, or the job cannot be stopped.
            LocalAgentError: the agent has ended.
        """
        self._agent.send(Follow(self._job, self._task, attempt=1))
        self._follows = True
        if self._signal and self._stop_by == float("inf"):  # the signal came before this call
            self._ask_to_stop()
        result: JobResult | None = None
        while True:
            record, payload = self._agent.receive(_SILENCE_S, "following the task")
            if isinstance(record, End):
                break
            if isinstance(record, Refused):
                raise self._refusal(record)
            if isinstance(record, JobResult):
                result = record
            else:
                self._report(record, payload, sink, leads=leads)
            if time.monotonic() > self._stop_by:
                raise NotReadyError(f"the job did not end within {self._grace_s + _STOP_S:g} s of {self._signal}")
        self._runs = self._follows = False
        if result is None:
            raise NotReadyError("the agent did not tell how the job ended")
        return result

    def _report(self, record: Record, payload: bytes, sink: Sink, *, leads: bool) -> None:
        self._evidence.add(record, payload)
        for note in self._restarts.add(record) if leads else []:
            sink.emit(note)
        if isinstance(record, Log):
            sink.emit(LogChunk(record.slot, record.task, record.attempt, record.offset, payload))
        elif isinstance(record, HangInspection) or (leads and isinstance(record, AttemptEnded)):
            sink.emit(record)
        elif leads and isinstance(record, Notice):
            sink.emit(Note(record.text, Level.WARNING))

    def _answer(self, deadline_s: float, doing: str, *kinds: type[Record]) -> Record:
        record, _ = self._agent.receive(deadline_s, doing)
        if isinstance(record, kinds):
            return record
        if isinstance(record, Refused):
            raise self._refusal(record)
        raise NotReadyError(f"the agent on {self._node} answered {name_of(record)} out of turn")

    def _refusal(self, refused: Refused) -> NotReadyError:
        return NotReadyError(
            f"{self._node}: {refused.reason}",
            cause=refused.cause,
            hint=refused.hint,
            next_steps=read_steps(refused.next_step),
        )
