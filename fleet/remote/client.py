"""Send requests to an agent, over SSH or to a local process, and check its answers."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from fleet.errors import FleetError, NotReadyError
from fleet.remote.clocks import Reading, most_exact, read_round_trip
from fleet.remote.fanout import no_answer, where
from fleet.remote.quoting import one_line
from fleet.remote.upload import Bundle
from fleet.steps import Again, NextStep, Step
from provision.model import Host
from train.agent.protocol.cluster import is_task
from train.agent.protocol.records import (
    Bootstrap,
    Bootstrapped,
    BootstrapStep,
    Chunk,
    ClockTime,
    Commit,
    Committed,
    ContentsReceived,
    End,
    FetchContents,
    Follow,
    GetJoinInfo,
    Hello,
    Inspect,
    JobReport,
    JoinInfo,
    NeedContents,
    Prepare,
    Prepared,
    ReadClock,
    Record,
    Refusal,
    Refused,
    Release,
    Released,
    SmokeTest,
    SmokeTestResult,
    Stop,
    Stopped,
    name_of,
)

R = TypeVar("R")

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

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""Pattern of the identifiers of jobs and of the names of tasks."""

JOB_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
"""Pattern of the names that users give to jobs."""

LATEST = float(1 << 40)
"""Latest valid time in a report of a host, in seconds since the epoch."""

MOST_WORKERS = 10_000
"""Maximum number of workers of a job that takes in new hosts."""

_LOGS, _STOP, _STATUS, _PRUNE, _UP = (
    Step("logs", "-f"),
    Step("stop"),
    Step("status"),
    Step("jobs", "--prune"),
    Step("up"),
)
_COMMANDS = {step.text(): step for step in (_LOGS, _STOP, _STATUS, _PRUNE, _UP)}  # commands that a host may recommend
_ADVICE: dict[Refusal, tuple[str, tuple[NextStep, ...]]] = {  # hint and next step of a refusal without its own
    Refusal.BUSY: ("", (Again({"--after": True}), _LOGS, _STOP)),
    Refusal.DISK: ("free space on the host, or send less (--workdir, .fleetignore)", ()),
    Refusal.PYTHON: ("install Python and TensorFlow on the host", ()),
    Refusal.PORT: ("", (_STATUS,)),
    Refusal.BUNDLE: ("run the command again", ()),
    Refusal.REQUEST: ("", (_STATUS,)),
    Refusal.PACKAGES: ("correct the list of packages", ()),
    Refusal.INSTALLATION: ("correct the list of packages", ()),
    Refusal.SETUP: ("", (_UP,)),
    Refusal.GPU: ("", (Step("down"), _UP)),
    Refusal.PROGRAM: ("install it on the host", ()),
    Refusal.FAULT: ("", (_STATUS,)),
}


class RefusedError(NotReadyError):
    """A host refused a request; a retry does not help.

    Attributes:
        refused: The answer of the host; None: unknown.
    """

    refused: Refused | None = None


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
    """

    def __init__(self, transport: Transport, host: Host, hello: Hello) -> None:
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
        self,
        request: Prepare,
        bundle: Bundle | None = None,
        on_progress: Callable[[int, int, int], None] = _ignore_upload,
    ) -> Prepared:
        """Prepare the task on a host, and send the contents that the host lacks.

        The host holds the reservation until commit or close.

        Args:
            request: The request.
            bundle: Source of the contents; None: the request has none.
            on_progress: Called with the bytes sent and the bytes to send, both before compression, and the number of
                contents among them.

        Raises:
            UsageError: a file has changed since the bundle was scanned.
        """
        doing = "preparing the task"
        self.transport.send(request, doing=doing)
        record, _ = self.transport.receive(PREPARE_S, doing, long=True)
        if not isinstance(record, NeedContents):
            return self.checked(record, Prepared)
        if bundle is None and record.objects:
            raise self.unexpected(record)
        following = self.provide(record, bundle, request.address, on_progress) if bundle is not None else None
        return self.checked(following, Prepared) if following else self._answer(Prepared, PREPARE_S, doing)

    def provide(
        self,
        need: NeedContents,
        bundle: Bundle,
        address: str,
        on_progress: Callable[[int, int, int], None],
        subject: str = "the script",
    ) -> Record | None:
        """Send the contents that a host lacks, or wait while another host sends them.

        Args:
            need: The contents.
            bundle: Their source.
            address: Address at which other hosts reach this one.
            on_progress: As in `prepare`.
            subject: A name for the contents.

        Returns:
            The record that followed them; None: it is not received yet.
        """
        relay = bundle.relays.join(need.objects, address, need.port)
        if relay is not None:
            self.transport.send(relay, doing=f"receiving {subject}")
        if relay is not None and relay.address:
            return self._relayed(need, bundle, on_progress, subject)
        self.send_contents(need, bundle, on_progress, subject)
        return None

    def _relayed(
        self, need: NeedContents, bundle: Bundle, on_progress: Callable[[int, int, int], None], subject: str
    ) -> Record | None:
        """Wait while another host sends the contents; send what it did not."""
        doing = f"receiving {subject} from another host"
        on_progress(0, need.size, len(need.objects))
        end = time.monotonic() + RELAY_S
        while time.monotonic() < end:
            record, _ = self.transport.receive(PREPARE_S, doing, long=True)
            if isinstance(record, ContentsReceived):
                on_progress(max(0, min(record.size, need.size)), need.size, len(need.objects))
            elif isinstance(record, NeedContents):
                if not {*need.objects}.issuperset(record.objects) or not 0 <= record.offset <= need.size:
                    raise self.unexpected(record)
                self.send_contents(record, bundle, on_progress, subject)
                return None
            else:
                on_progress(need.size, need.size, len(need.objects))
                return record
        raise no_answer(self.host, RELAY_S, doing)

    def send_contents(
        self,
        need: NeedContents,
        bundle: Bundle,
        on_progress: Callable[[int, int, int], None],
        subject: str,
    ) -> None:
        """Send the contents that a host lacks; the arguments are those of `provide`."""
        on_progress(0, need.size, len(need.objects))
        if not need.objects:
            return
        if len({*need.objects}) < len(need.objects) or not bundle.sources.keys() >= {*need.objects}:
            raise self.unexpected(need)
        sent = 0
        is_local = self.host.address.startswith("127.")
        for data, size in bundle.read_blocks(need.objects, need.offset, is_local=is_local):
            self._send_chunk(data, size, f"receiving {subject} ({_of(sent, need.size)} sent)")
            sent += size or len(data)
            on_progress(sent, need.size, len(need.objects))
        self._send_chunk(b"", 0, f"receiving {subject} (all of it sent)")

    def _send_chunk(self, data: bytes, size: int, doing: str) -> None:
        """Send a chunk, unless the host has refused the rest in the meantime."""
        if not self.transport.has_input:
            try:
                self.transport.send(Chunk(len(data), size), data, doing=doing, deadline_s=ANSWER_S)
            except NotReadyError:
                if not self.transport.has_input:
                    raise
            else:
                return
        record, _ = self.transport.receive(ANSWER_S, doing)
        raise self.unexpected(record)

    def commit(self, request: Commit) -> Committed:
        """Start the prepared task, together with its peers; after an UnreachableError it may have been started."""
        return self._request(request, Committed, request.join_timeout_s + ANSWER_S, "starting the task")

    def read_clock(self) -> Reading:
        """Compare the clock of a host to that of this computer."""
        readings = []
        for _ in range(_CLOCK_READINGS):
            sent = time.time()
            answer = self._request(ReadClock(), ClockTime, ANSWER_S, "reading its clock")
            readings.append(read_round_trip(sent, answer.at, time.time()))
        return most_exact(readings)

    def get_join_info(self, request: GetJoinInfo) -> JoinInfo:
        """Return the data that another host needs to take over a slot of a job, of which this host runs a task."""
        return self._request(request, JoinInfo, ANSWER_S, "describing the job")

    def join(
        self,
        join_info: JoinInfo,
        name: str,
        source: AgentClient,
        variables: Callable[[Prepared, dict[str, str]], dict[str, str]],
        python: str = "",
    ) -> Committed:
        """Join a running job in the slot `name`; contents that the host lacks come from the store of `source`.

        Args:
            join_info: The description of the job from `source`.
            name: The slot.
            source: Agent of a host where the job runs.
            variables: Returns the variables of the task, given those of the task on `source`.
            python: The host's interpreter; empty: the one in its settings.
        """
        commit = join_info.commit
        preparation = Prepare(
            job=commit.job,
            fleet=join_info.fleet,
            slot=name,
            entries=join_info.entries,
            address=self.host.private_address,
            python=python or self.host.python,
            join=True,
        )
        doing = "preparing the task"
        self.transport.send(preparation, doing=doing)
        need, _ = self.transport.receive(PREPARE_S, doing, long=True)
        if isinstance(need, NeedContents):
            self._pass_contents(need, source)
            answer = self._answer(Prepared, PREPARE_S, doing)
        else:
            answer = self.checked(need, Prepared)
        before = {member.slot: member for member in commit.members}
        task = before[name].task if name in before else ""  # a slot of `joinable` has none before it has joined
        members = [*{**before, name: answer.member._replace(task=task)}.values()]
        command = list(commit.command)
        if join_info.python and command[0] == join_info.python:
            command[0] = answer.python
        env = variables(answer, commit.env)
        return self.commit(commit._replace(slot=name, members=members, env=env, command=command))

    def _pass_contents(self, need: NeedContents, source: AgentClient) -> None:
        if not need.objects:
            return
        doing = "sending the job's files"
        source.transport.send(FetchContents(need.objects), doing=doing)
        chunk = Chunk(1)
        while chunk.payload:
            record, data = source.transport.receive(ANSWER_S, doing)
            chunk = source.checked(record, Chunk)
            self.transport.send(chunk, data, doing="receiving the job's files", deadline_s=ANSWER_S)

    def follow(self, request: Follow, silence_s: float = ANSWER_S) -> Iterator[tuple[Record, bytes]]:
        """Request past and new records of a task, and yield them until the agent has sent all.

        Args:
            request: The task to follow, and the position at which to start.
            silence_s: Longest time without a record, in seconds; a running agent sends Beat in between.
        """
        doing = "following the job"
        self.transport.send(request, doing=doing)
        while True:
            record, payload = self.transport.receive(silence_s, doing)
            if isinstance(record, End):
                return
            if isinstance(record, Refused):
                raise self.unexpected(record)
            yield record, payload

    def stop(self, request: Stop) -> Stopped:
        """Stop the whole job, of which the host runs a task."""
        return self._request(request, Stopped, request.grace_s + STOP_MARGIN_S, "stopping the job")

    def inspect(self, request: Inspect) -> list[JobReport]:
        """Return the reports of a host about its newest jobs, newest first."""
        doing = "reporting its jobs"
        self.transport.send(request, doing=doing)
        reports: list[JobReport] = []
        while (report := self._receive_report(doing)) is not None:
            if len(reports) == request.limit:
                raise self.unexpected(report)
            reports.append(report)
        return reports

    def _receive_report(self, doing: str) -> JobReport | None:
        """Return the next report; None: it was the last one."""
        record, _ = self.transport.receive(ANSWER_S, doing)
        if isinstance(record, End):
            return None
        report = self.checked(record, JobReport)
        if not is_report(report, self.host.name):
            raise self.unexpected(record)
        return report

    # --- the host -------------------------------------------------------------------------------------------------

    def release(self, request: Release) -> Released:
        """Stop all processes of the fleet on a host, and remove all of the fleet's files."""
        return self._request(request, Released, request.grace_s + _RELEASE_MARGIN_S, "removing the fleet's files")

    def bootstrap(self, request: Bootstrap, on_step: Callable[[BootstrapStep], None]) -> Bootstrapped:
        """Install missing packages on a host, and check whether its GPUs can be used.

        Closing the connection stops the installation.

        Args:
            request: The packages to install, and the number of GPUs that must be usable.
            on_step: Called with every step; the same step may be repeated.
        """
        return self._step_by_step(request, Bootstrapped, on_step, "getting ready")

    def smoke_test(self, request: SmokeTest, on_step: Callable[[BootstrapStep], None]) -> SmokeTestResult:
        """Run the prepared script alone until its first step; the host keeps no results.

        Closing the connection stops the script.

        Args:
            request: The program, and the time limit.
            on_step: Called at least every 5 seconds.
        """
        return self._step_by_step(request, SmokeTestResult, on_step, "running the script by itself")

    def _step_by_step(
        self, request: Record, answer: type[R], on_step: Callable[[BootstrapStep], None], doing: str
    ) -> R:
        """Send a request whose steps the host reports until it answers."""
        self.transport.send(request, doing=doing)
        while True:
            record, _ = self.transport.receive(STEP_S, doing)
            if not isinstance(record, BootstrapStep):
                return self.checked(record, answer)
            record = record._replace(step=one_line(record.step), detail=one_line(record.detail))
            doing = f"{record.step} ({record.detail})" if record.detail else record.step
            on_step(record)

    # --- answers --------------------------------------------------------------------------------------------------

    def _request(self, request: Record, answer: type[R], deadline_s: float, doing: str) -> R:
        self.transport.send(request, doing=doing)
        return self._answer(answer, deadline_s, doing)

    def _answer(self, kind: type[R], deadline_s: float, doing: str) -> R:
        record, _ = self.transport.receive(deadline_s, doing, long=kind is JoinInfo)
        return self.checked(record, kind)

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
        if isinstance(record, Refused):
            return refusal(self.host, record)
        steps = [Step("status"), _UP]
        return NotReadyError(
            f"{where(self.host)} sent an unexpected record: {name_of(record)}", next_steps=_of_fleet(self.host, steps)
        )


def refusal(host: Host, refused: Refused) -> FleetError:
    """Return the error of a request that a host refuses.

    The reason, the cause, and the hint are texts of the host. Commands are only those that this program defines.
    """
    hint, steps = _ADVICE[refused.kind]
    if refused.hint:
        hint, steps = f"{host.name} suggests: {one_line(refused.hint)}", ()
    lines = refused.next_step.splitlines()
    if lines and _COMMANDS.keys() >= set(lines):
        steps = tuple(_COMMANDS[line] for line in lines)
    error = RefusedError(
        f"{where(host)}: {one_line(refused.reason)}",
        cause=one_line(refused.cause),
        hint=hint,
        next_steps=_of_fleet(host, steps),
    )
    error.refused = refused
    return error


def _of_fleet(host: Host, steps: Sequence[NextStep]) -> Sequence[NextStep]:
    """Return the commands for a host, which work only if it is in a fleet."""
    return steps if host.address else ()


def is_report(report: JobReport, slot: str) -> bool:
    """Return whether a report can be about `slot`; the types of its fields were checked when it was decoded."""
    return (
        report.slot == slot
        and bool(NAME.fullmatch(report.job) and NAME.fullmatch(slot))
        and (report.task in {"", *(member.task for member in report.members)} or _is_joined(report))
        and all(is_task(member.task) for member in report.members if member.task)
        and min(report.attempt, report.attempts, report.log_size) >= 0
        and 0 <= report.started_at < LATEST
        and 0 <= (report.max_workers or 0) <= MOST_WORKERS
        and (not report.job_name or bool(JOB_NAME.fullmatch(report.job_name)))
        and (not report.queued_after or bool(NAME.fullmatch(report.queued_after)))
    )


def _is_joined(report: JobReport) -> bool:
    """Return whether a report can be about a worker that joined the running job."""
    kind, _, index = report.task.partition("-")
    return kind == "worker" and is_task(report.task) and int(index) < (report.max_workers or 0)


def _of(sent: int, total: int) -> str:
    return f"{sent / 1e6:.1f} of {total / 1e6:.1f} MB"
