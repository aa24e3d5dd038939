"""`fleet train`: push, prepare everywhere, start together, follow."""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fleet.commands.agents import ask, fleet_opened, stop_everywhere
from fleet.commands.follow import Followed, detached, follow, outcome_or_raise, until_running
from fleet.commands.interrupts import deferred_interrupt
from fleet.commands.policy import check_policy, most_attempts, on_fleet
from fleet.commands.repair import Rented, mending, open_whole
from fleet.config import for_fleet
from fleet.errors import CancelledError, FleetError, NotReadyError, UsageError
from fleet.events import JobStarted, Note, PushProgress, Sink, TaskPlanned, TaskPrepared
from fleet.ports import Ports
from fleet.state import FleetRecord
from train.agent.cluster import endpoint, tf_config
from train.agent.records import Commit, JobResult, Member, Policy, Prepare, Prepared, Replication
from train.keras import Choice, KerasError, choose, needs_legacy
from train.script import ScriptError, check_script, imports

if TYPE_CHECKING:
    from fleet.remote.bundle import Bundle, DataSource
    from fleet.remote.channel import AgentChannel

JOIN_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class TrainRequest:
    """What the user typed."""

    fleet: str
    script: str
    arguments: tuple[str, ...] = ()
    workdir: str = ""
    data: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    detach: bool = False
    dry_run: bool = False
    grace_s: float = 10.0
    spares: int = 0  # the last so many hosts get no task until another is lost
    policy: Policy = field(default_factory=Policy)
    preemptions: int | None = None  # so many losses of a host are no failures; None: as it suits the fleet
    host_timeout_s: float | None = None  # how long a lost host may take to come back; None: as it suits the fleet
    replication: Replication = field(default_factory=Replication)
    link_timeout_s: float = 10.0  # a host that is silent for so long is lost


@dataclass(frozen=True)
class TrainSummary:
    """The job that was started; `result` where it was followed to its end."""

    job: str
    result: JobResult | None = None


@dataclass(frozen=True)
class _Program:
    script: Path
    workdir: Path
    path: str  # of the script below workdir, with forward slashes
    bundle: Bundle

    @property
    def argument(self) -> str:
        """The script as an argument of its interpreter, which takes a leading hyphen for an option."""
        return f"./{self.path}" if self.path.startswith("-") else self.path


def job_id(now: float) -> str:
    """A name for a job that sorts by time: ``20261121-094500-k3f9``."""
    letters = "abcdefghijkmnpqrstuvwxyz23456789"
    suffix = "".join(secrets.choice(letters) for _ in range(4))
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime(now)) + f"-{suffix}"


def run(request: TrainRequest, ports: Ports, sink: Sink) -> TrainSummary:
    """Start a job on all hosts of a fleet, and follow it unless asked not to.

    Raises:
        UsageError: the script or an option is wrong; nothing was started.
        NotFoundError: there is no such fleet.
        NotReadyError: a host cannot run the job; all reasons are given and nothing was started.
        UnreachableError: a host does not answer.
        JobFailedError: the job failed.
        JobNotFinished: Ctrl-C; the job goes on.
        CancelledError: Ctrl-C before anything was started, or the job was stopped.
    """
    from fleet.remote.bundle import parse_data

    script = _checked(Path(request.script))
    data = [parse_data(item) for item in request.data]
    folder, record = ports.store.need(request.fleet)
    request = _on_fleet(request, record)
    check_policy(
        request.policy, spares=request.spares, hosts=len(record.hosts), link_timeout_s=request.link_timeout_s
    )
    program = _program(request, script, data, ports)
    with contextlib.ExitStack() as stack:
        stack.enter_context(program.bundle)
        lock = stack.enter_context(contextlib.ExitStack())
        lock.enter_context(ports.store.lock(request.fleet, f"train {request.script}"))
        sink.emit(fleet_opened(record))
        fleet = Rented(record, folder, ports, "train")
        record, channels = stack.enter_context(open_whole(fleet, sink))
        try:
            job = job_id(ports.clock())
            prepared = _prepare(request, record, job, program, channels, sink)
            choice = _keras(request, program, prepared)
            if choice.note:
                sink.emit(Note(choice.note))
            commits = _commits(request, job, program, prepared, choice)
            if request.dry_run:
                _show(record, prepared, commits, sink)
                return TrainSummary(job="")
        except KeyboardInterrupt:
            raise _nothing_started() from None
        try:
            with deferred_interrupt():
                _commit(channels, commits, request.grace_s)
                record = dataclasses.replace(record, last_job=job, last_script=program.path)
                folder.write(record)
            lock.close()
            fleet = dataclasses.replace(fleet, record=record)
            return _followed(request, fleet, channels, commits, sink)
        except KeyboardInterrupt:
            raise (detached(job) if record.last_job == job else _nothing_started()) from None


def _on_fleet(request: TrainRequest, record: FleetRecord) -> TrainRequest:
    policy = on_fleet(
        request.policy,
        record.spec.cloud,
        preemptions=request.preemptions,
        host_timeout_s=request.host_timeout_s,
    )
    return dataclasses.replace(request, policy=policy)


def _nothing_started() -> CancelledError:
    return CancelledError("interrupted; nothing was started", next_step="fleet train again")


def _checked(script: Path) -> Path:
    try:
        return check_script(script)
    except ScriptError as error:
        raise UsageError(error.sentence, cause=error.cause, next_step=error.next_step) from error


def _program(request: TrainRequest, script: Path, data: Sequence[DataSource], ports: Ports) -> _Program:
    from fleet.remote.bundle import scan

    workdir = (Path(request.workdir) if request.workdir else script.parent).expanduser().resolve()
    if not workdir.is_dir():
        raise UsageError(f"--workdir {request.workdir} is no folder", next_step="name the script's folder")
    try:
        path = script.resolve().relative_to(workdir).as_posix()
    except ValueError:
        raise UsageError(
            f"{request.script} is outside the folder to push, {workdir}",
            next_step="leave --workdir out, or name a folder that holds the script",
        ) from None
    bundle = scan(workdir, script.resolve(), data=data, cache=ports.store.hashes, state=ports.store.root)
    return _Program(script.resolve(), workdir, path, bundle)


def _prepare(
    request: TrainRequest,
    record: FleetRecord,
    job: str,
    program: _Program,
    channels: Sequence[AgentChannel],
    sink: Sink,
) -> list[Prepared]:
    from fleet.remote.job import prepare

    def one(channel: AgentChannel) -> Prepared:
        host = channel.connection.host

        def progress(sent: int, total: int, files: int) -> None:
            sink.emit(PushProgress(host.name, sent, total, files))

        wish = Prepare(
            job=job,
            fleet=record.spec.name,
            task=host.name,
            entries=list(program.bundle.entries),
            address=host.private_address,
            python=host.python,
            dry_run=request.dry_run,
        )
        return prepare(channel, wish, program.bundle, progress)

    prepared = ask(channels, one, "prepare the job")
    for item in prepared:
        gpus = tuple(gpu.name for gpu in item.gpus)
        sink.emit(TaskPrepared(item.task, endpoint(item.member.address, item.member.port), item.versions, gpus))
    return prepared


def _workers(request: TrainRequest, prepared: Sequence[Prepared]) -> Sequence[Prepared]:
    """Those that get a task at once."""
    return prepared[: len(prepared) - request.spares]


def _keras(request: TrainRequest, program: _Program, prepared: Sequence[Prepared]) -> Choice:
    sources = {
        path.relative_to(program.workdir).as_posix(): path.read_bytes()
        for path in imports(program.script, program.workdir)
    }
    versions = {item.task: item.versions for item in prepared}
    workers = {item.task: item.versions for item in _workers(request, prepared)}
    env = {**request.env, **request.secrets}
    try:
        need = needs_legacy(sources)
        choice = choose(need, workers, env)
        if choice.env or len(workers) > 1:
            choose(need, versions, env)  # a spare must be able to take over
    except KerasError as error:
        raise NotReadyError(error.sentence, cause=error.cause, next_step=error.next_step) from error
    return choice


def _commits(
    request: TrainRequest,
    job: str,
    program: _Program,
    prepared: Sequence[Prepared],
    choice: Choice,
) -> list[Commit]:
    members: list[Member] = [item.member for item in prepared]
    secret = secrets.token_hex(32)
    return [
        Commit(
            job=job,
            task=item.task,
            members=members,
            secret=secret,
            command=[item.python, program.argument, *request.arguments],
            env={**choice.env, **request.env},
            secret_env=request.secrets,
            grace_s=request.grace_s,
            join_timeout_s=JOIN_TIMEOUT_S,
            link_timeout_s=request.link_timeout_s,
            policy=request.policy,
            replication=request.replication,
            spares=[spare.task for spare in prepared[len(prepared) - request.spares :]],
        )
        for item in prepared
    ]


def _show(record: FleetRecord, prepared: Sequence[Prepared], commits: Sequence[Commit], sink: Sink) -> None:
    for item, commit, host in zip(prepared, commits, record.hosts, strict=True):
        spare = item.task in commit.spares
        members = [member for member in commit.members if member.task not in commit.spares]
        sink.emit(
            TaskPlanned(
                task=item.task,
                host=host.address,
                tf_config="" if spare else tf_config(members, item.task),
                command=shlex.join(commit.command),
                env=commit.env,
                spare=spare,
            )
        )


def _commit(channels: Sequence[AgentChannel], commits: Sequence[Commit], grace_s: float) -> None:
    """Commit on all hosts; where one cannot, the others are stopped again.

    Raises:
        FleetError: a host could not take the commit; nothing runs.
    """
    from fleet.remote.job import commit

    by_host = dict(zip((channel.connection.host.name for channel in channels), commits, strict=True))
    try:
        ask(channels, lambda channel: commit(channel, by_host[channel.connection.host.name]), "start the job")
    except FleetError:
        stop_everywhere(channels, commits[0].job, grace_s)
        raise


def _followed(
    request: TrainRequest,
    fleet: Rented,
    channels: Sequence[AgentChannel],
    commits: Sequence[Commit],
    sink: Sink,
) -> TrainSummary:
    first, record = commits[0], fleet.record
    attempts = most_attempts(request.policy)
    sink.emit(
        JobStarted(
            job=first.job,
            script=record.last_script,
            attempt=first.attempt,
            members=tuple(first.members),
            started_at=fleet.ports.clock(),
            spares=tuple(first.spares),
            attempts=attempts,
        )
    )
    followed = Followed(
        folder=fleet.folder,
        record=record,
        job=first.job,
        channels=tuple(channels),
        members=tuple(first.members),
        spares=tuple(first.spares),
        attempts=attempts,
    )
    if request.detach:
        ended = until_running(dataclasses.replace(followed, logs=False), sink)
        if ended.result is not None:
            outcome_or_raise(ended)
        text = f"job {first.job} runs; `fleet logs -f` shows it, `fleet stop` ends it"
        sink.emit(Note(for_fleet(text, request.fleet)))
        return TrainSummary(job=first.job)
    with mending(fleet, sink, request.policy.host_timeout_s) as mender:
        ended = follow(dataclasses.replace(followed, mender=mender), sink)
    result = outcome_or_raise(ended)
    return TrainSummary(job=first.job, result=result)
