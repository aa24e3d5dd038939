"""`fleet agent`: a job of processes that a batch system has started, one on each node, without SSH.

Each process prepares its node, and the processes exchange their reservations (train.rendezvous). Then each commits
the same job to the agent on its node, and the agents continue as for `fleet train`. The script runs in its
directory: on a cluster that directory is shared, holds the data, and receives the results.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import typer

from fleet.cli import options
from fleet.cli.application import command
from fleet.cli.options import RENDEZVOUS, TIME, Duration, Output, argument, option, parse_count
from fleet.cli.program import ENV, NO_ADAPT
from fleet.cli.runtime import session
from fleet.errors import CancelledError, FleetError, NotReadyError, UsageError, translate, translate_errors
from fleet.events import JobStarted, Level, Note, Sink
from fleet.jobs.evidence import Evidence
from fleet.jobs.following.follow import Ended
from fleet.jobs.following.outcome import outcome_or_raise
from fleet.jobs.local_task import Copies, Directories, LocalTask, mark, tidy
from fleet.jobs.policy import check_policy, preemption_notices
from fleet.jobs.selection import job_id
from fleet.remote.client import AgentClient
from fleet.remote.local import open_local_agent
from fleet.remote.publication import publish
from fleet.steps import DEFAULT_FLEET, Shell
from provision.allocation.ranks import Given, Launch, find_launch
from train.agent.host.processes import boot_id
from train.agent.protocol import records
from train.agent.protocol.records import Policy, RestartPolicy
from train.defaults import GRACE_S, LINK_TIMEOUT_S, RENDEZVOUS_TIMEOUT_S
from train.errors import KerasError, RendezvousError
from train.lint.linter import job_tf_config
from train.rendezvous.contract import LOOPBACK, AbandonedError, Participants, Value, address_of_node
from train.rendezvous.tcp import SECRET_VARIABLE, TcpRendezvous
from train.script.keras import Choice, choose, needs_legacy, versions_of, with_adaptations
from train.script.source import check_script, imports

_PREPARED_S = 150.0
_COMMITTED_S = 60.0
_COLLECT_S = 10.0
_SECRET_LENGTH = 16


@dataclass(frozen=True)
class AgentRequest:
    """Request of the command.

    Attributes:
        script: The training script, relative to the directory where it runs.
        arguments: Arguments of the script.
        workdir: Directory where it runs; empty: the current one, or that from which the job was submitted.
        python: Interpreter of the script; empty: determined automatically.
        env: Variables of the script.
        adapt: Interpreters are adapted to scripts for older TensorFlow.
        grace_s: Seconds between SIGTERM and SIGKILL when the job is stopped.
        policy: Reaction of the job to failures.
        checkpoint_dir: Directory for the script's checkpoints; empty: a directory of the job.
        rendezvous: Directory, or ``tcp://HOST:PORT``, of the rendezvous; empty: a directory next to the script.
        secret_file: File with the secret of a rendezvous at an address; empty: the variable has it.
        address: Address at which the others reach this node; empty: determined automatically.
        wait_s: How long to wait for the other processes, in seconds.
        given: Identity of this process, as far as the user sets it.
    """

    script: str
    arguments: tuple[str, ...] = ()
    workdir: str = ""
    python: str = ""
    env: dict[str, str] = field(default_factory=dict)
    adapt: bool = True
    grace_s: float = GRACE_S
    policy: records.Policy = field(default_factory=records.Policy)
    checkpoint_dir: str = ""
    rendezvous: str = ""
    secret_file: str = ""
    address: str = ""
    wait_s: float = RENDEZVOUS_TIMEOUT_S
    given: Given = field(default_factory=Given)


@dataclass(frozen=True)
class _Script:
    directory: Path
    file: Path
    argument: str  # of its interpreter, which reads a leading hyphen as an option


def run(request: AgentRequest, environ: Mapping[str, str], sink: Sink) -> int:
    """Take part in a job, to its end.

    Returns:
        The exit code; only the process with rank 0 reports an error that concerns all processes.

    Raises:
        UsageError: the command line or the script is wrong; nothing was started.
        NotReadyError: the processes do not come together, or this node cannot run the job; nothing was started.
        JobFailedError: the job failed, and this is rank 0.
        CancelledError: a signal stopped the job, and this is rank 0; or nothing was started.
    """
    with translate_errors():
        launch = find_launch(request.given, environ)
    script = _script(request, launch)
    with _claim_rank(launch) as only:
        if not only:
            sink.emit(Note(f"duplicate process for rank {launch.rank} on this node; exiting"))
            return 0
        try:
            with translate_errors():
                return _participate(request, launch, script, sink, environ)
        except KeyboardInterrupt:
            raise CancelledError("interrupted; nothing was started") from None


def _participate(
    request: AgentRequest, launch: Launch, script: _Script, sink: Sink, environ: Mapping[str, str]
) -> int:
    """Run this process with the others, and report its failure to them.

    Returns:
        The exit code, also if another process reports the error.
    """
    try:
        with _open_rendezvous(request, launch, script, environ) as rendezvous:
            try:
                return _Process(request, launch, script, rendezvous, sink, environ).run()
            except (RendezvousError, FleetError) as error:
                if not isinstance(error, AbandonedError):
                    rendezvous.abandon(error.message, getattr(error, "exit_code", NotReadyError.exit_code))
                raise
            except KeyboardInterrupt:
                rendezvous.abandon("it was interrupted", CancelledError.exit_code)
                raise
    except AbandonedError as error:
        return error.code


def _script(request: AgentRequest, launch: Launch) -> _Script:
    directory = Path(request.workdir or launch.directory or ".").expanduser().absolute()
    if not directory.is_dir():
        raise UsageError(
            f"directory {directory} does not exist on this node",
            hint="name a directory that all nodes have: --workdir DIR",
        )
    with translate_errors():
        file = check_script(directory / request.script)
    name = request.script
    return _Script(directory, file, f"./{name}" if name.startswith("-") else name)


@contextlib.contextmanager
def _claim_rank(launch: Launch) -> Iterator[bool]:
    """Return True for one process of each rank; a batch system may start one per slot of a node."""
    if not launch.shared:
        yield True
        return
    with socket.socket(socket.AF_UNIX) as name:
        try:
            name.bind(f"\0fleet-agent-{os.getuid()}-{launch.job}-{launch.rank}")
        except OSError:
            yield False
        else:
            yield True


@contextlib.contextmanager
def _open_rendezvous(
    request: AgentRequest, launch: Launch, script: _Script, environ: Mapping[str, str]
) -> Iterator[TcpRendezvous]:
    """Open the rendezvous with all other processes."""
    nodes = launch.nodes if launch.node(0) or not launch.size else ()
    participants = Participants(launch.rank, launch.size, nodes)
    if request.rendezvous.startswith("tcp://"):
        from train.rendezvous.tcp import join_tcp, parse_address

        host, port = parse_address(request.rendezvous, launch.nodes[0] if launch.nodes else "")
        rendezvous = join_tcp(host, port, participants, _secret(request, environ), request.wait_s)
    else:
        from train.rendezvous.directory import join_directory

        if not request.rendezvous and not launch.job:
            raise UsageError(
                "no rendezvous is given",
                hint="name a directory that all nodes share, --rendezvous DIR, or an address, --rendezvous tcp://HOST:PORT",
            )
        directory = script.directory / (
            Path(request.rendezvous).expanduser() if request.rendezvous else f".fleet-{launch.job}"
        )
        rendezvous = join_directory(directory, participants, request.wait_s, request.address)
    try:
        yield rendezvous
    finally:
        rendezvous.close()


def _secret(request: AgentRequest, environ: Mapping[str, str]) -> str:
    secret = environ.get(SECRET_VARIABLE, "")
    if request.secret_file:
        try:
            secret = Path(request.secret_file).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"the secret file {request.secret_file} cannot be read") from error
    if len(secret.strip()) < _SECRET_LENGTH:
        raise UsageError(
            f"a TCP rendezvous requires a secret of at least {_SECRET_LENGTH} characters",
            cause="without it, anyone who can reach the port could join the job",
            hint="set the same secret for all processes, before srun",
            next_steps=[Shell(f"export {SECRET_VARIABLE}=$(openssl rand -hex 16)")],
        )
    return secret.strip()


@dataclass
class _Process:
    """One process of the job, on this node.

    Args:
        request: What the user typed.
        launch: Identity of this process.
        script: The script to run.
        rendezvous: Rendezvous with the other processes.
        sink: Takes the events.
        environ: Of this process.
    """

    request: AgentRequest
    launch: Launch
    script: _Script
    rendezvous: TcpRendezvous
    sink: Sink
    environ: Mapping[str, str]

    def __post_init__(self) -> None:
        self._rank = self.launch.rank
        self._task = f"worker-{self._rank}"
        self._leads = self._rank == 0
        self._node = self.launch.node(self._rank) or socket.gethostname()
        self._hosts: list[str] = []
        self._is_single_host = False
        self._job = ""
        self._mark: Path | None = None  # of rank 0

    def run(self) -> int:
        """Take part from the rendezvous to the end of the job; return the exit code."""
        try:
            return self._run()
        finally:
            self._unmark()
            if self._job:
                tidy(self.script.directory / self._job)

    def _run(self) -> int:
        from train.pack import build_agent

        digest = build_agent().digest
        copies = self._agree(digest)
        env = {name: value for name, value in self.environ.items() if name != SECRET_VARIABLE}
        with (
            tempfile.TemporaryDirectory(prefix="fleet-", ignore_cleanup_errors=True) as root,
            open_local_agent(self._node, Path(root), digest, env) as agent,
            Directories(self.script.directory / self._job, self._task) as directories,
        ):
            prepared = self._prepare(agent, copies)
            commit = self._commit(prepared, copies.replication, directories.env)
            task = LocalTask(agent, commit)
            self._start(task, commit)
            try:
                result = task.follow(self.sink, leads=self._leads)
            except BaseException:
                task.give_up()
                raise
            return self._end(task, commit, result)

    def _unmark(self) -> None:
        if self._mark is not None:
            self._mark.unlink(missing_ok=True)

    # --- coming together --------------------------------------------------------------------------------------------

    def _agree(self, digest: str) -> Copies:
        """Agree with the other processes on the program, the name of the job, and its checkpoint directory.

        Raises:
            NotReadyError: the processes differ.
        """
        check_policy(self.request.policy, spares=0, hosts=self.rendezvous.size, link_timeout_s=LINK_TIMEOUT_S)
        mine: Value = {
            "host": socket.gethostname(),
            "boot": boot_id(),
            "version of fleet": digest,
            "command line": [self.request.script, *self.request.arguments],
            f"content of {self.request.script}": hashlib.sha256(self.script.file.read_bytes()).hexdigest(),
        }
        if self._leads:
            self._job = f"fleet-{self.launch.job}" if self.launch.job else job_id(time.time())
            self._mark = mark(self.request.checkpoint_dir, self.script.directory, self._job)
            mine |= {"job": self._job, "mark": self._mark.name if self._mark else ""}
        values = self.rendezvous.gather("hello", mine, self.request.wait_s)
        self._job = str(values[0]["job"])
        self._hosts = [str(value["host"]) for value in values]
        self._is_single_host = len({(value["host"], value["boot"]) for value in values}) == 1
        for key in sorted(mine.keys() - {"host", "boot", "job", "mark"}):
            others = [rank for rank, value in enumerate(values) if value.get(key) != values[0].get(key)]
            if others:
                name = self._participants.names(others)
                raise self._shared_error(
                    NotReadyError(f"the {key} on {name} is not that of {self._participants.name(0)}")
                )
        return Copies(self.request.checkpoint_dir, self.script.directory, self._job, str(values[0]["mark"]))

    @property
    def _participants(self) -> Participants:
        return Participants(self._rank, self.rendezvous.size, tuple(self._hosts))

    def _shared_error(self, error: FleetError) -> Exception:
        """Return the error to raise if all processes see it: rank 0 alone reports it."""
        return error if self._leads else AbandonedError(self._participants.name(0), error.message, error.exit_code)

    def _address(self) -> str:
        if self._is_single_host:
            return self.request.address or LOOPBACK
        nodes = self.launch.nodes or self._hosts
        hostname = self.launch.node(self._rank) or socket.gethostname()
        address = self.request.address or self.rendezvous.address or address_of_node(hostname, nodes)
        if not address:
            raise NotReadyError(
                f"cannot determine the address of {self._node}",
                cause=f"{', '.join(name for name in nodes if name != hostname)} cannot be looked up here",
                hint="give the address of this node: --address ADDRESS",
            )
        return address

    def _prepare(self, agent: AgentClient, copies: Copies) -> list[records.Prepared]:
        prepared = agent.prepare(
            records.Prepare(
                job=self._job,
                fleet=self._job,
                slot=self._task,
                entries=[],
                address=self._address(),
                python=self.request.python,
                directory=str(self.script.directory),
            )
        )
        mine = {"prepared": records.to_dict(prepared), "sees": copies.shared()}
        values = self.rendezvous.gather("prepared", mine, _PREPARED_S)
        self._unmark()
        blind = [rank for rank, value in enumerate(values) if not value["sees"]]
        if 0 < len(blind) < len(values) - 1:
            seen = self._participants.names([rank for rank in range(len(values)) if rank not in blind])
            error = NotReadyError(
                f"the checkpoint directory is shared by {seen}, but not by {self._participants.names(blind)}",
                hint="name a directory that all nodes share, or none: --checkpoint-dir PATH",
            )
            raise self._shared_error(error)
        copies.decide(shared=not blind)
        return [records.build(records.Prepared, value["prepared"]) for value in values]

    def _commit(
        self, prepared: Sequence[records.Prepared], copied: records.Replication, outputs: dict[str, str]
    ) -> records.Commit:
        choice = self._keras(prepared)
        if choice.note and self._leads:
            self.sink.emit(Note(choice.note))
        return records.Commit(
            job=self._job,
            slot=self._task,
            members=[item.member._replace(task=item.member.slot) for item in prepared],
            secret=self.rendezvous.secret,
            command=[prepared[self._rank].python, self.script.argument, *self.request.arguments],
            env={"PWD": str(self.script.directory), **choice.env, **outputs, **self.request.env},
            secret_env={},
            grace_s=self.request.grace_s,
            policy=self.request.policy,
            replication=copied,
            name=self.request.script,
            preemption_notices=preemption_notices(),
        )

    def _keras(self, prepared: Sequence[records.Prepared]) -> Choice:
        directory = self.script.directory
        sources = {str(path): path.read_bytes() for path in imports(self.script.file, directory)}
        versions = {item.member.slot: versions_of(item) for item in prepared}
        try:
            need, adapt = needs_legacy(sources), self.request.adapt
            choice = choose(need, versions, self.request.env, adapt=adapt)
            tf_config = job_tf_config(
                {os.path.relpath(path, directory): sources[path].decode("utf-8", "replace") for path in sources}
            )
            return with_adaptations(choice, need, len(prepared), adapt=adapt, tf_config=tf_config)
        except KerasError as error:
            raise self._shared_error(translate(error)) from error

    def _start(self, task: LocalTask, commit: records.Commit) -> None:
        """Commit here and on all other nodes; if one cannot, nothing starts."""
        task.start()
        try:
            self.rendezvous.gather("committed", {}, _COMMITTED_S)
        except BaseException:
            task.give_up()
            raise
        if self._leads:
            self.sink.emit(
                JobStarted(
                    job=self._job,
                    script=self.request.script,
                    attempt=1,
                    members=publish(commit.members),
                    started_at=time.time(),
                    attempts=self.request.policy.max_attempts,
                )
            )

    # --- the end ----------------------------------------------------------------------------------------------------

    def _end(self, task: LocalTask, commit: records.Commit, result: records.JobResult) -> int:
        """Report how the job ended; after a failure, find the first cause with the other processes."""
        ended_well = result.outcome is records.Outcome.SUCCEEDED
        ran = result.started or ended_well
        local: Value = {"stopped_by": task.stopped_by, "evidence": task.evidence(log=not ended_well) if ran else {}}
        if not self._leads:
            self.rendezvous.send_to_rank_0("end", local)
        try:
            cause, values = None, [local]
            if self._leads and ran and not task.stopped_by:
                values += self.rendezvous.collect("end", _COLLECT_S).values()
            # A scheduler signals one node after the other: the job may end before the signal arrives at rank 0.
            stopped_by = next((str(value["stopped_by"]) for value in values if value.get("stopped_by")), "")
            if stopped_by and not ended_well:
                raise CancelledError(f"job {self._job} was stopped by {stopped_by}")
            if self._leads:
                evidence = Evidence(commit.members)
                for value in values:
                    evidence.merge(value.get("evidence") or {})
                cause = evidence.verdict(result) if ran and not ended_well else None
                self.sink.emit(publish(result))
                warning = evidence.independence_warning(result) if ran else ""
                if warning:
                    self.sink.emit(Note(warning, Level.WARNING))
            _raise_outcome(Ended(result, cause))
        except FleetError as error:
            if self._leads:
                raise
            return error.exit_code
        return 0


def _raise_outcome(ended: Ended) -> None:
    """Do the same as `outcome_or_raise`, without the next steps, which need a fleet."""
    try:
        outcome_or_raise(ended)
    except FleetError as error:
        error.hint = ended.verdict.hint if ended.verdict else ""
        error.next_steps = ()
        raise


_BATCH = "from the batch system"
_rendezvous = partial(option, panel=RENDEZVOUS)


@command("Jobs")
def agent(
    script: str = argument(..., "SCRIPT", "Training script, e.g. task.py."),
    arguments: list[str] | None = argument(None, "-- ARGS", "Arguments passed to SCRIPT."),
    workdir: str = option("", "--workdir", "Directory to run in.", "DIR", shown="the current one"),
    python: str = option("", "--python", "Interpreter for SCRIPT.", "PATH", shown="detected"),
    env: list[str] | None = ENV,
    no_adapt: bool = NO_ADAPT,
    grace: float = options.GRACE,
    rendezvous: str = _rendezvous(
        "",
        "--rendezvous",
        "Rendezvous: a directory that all nodes share, or the address of rank 0.",
        "DIR|tcp://HOST:PORT",
        shown="a directory of the job in the working directory",
    ),
    secret_file: str = _rendezvous(
        "",
        "--secret-file",
        "File with the secret for tcp://HOST:PORT.",
        "FILE",
        shown="the variable FLEET_RENDEZVOUS_SECRET",
    ),
    wait: float = _rendezvous(
        Duration(RENDEZVOUS_TIMEOUT_S), "--wait", "How long to wait for the other processes.", TIME
    ),
    address: str = _rendezvous(
        "", "--address", "Address of this node for the other nodes.", "ADDRESS", shown="detected"
    ),
    rank: int | None = _rendezvous(
        None, "--rank", "Rank of this process, from 0.", "N", parser=parse_count, shown=_BATCH
    ),
    size: int | None = _rendezvous(None, "--size", "Number of processes.", "N", parser=parse_count, shown=_BATCH),
    nodes: str = _rendezvous("", "--nodes", "Node list, e.g. node[1-4] or a,b.", "LIST", shown=_BATCH),
    restarts: int = options.RESTARTS,
    restart_policy: RestartPolicy = options.RESTART_POLICY,
    timeout: float = options.TIMEOUT,
    hang_timeout: float = options.HANG_TIMEOUT,
    checkpoint_dir: str = options.CHECKPOINT_DIR,
) -> None:
    """Run SCRIPT on the nodes of an allocation without SSH.

    Start it once per node with srun, pbsdsh, or mpiexec, e.g. srun fleet agent task.py. The processes find each other
    and run SCRIPT together, in its directory. Rank 0 reports the result.

    Examples:
      srun fleet agent task.py
      mpiexec -n 4 fleet agent task.py -- --epochs 5
    """
    from fleet.jobs.program import environment

    with session(DEFAULT_FLEET, Output.LINES, prefix=False) as running:
        request = AgentRequest(
            script=script,
            arguments=tuple(arguments or ()),
            workdir=workdir,
            python=python,
            env=environment(env or (), (), os.environ),
            adapt=not no_adapt,
            grace_s=grace,
            policy=Policy(restarts=restarts, restart=restart_policy, timeout_s=timeout, hang_timeout_s=hang_timeout),
            checkpoint_dir=checkpoint_dir,
            rendezvous=rendezvous,
            secret_file=secret_file,
            address=address,
            wait_s=wait,
            given=Given(rank, size, nodes),
        )
        code = run(request, os.environ, running.sink)
    raise typer.Exit(code)
