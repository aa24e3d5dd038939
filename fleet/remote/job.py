"""Send requests about one job to the agent of a host."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from fleet.errors import FleetError, NotReadyError
from fleet.remote.channel import ANSWER_S, AgentChannel
from fleet.remote.fanout import where
from fleet.remote.quoting import one_line
from fleet.remote.upload.bundle import Bundle, compress
from fleet.steps import Step
from provision.model import Host
from train.agent.protocol.cluster import is_task
from train.agent.protocol.records import (
    Chunk,
    Commit,
    Committed,
    End,
    Follow,
    Give,
    Inspect,
    Invitation,
    Invite,
    JobReport,
    Leave,
    Left,
    Prepare,
    Prepared,
    Record,
    Refusal,
    Refused,
    Stop,
    Stopped,
    Want,
    name_of,
)


class RefusedError(NotReadyError):
    """A host refused a request; a retry does not help."""


PREPARE_S = 120.0
"""Longest time for a host to unpack the bundle and inspect its interpreter, in seconds."""

_STOP_MARGIN_S = 20.0
_LEAVE_MARGIN_S = 60.0

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""Pattern of the names of jobs and tasks."""

LATEST = float(1 << 40)
"""Latest valid time in a report of a host, in seconds since the epoch."""

_LOGS, _STOP, _STATUS = Step("logs", "-f"), Step("stop"), Step("status")
_COMMANDS = {step.text(): step for step in (_LOGS, _STOP, _STATUS)}  # commands that a host may recommend
_ADVICE: dict[Refusal, tuple[str, tuple[Step, ...]]] = {  # hint and next step of a refusal without its own
    Refusal.BUSY: ("", (_LOGS, _STOP)),
    Refusal.DISK: ("free space on the host, or send less (--workdir, .fleetignore)", ()),
    Refusal.PYTHON: ("install Python and TensorFlow on the host", ()),
    Refusal.PORT: ("", (_STATUS,)),
    Refusal.BUNDLE: ("run the command again", ()),
    Refusal.REQUEST: ("", (_STATUS,)),
    Refusal.PACKAGES: ("correct the list of packages", ()),
    Refusal.GPU: ("", (Step("down"), Step("up"))),
    Refusal.PROGRAM: ("install it on the host", ()),
    Refusal.FAULT: ("", (_STATUS,)),
}


def prepare(
    channel: AgentChannel, request: Prepare, bundle: Bundle, on_progress: Callable[[int, int, int], None]
) -> Prepared:
    """Prepare the task on a host, and send the contents that the host lacks.

    Args:
        channel: Connection to the host's agent, which holds the reservation until commit or close.
        request: The request.
        bundle: Source of the contents.
        on_progress: Called with the bytes sent and the bytes to send, both before compression, and the number of
            contents among them.

    Raises:
        RefusedError: the host refuses.
        UnreachableError: the host does not answer, or the connection broke.
        UsageError: a file has changed since the bundle was scanned.
    """
    channel.send(request, doing="sending what to prepare")
    answer = _answer(channel, PREPARE_S, "preparing the task", Want, Prepared)
    if isinstance(answer, Want):
        _send_contents(channel, answer, bundle, on_progress)
        answer = _answer(channel, PREPARE_S, "preparing the task", Prepared)
    assert isinstance(answer, Prepared)  # noqa: S101 - _answer only returns this type
    return answer


def look(channel: AgentChannel, request: Prepare) -> Prepared:
    """Return the facts about a host that matter to a task; a dry run requests only these.

    Raises:
        RefusedError: the host cannot run the task.
        UnreachableError: the host does not answer, or the connection broke.
    """
    channel.send(request, doing="asking for what is there")
    answer = _answer(channel, PREPARE_S, "looking at what is there", Prepared)
    assert isinstance(answer, Prepared)  # noqa: S101 - _answer only returns this type
    return answer


def _send_contents(
    channel: AgentChannel, want: Want, bundle: Bundle, on_progress: Callable[[int, int, int], None]
) -> None:
    on_progress(0, want.size, len(want.objects))
    if not want.objects:
        return
    sent = 0
    for piece in compress(bundle, want.objects).pieces():
        _send_chunk(channel, piece.data, f"receiving the script ({_of(sent, want.size)} sent)")
        sent = piece.raw_end
        on_progress(sent, want.size, len(want.objects))
    _send_chunk(channel, b"", "receiving the script (all of it sent)")


def _send_chunk(channel: AgentChannel, data: bytes, doing: str) -> None:
    """Send a chunk, unless the host has refused the rest in the meantime."""
    if not channel.has_input:
        try:
            channel.send(Chunk(len(data)), data, doing=doing, deadline_s=ANSWER_S)
        except NotReadyError:
            if not channel.has_input:
                raise
        else:
            return
    record, _ = channel.receive(ANSWER_S, doing)
    raise unexpected(channel.connection.host, record)


def _of(sent: int, total: int) -> str:
    return f"{sent / 1e6:.1f} of {total / 1e6:.1f} MB"


def commit(channel: AgentChannel, request: Commit) -> Committed:
    """Start the prepared task, together with its peers.

    Raises:
        RefusedError: the host refuses.
        UnreachableError: the host does not answer, or the connection broke; the task may have been started.
    """
    channel.send(request, doing="sending the cluster spec")
    answer = _answer(channel, request.join_timeout_s + ANSWER_S, "starting the task", Committed)
    assert isinstance(answer, Committed)  # noqa: S101 - _answer only returns this type
    return answer


def invite(channel: AgentChannel, request: Invite) -> Invitation:
    """Return the data that another host needs to take over a slot of a job, of which this host runs a task.

    Raises:
        RefusedError: the job does not run on this host.
        UnreachableError: the host does not answer, or the connection broke.
    """
    doing = "telling of the job"
    channel.send(request, doing=doing)
    answer = _answer(channel, ANSWER_S, doing, Invitation)
    assert isinstance(answer, Invitation)  # noqa: S101 - _answer only returns this type
    return answer


def join(
    channel: AgentChannel,
    invitation: Invitation,
    name: str,
    giver: AgentChannel,
    variables: Callable[[Prepared, dict[str, str]], dict[str, str]],
    python: str = "",
) -> Committed:
    """Let a host take over the slot `name` in a running job; contents that it lacks come from the store of `giver`.

    Args:
        channel: Connection to the agent of the host.
        invitation: The description of the job from `giver`.
        name: The slot.
        giver: Connection to the agent of a host where the job runs.
        variables: Returns the variables of the task, given those of the task on `giver`.
        python: The host's interpreter; empty: the one in its settings.

    Raises:
        RefusedError: one of the two hosts refuses.
        UnreachableError: one of the two hosts does not answer, or a connection broke.
    """
    host = channel.connection.host
    commit_of = invitation.commit
    preparation = Prepare(
        job=commit_of.job,
        fleet=invitation.fleet,
        slot=name,
        entries=invitation.entries,
        address=host.private_address,
        python=python or host.python,
        join=True,
    )
    channel.send(preparation, doing="sending what to prepare")
    answer = _answer(channel, PREPARE_S, "preparing the task", Want, Prepared)
    if isinstance(answer, Want):
        _hand_over(answer, giver, channel)
        answer = _answer(channel, PREPARE_S, "preparing the task", Prepared)
    assert isinstance(answer, Prepared)  # noqa: S101 - _answer only returns this type
    members = [
        answer.member._replace(task=member.task) if member.slot == name else member for member in commit_of.members
    ]
    env = variables(answer, commit_of.env)
    command = list(commit_of.command)
    if invitation.python and command[0] == invitation.python:
        command[0] = answer.python
    return commit(channel, commit_of._replace(slot=name, members=members, env=env, command=command))


def _hand_over(want: Want, giver: AgentChannel, taker: AgentChannel) -> None:
    if not want.objects:
        return
    doing = "giving the job's files"
    giver.send(Give(want.objects), doing=doing)
    chunk = Chunk(1)
    while chunk.payload:
        record, data = giver.receive(ANSWER_S, doing)
        if not isinstance(record, Chunk):
            raise unexpected(giver.connection.host, record)
        taker.send(record, data, doing="receiving the job's files", deadline_s=ANSWER_S)
        chunk = record


def stop(channel: AgentChannel, request: Stop) -> Stopped:
    """Stop the whole job, of which the host runs a task.

    Raises:
        RefusedError: the host refuses.
        UnreachableError: the host does not answer, or the connection broke.
    """
    channel.send(request, doing="sending the order to stop")
    answer = _answer(channel, request.grace_s + _STOP_MARGIN_S, "stopping the job", Stopped)
    assert isinstance(answer, Stopped)  # noqa: S101 - _answer only returns this type
    return answer


def leave(channel: AgentChannel, request: Leave) -> Left:
    """Stop all processes of the fleet on a host, and remove all of the fleet's files.

    Raises:
        RefusedError: a file cannot be removed.
        UnreachableError: the host does not answer, or the connection broke.
    """
    channel.send(request, doing="sending the order to leave")
    answer = _answer(channel, request.grace_s + _LEAVE_MARGIN_S, "removing the fleet's files", Left)
    assert isinstance(answer, Left)  # noqa: S101 - _answer only returns this type
    return answer


def inspect(channel: AgentChannel, request: Inspect) -> list[JobReport]:
    """Return the reports of a host about its newest jobs, newest first.

    Raises:
        RefusedError: the host refuses.
        UnreachableError: the host does not answer, or the connection broke.
    """
    doing = "reporting its jobs"
    channel.send(request, doing=doing)
    reports: list[JobReport] = []
    while isinstance(answer := _answer(channel, ANSWER_S, doing, JobReport, End), JobReport):
        if len(reports) == request.limit or not is_report(answer, channel.connection.host.name):
            raise unexpected(channel.connection.host, answer)
        reports.append(answer)
    return reports


def is_report(report: JobReport, slot: str) -> bool:
    """Return whether a report can be about `slot`; the types of its fields were checked when it was decoded."""
    return (
        report.slot == slot
        and bool(NAME.fullmatch(report.job) and NAME.fullmatch(slot))
        and report.task in {"", *(member.task for member in report.members)}
        and all(is_task(member.task) for member in report.members if member.task)
        and min(report.attempt, report.attempts, report.log_size) >= 0
        and 0 <= report.started_at < LATEST
    )


def follow(channel: AgentChannel, request: Follow, silence_s: float = ANSWER_S) -> Iterator[tuple[Record, bytes]]:
    """Yield past and new records of a task until the agent has sent all of them.

    Args:
        channel: Connection to the host's agent.
        request: The task to follow, and the position at which to start.
        silence_s: Longest time without a record, in seconds; a running agent sends Beat in between.

    Raises:
        RefusedError: the host refuses.
        NotReadyError: the agent ended.
        UnreachableError: no record arrived, or the connection broke.
    """
    doing = "following the job"
    channel.send(request, doing=doing)
    while True:
        record, payload = channel.receive(silence_s, doing)
        if isinstance(record, End):
            return
        if isinstance(record, Refused):
            raise refusal(channel.connection.host, record)
        yield record, payload


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
    return RefusedError(
        f"{where(host)}: {one_line(refused.reason)}", cause=one_line(refused.cause), hint=hint, next_steps=steps
    )


def _answer(channel: AgentChannel, deadline_s: float, waiting_for: str, *kinds: type[Record]) -> Record:
    record, _ = channel.receive(deadline_s, waiting_for, long=Want in kinds or Invitation in kinds)
    if isinstance(record, kinds):
        return record
    raise unexpected(channel.connection.host, record)


def unexpected(host: Host, record: Record) -> FleetError:
    """Return the error of an answer that does not match the request, which may be a refusal."""
    if isinstance(record, Refused):
        return refusal(host, record)
    return NotReadyError(
        f"{where(host)} answered {name_of(record)} out of turn", next_steps=[Step("down"), Step("up")]
    )
