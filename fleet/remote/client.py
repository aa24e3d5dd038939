"""Send requests to an agent, over SSH or to a local process, and check its answers."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from fleet.errors import FleetError, NotReadyError
from fleet.remote.clocks import Reading, most_exact, read_round_trip
from fleet.remote.fanout import no_answer, where
from fleet.remote.quoting import one_line
from fleet.steps import Again, NextStep, Step
from provision.model import Host
from train.agent.protocol import records
from train.agent.protocol.cluster import is_task
from train.agent.protocol.records import LATEST_S, Record, Refusal

if TYPE_CHECKING:
    from fleet.remote.upload import Bundle

R = TypeVar("R")

OnUpload = Callable[[int, int, int], None]
"""Called with the bytes sent and the bytes to send, both before compression, and the number of their contents."""

ANSWER_S = 20.0
"""Longest time without an answer of an agent that has no other work, in seconds."""

PREPARE_S = 120.0
"""Longest time for a host to unpack the bundle and inspect its interpreter, in seconds."""

RELAY_S = 6 * 3600.0
"""Longest time to receive the files of a job from another host, in seconds."""

STEP_S = 120.0
"""Longest time without a step of a long request, in seconds: one comes every 5 s, but not while nvidia-smi runs."""

STOP_MARGIN_S = 20.0
"""Longest time to stop a job, in addition to the grace period, in seconds."""

_CLOCK_READINGS = 4  # of which the shortest round trip counts
_RELEASE_MARGIN_S = 60.0
# Requests whose answers list the files of a job.
_LISTING = (records.Prepare, records.GetJoinInfo, records.GetBundle)

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""Pattern of the identifiers of jobs and of the names of tasks."""

JOB_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
"""Pattern of the names that users give to jobs."""

MOST_WORKERS = 10_000
"""Maximum number of workers of a job that takes in new hosts."""

_LOGS, _STOP, _STATUS, _UP = Step("logs", "-f"), Step("stop"), Step("status"), Step("up")
# Commands that a host may recommend.
_COMMANDS = {step.text(): step for step in (_LOGS, _STOP, _STATUS, Step("jobs", "--prune"), _UP)}
_ADVICE: dict[Refusal, tuple[str, tuple[NextStep, ...]]] = {  # hint and next step of a refusal without its own
    Refusal.BUSY: ("", (Again({"--after": True}), _LOGS, _STOP)),
    Refusal.DISK: ("free space on the host, or send less (--workdir, .fleetignore)", ()),
    Refusal.PYTHON: ("install Python and TensorFlow on the host", ()),
    Refusal.BUNDLE: ("run the command again", ()),
    Refusal.PACKAGES: ("correct the list of packages", ()),
    Refusal.INSTALLATION: ("correct the list of packages", ()),
    Refusal.SETUP: ("", (_UP,)),
    Refusal.GPU: ("", (Step("down"), _UP)),
    Refusal.PROGRAM: ("install it on the host", ()),
}


class RefusedError(NotReadyError):
    """A host refused a request; a retry does not help.

    Attributes:
        refused: The answer of the host; None: unknown.
    """

    refused: records.Refused | None = None


class Transport(Protocol):
    """Carries records to an agent and back.

    Attributes:
        received: Number of bytes of all records and payloads that were received.
    """

    received: int

    @property
    def has_input(self) -> bool:
        """Return whether data of the agent is available that was not yet received."""

    def send(self, record: Record, payload: bytes = b"", *, doing: str, deadline_s: float = ANSWER_S) -> None:
        """Send a record, and the payload that it announces.

        Args:
            record: The record.
            payload: The bytes that follow it.
            doing: The action, which follows ``while`` in an error.
            deadline_s: Longest time without progress in sending, in seconds.

        Raises:
            UnreachableError: the host does not accept data, or the connection broke.
            NotReadyError: the agent ended.
        """

    def receive(self, deadline_s: float, waiting_for: str, *, long: bool = False) -> tuple[Record, bytes]:
        """Return the next record, and the payload that follows it.

        Args:
            deadline_s: Longest time until it is complete, in seconds; a large record may take longer if it comes
                at 32 KiB per second or more.
            waiting_for: The action, which follows ``while`` in an error.
            long: Whether the record may list the files of a job.

        Raises:
            UnreachableError: the record was not complete in time, or the connection broke.
            NotReadyError: the agent ended, or sent something that is not a record of a valid size.
        """

    def sever(self) -> None:
        """End pending calls with an error, from any thread."""

    def close(self) -> None:
        """Close the connection; repeated calls do nothing."""


def _ignore_upload(_sent: int, _total: int, _files: int) -> None:
    return


class AgentClient:
    """The client of one agent; it keeps no state besides the transport.

    Unless stated otherwise, each request raises RefusedError if the host refuses it, UnreachableError if the host
    does not answer or the connection breaks, and NotReadyError if the agent ends or its answer is invalid.

    Args:
        transport: Connection to the agent, closed with this object.
        host: The host of the agent; without an address, it is this computer, and no fleet has it.
        hello: First record of the agent.

    Attributes:
        transport: As given.
        host: As given.
        hello: As given.
    """

    def __init__(self, transport: Transport, host: Host, hello: records.Hello) -> None:
        self.transport = transport
        self.host = host
        self.hello = hello

    def __enter__(self) -> AgentClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; repeated calls do nothing."""
        self.transport.close()

    # --- a job ----------------------------------------------------------------------------------------------------

    def prepare(
        self, request: records.Prepare, bundle: Bundle | None = None, on_progress: OnUpload = _ignore_upload
    ) -> records.Prepared:
        """Prepare the task on a host, and send the contents that the host lacks.

        The host holds the reservation until commit or close.

        Args:
            request: The request.
            bundle: Source of the contents; None: the request has none.
            on_progress: Takes the progress of the upload.

        Raises:
            UsageError: a file has changed since the bundle was scanned.
        """
        record = self.ask(request, PREPARE_S, "preparing the task")
        if isinstance(record, records.NeedContents) and bundle is not None:
            record = self.upload(record, bundle, on_progress, request.address, "the script")
        elif isinstance(record, records.NeedContents) and not record.objects:
            record = self._receive(PREPARE_S, "preparing the task")
        return self.checked(record, records.Prepared)

    def upload(
        self, need: records.NeedContents, bundle: Bundle, on_progress: OnUpload, address: str, subject: str
    ) -> Record:
        """Send the contents that a host lacks, or wait while another host sends them.

        Args:
            need: The contents.
            bundle: Their source.
            on_progress: Takes the progress of the upload.
            address: Address at which other hosts reach this one.
            subject: A name for the contents.

        Returns:
            The record that followed them.
        """
        doing, whole = f"receiving {subject}", (need.size, len(need.objects))
        relay = bundle.relays.join(need.objects, address, need.port)
        if relay is not None:
            self.transport.send(relay, doing=doing)
        waits = relay is not None and bool(relay.address)
        if waits:
            on_progress(0, *whole)
        else:
            self._send_contents(need, bundle, on_progress, doing)
        end = time.monotonic() + RELAY_S
        while time.monotonic() < end:
            waiting_for = f"{doing} from another host" if waits else f"storing {subject}"
            record = self._receive(PREPARE_S, waiting_for, long=True)
            if waits and isinstance(record, records.ContentsReceived):
                on_progress(max(0, min(record.size, need.size)), *whole)
            elif waits and isinstance(record, records.NeedContents):  # which the other host did not send
                if not {*need.objects}.issuperset(record.objects) or not 0 <= record.offset <= need.size:
                    raise self.unexpected(record)
                waits = False
                self._send_contents(record, bundle, on_progress, doing)
            elif not isinstance(record, records.Beat):
                if waits:
                    on_progress(need.size, *whole)
                return record
        raise no_answer(self.host, RELAY_S, doing)

    def _send_contents(self, need: records.NeedContents, bundle: Bundle, on_progress: OnUpload, doing: str) -> None:
        on_progress(0, need.size, len(need.objects))
        if not need.objects:
            return
        if len({*need.objects}) < len(need.objects) or not bundle.sources.keys() >= {*need.objects}:
            raise self.unexpected(need)
        sent = 0
        is_local = self.host.address.startswith("127.")
        for data, size in bundle.read_blocks(need.objects, need.offset, is_local=is_local):
            self._send_chunk(data, size, f"{doing} ({sent / 1e6:.1f} of {need.size / 1e6:.1f} MB sent)")
            sent += size or len(data)
            on_progress(sent, need.size, len(need.objects))
        self._send_chunk(b"", 0, f"{doing} (all of it sent)")

    def _send_chunk(self, data: bytes, size: int, doing: str) -> None:
        """Send a chunk, unless the host has refused the rest in the meantime."""
        if not self.transport.has_input:
            try:
                self.transport.send(records.Chunk(len(data), size), data, doing=doing, deadline_s=ANSWER_S)
            except NotReadyError:
                if not self.transport.has_input:
                    raise
            else:
                return
        raise self.unexpected(self._receive(ANSWER_S, doing))

    def commit(self, request: records.Commit) -> records.Committed:
        """Start the prepared task, together with its peers; after an UnreachableError it may have been started."""
        return self._request(request, records.Committed, request.join_timeout_s + ANSWER_S, "starting the task")

    def read_clock(self) -> Reading:
        """Compare the clock of a host to that of this computer."""
        readings = []
        for _ in range(_CLOCK_READINGS):
            sent = time.time()
            answer = self._request(records.ReadClock(), records.ClockTime, ANSWER_S, "reading its clock")
            readings.append(read_round_trip(sent, answer.at, time.time()))
        return most_exact(readings)

    def get_join_info(self, request: records.GetJoinInfo) -> records.JoinInfo:
        """Return the data that another host needs to take over a slot of a job, of which this host runs a task."""
        return self._request(request, records.JoinInfo, ANSWER_S, "describing the job")

    def join(
        self,
        join_info: records.JoinInfo,
        name: str,
        source: AgentClient,
        variables: Callable[[records.Prepared, dict[str, str]], dict[str, str]],
        python: str = "",
    ) -> records.Committed:
        """Join a running job in the slot `name`; contents that the host lacks come from the store of `source`.

        Args:
            join_info: The description of the job from `source`.
            name: The slot.
            source: Agent of a host where the job runs.
            variables: Returns the variables of the task, given those of the task on `source`.
            python: The host's interpreter; empty: the one in its settings.
        """
        commit, doing = join_info.commit, "preparing the task"
        preparation = records.Prepare(
            job=commit.job,
            fleet=join_info.fleet,
            slot=name,
            entries=join_info.entries,
            address=self.host.private_address,
            python=python or self.host.python,
            join=True,
        )
        record = self.ask(preparation, PREPARE_S, doing)
        if isinstance(record, records.NeedContents):
            if record.objects:
                source.transport.send(records.FetchContents(record.objects), doing="sending the job's files")
                for chunk, data in source.chunks("sending the job's files"):
                    self.transport.send(chunk, data, doing="receiving the job's files", deadline_s=ANSWER_S)
            record = self._receive(PREPARE_S, doing)
        answer = self.checked(record, records.Prepared)
        before = {member.slot: member for member in commit.members}
        task = before[name].task if name in before else ""  # a slot of `joinable` has none before it has joined
        members = [*{**before, name: answer.member._replace(task=task)}.values()]
        command = list(commit.command)
        if join_info.python and command[0] == join_info.python:
            command[0] = answer.python
        env = variables(answer, commit.env)
        return self.commit(commit._replace(slot=name, members=members, env=env, command=command))

    def chunks(self, doing: str) -> Iterator[tuple[records.Chunk, bytes]]:
        """Yield the chunks of contents that were requested, each with its data; the last one is empty."""
        chunk = records.Chunk(1)
        while chunk.payload:
            record, data = self.transport.receive(ANSWER_S, doing)
            chunk = self.checked(record, records.Chunk)
            yield chunk, data

    def follow(self, request: records.Follow, silence_s: float = ANSWER_S) -> Iterator[tuple[Record, bytes]]:
        """Request past and new records of a task, and yield them until the agent has sent all.

        Args:
            request: The task to follow, and the position at which to start.
            silence_s: Longest time without a record, in seconds; a running agent sends Beat in between.
        """
        doing = "following the job"
        self.transport.send(request, doing=doing)
        while True:
            record, payload = self.transport.receive(silence_s, doing)
            if isinstance(record, records.End):
                return
            if isinstance(record, records.Refused):
                raise self.unexpected(record)
            yield record, payload

    def stop(self, request: records.Stop) -> records.Stopped:
        """Stop the whole job, of which the host runs a task."""
        return self._request(request, records.Stopped, request.grace_s + STOP_MARGIN_S, "stopping the job")

    def inspect(self, request: records.Inspect) -> list[records.JobReport]:
        """Return the reports of a host about its newest jobs, newest first."""
        doing = "reporting its jobs"
        record = self.ask(request, ANSWER_S, doing)
        reports: list[records.JobReport] = []
        while not isinstance(record, records.End):
            report = self.checked(record, records.JobReport)
            if len(reports) == request.limit or not is_report(report, self.host.name):
                raise self.unexpected(report)
            reports.append(report)
            record = self._receive(ANSWER_S, doing)
        return reports

    # --- the host -------------------------------------------------------------------------------------------------

    def release(self, request: records.Release) -> records.Released:
        """Stop all processes of the fleet on a host, and remove all of the fleet's files."""
        deadline_s = request.grace_s + _RELEASE_MARGIN_S
        return self._request(request, records.Released, deadline_s, "removing the fleet's files")

    def bootstrap(
        self, request: records.Bootstrap, on_step: Callable[[records.BootstrapStep], None]
    ) -> records.Bootstrapped:
        """Install missing packages on a host, and check whether its GPUs can be used.

        Closing the connection stops the installation.

        Args:
            request: The packages to install, and the number of GPUs that must be usable.
            on_step: Called with every step; the same step may be repeated.
        """
        return self._step_by_step(request, records.Bootstrapped, on_step, "getting ready")

    def smoke_test(
        self, request: records.SmokeTest, on_step: Callable[[records.BootstrapStep], None]
    ) -> records.SmokeTestResult:
        """Run the prepared script alone until its first step; the host keeps no results.

        Closing the connection stops the script.

        Args:
            request: The program, and the time limit.
            on_step: Called at least every 5 seconds.
        """
        return self._step_by_step(request, records.SmokeTestResult, on_step, "running the script by itself")

    def _step_by_step(
        self, request: Record, answer: type[R], on_step: Callable[[records.BootstrapStep], None], doing: str
    ) -> R:
        """Send a request whose steps the host reports until it answers."""
        record = self.ask(request, STEP_S, doing)
        while isinstance(record, records.BootstrapStep):
            step = record._replace(step=one_line(record.step), detail=one_line(record.detail))
            doing = f"{step.step} ({step.detail})" if step.detail else step.step
            on_step(step)
            record = self._receive(STEP_S, doing)
        return self.checked(record, answer)

    # --- answers --------------------------------------------------------------------------------------------------

    def ask(self, request: Record, deadline_s: float, doing: str) -> Record:
        """Return the first record that answers a request."""
        self.transport.send(request, doing=doing)
        return self._receive(deadline_s, doing, long=isinstance(request, _LISTING))

    def _receive(self, deadline_s: float, doing: str, *, long: bool = False) -> Record:
        return self.transport.receive(deadline_s, doing, long=long)[0]

    def _request(self, request: Record, answer: type[R], deadline_s: float, doing: str) -> R:
        return self.checked(self.ask(request, deadline_s, doing), answer)

    def checked(self, record: Record, kind: type[R]) -> R:
        """Return a record that has the requested type.

        Raises:
            FleetError: it has another type, or is a refusal.
        """
        if isinstance(record, kind):
            return record
        raise self.unexpected(record)

    def unexpected(self, record: Record) -> FleetError:
        """Return the error of an answer that does not match the request, which may be a refusal."""
        if isinstance(record, records.Refused):
            return refusal(self.host, record)
        message = f"{where(self.host)} sent an unexpected record: {records.name_of(record)}"
        return NotReadyError(message, next_steps=_of_fleet(self.host, [_STATUS, _UP]))


def refusal(host: Host, refused: records.Refused) -> FleetError:
    """Return the error of a request that a host refuses.

    The reason, the cause, and the hint are texts of the host. Commands are only those that this program defines.
    """
    hint, steps = _ADVICE.get(refused.kind, ("", (_STATUS,)))
    if refused.hint:
        hint, steps = f"{host.name} suggests: {one_line(refused.hint)}", ()
    lines = refused.next_step.splitlines()
    if lines and _COMMANDS.keys() >= set(lines):
        steps = tuple(_COMMANDS[line] for line in lines)
    message, cause = f"{where(host)}: {one_line(refused.reason)}", one_line(refused.cause)
    error = RefusedError(message, cause=cause, hint=hint, next_steps=_of_fleet(host, steps))
    error.refused = refused
    return error


def _of_fleet(host: Host, steps: Sequence[NextStep]) -> Sequence[NextStep]:
    """Return the commands for a host, which work only if it is in a fleet."""
    return steps if host.address else ()


def is_report(report: records.JobReport, slot: str) -> bool:
    """Return whether a report can be about `slot`; the types of its fields were checked when it was decoded."""
    kind, _, index = report.task.partition("-")
    joined = kind == "worker" and is_task(report.task) and int(index) < (report.max_workers or 0)
    names = [report.job, slot, *filter(None, [report.queued_after])]
    return (
        report.slot == slot
        and all(map(NAME.fullmatch, names))
        and (joined or report.task in {"", *(member.task for member in report.members)})
        and all(is_task(member.task) for member in report.members if member.task)
        and min(report.attempt, report.attempts, report.log_size) >= 0
        and 0 <= report.started_at < LATEST_S
        and 0 <= (report.max_workers or 0) <= MOST_WORKERS
        and (not report.job_name or bool(JOB_NAME.fullmatch(report.job_name)))
    )
