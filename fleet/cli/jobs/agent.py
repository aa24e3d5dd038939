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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import typer

from fleet.cli import options
from fleet.cli.application import command
from fleet.cli.options import RENDEZVOUS, TIME, Output, argument, option, parse_count
from fleet.cli.program import ENV, NO_ADAPT
from fleet.cli.runtime import session
from fleet.errors import CancelledError, FleetError, NotReadyError, UsageError, explain_interrupt
from fleet.events import Level, Note, Sink
from fleet.jobs.evidence import Evidence
from fleet.jobs.following.follow import Ended
from fleet.jobs.following.outcome import outcome_or_raise
from fleet.jobs.local_task import LocalTask, create_mark, remove_empty, result_directories, sees_mark
from fleet.jobs.policy import check_policy, preemption_notices, replication
from fleet.jobs.program import ProgramRequest, choose_keras, environment
from fleet.jobs.selection import job_id
from fleet.remote.client import AgentClient
from fleet.remote.local import open_local_agent
from fleet.remote.publication import publish, started
from fleet.steps import DEFAULT_FLEET, Shell
from provision.allocation.ranks import Launch, find_launch
from train.agent.host.processes import boot_id
from train.agent.protocol import records
from train.agent.protocol.records import Policy, RestartPolicy
from train.defaults import LINK_TIMEOUT_S, RENDEZVOUS_TIMEOUT_S
from train.errors import RendezvousError
from train.rendezvous.contract import LOOPBACK, AbandonedError, Participants, Value, address_of_node
from train.rendezvous.tcp import SECRET_VARIABLE, TcpRendezvous
from train.script.entry import EntryPoint, Kind
from train.script.source import check_script

_PREPARED_S = 150.0
_COMMITTED_S = 60.0
_COLLECT_S = 10.0
_SECRET_LENGTH = 16
_COPY_MIB_S = 100.0


@dataclass(frozen=True, kw_only=True)
class AgentRequest(ProgramRequest):
    """Request of the command; the script is relative to the directory where it runs.

    Attributes:
        launch: Identity of this process.
        python: Interpreter of the script; empty: determined automatically.
        grace_s: Seconds between SIGTERM and SIGKILL when the job is stopped.
        policy: Reaction of the job to failures.
        checkpoint_dir: Directory for the script's checkpoints; empty: a directory of the job.
        rendezvous: Directory, or ``tcp://HOST:PORT``, of the rendezvous; empty: a directory next to the script.
        secret_file: File with the secret of a rendezvous at an address; empty: the variable has it.
        address: Address at which the others reach this node; empty: determined automatically.
        wait_s: How long to wait for the other processes, in seconds.
    """

    launch: Launch
    python: str
    grace_s: float
    policy: records.Policy
    checkpoint_dir: str
    rendezvous: str
    secret_file: str
    address: str
    wait_s: float


def run(request: AgentRequest, sink: Sink) -> int:
    """Take part in a job, to its end.

    Returns:
        The exit code; only the process with rank 0 reports an error that concerns all processes.

    Raises:
        UsageError: the command line or the script is wrong; nothing was started.
        NotReadyError: the processes do not come together, or this node cannot run the job; nothing was started.
        JobFailedError: the job failed, and this is rank 0.
        CancelledError: a signal stopped the job, and this is rank 0; or nothing was started.
    """
    entry = _find_entry(request)
    with _claim_rank(request.launch) as is_first, explain_interrupt("interrupted; nothing was started"):
        if not is_first:
            sink.emit(Note(f"duplicate process for rank {request.launch.rank} on this node; exiting"))
            return 0
        try:
            with _open_rendezvous(request, entry.workdir) as rendezvous:
                return _Process(request, entry, rendezvous, sink).run()
        except AbandonedError as error:
            return error.code


def _find_entry(request: AgentRequest) -> EntryPoint:
    directory = Path(request.workdir or request.launch.directory or ".").expanduser().absolute()
    if not directory.is_dir():
        raise UsageError(
            f"directory {directory} does not exist on this node",
            hint="name a directory that all nodes have: --workdir DIR",
        )
    name = request.script
    word = f"./{name}" if name.startswith("-") else name  # a leading hyphen would be an option of the interpreter
    return EntryPoint(Kind.SCRIPT, name, directory, check_script(directory / name), (word,))


@contextlib.contextmanager
def _claim_rank(launch: Launch) -> Iterator[bool]:
    """Return True for one process of each rank; a batch system may start one per slot of a node."""
    with socket.socket(socket.AF_UNIX) as name:
        try:
            if launch.shared:
                name.bind(f"\0fleet-agent-{os.getuid()}-{launch.job}-{launch.rank}")
        except OSError:
            yield False
        else:
            yield True


@contextlib.contextmanager
def _open_rendezvous(request: AgentRequest, directory: Path) -> Iterator[TcpRendezvous]:
    """Open the rendezvous with all other processes, and report the failure of this process to them."""
    launch, given = request.launch, request.rendezvous
    participants = Participants(launch.rank, launch.size, launch.nodes if launch.node(0) or not launch.size else ())
    if given.startswith("tcp://"):
        from train.rendezvous.tcp import join_tcp, parse_address

        host, port = parse_address(given, launch.nodes[0] if launch.nodes else "")
        rendezvous = join_tcp(host, port, participants, _secret(request), request.wait_s)
    elif given or launch.job:
        from train.rendezvous.directory import join_directory

        place = directory / (Path(given).expanduser() if given else f".fleet-{launch.job}")
        rendezvous = join_directory(place, participants, request.wait_s, request.address)
    else:
        raise UsageError(
            "no rendezvous is given",
            hint="name a directory that all nodes share, --rendezvous DIR, or an address, --rendezvous tcp://HOST:PORT",
        )
    try:
        yield rendezvous
    except AbandonedError:
        raise
    except (RendezvousError, FleetError) as error:
        rendezvous.abandon(error.message, getattr(error, "exit_code", NotReadyError.exit_code))
        raise
    except KeyboardInterrupt:
        rendezvous.abandon("it was interrupted", CancelledError.exit_code)
        raise
    finally:
        rendezvous.close()


def _secret(request: AgentRequest) -> str:
    secret = os.environ.get(SECRET_VARIABLE, "")
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


class _Process:
    """One process of the job, on this node.

    Args:
        request: What the user typed.
        entry: The script to run.
        rendezvous: Rendezvous with the other processes.
        sink: Takes the events.
    """

    def __init__(self, request: AgentRequest, entry: EntryPoint, rendezvous: TcpRendezvous, sink: Sink) -> None:
        self._request, self._entry, self._rendezvous, self._sink = request, entry, rendezvous, sink
        self._rank = request.launch.rank
        self._task = f"worker-{self._rank}"
        self._leads = self._rank == 0
        self._node = request.launch.node(self._rank) or socket.gethostname()
        self._participants = Participants(self._rank, rendezvous.size)
        self._is_single_host = False
        self._job = ""
        self._checkpoints: Path | None = None  # None: a URL
        self._mark: Path | None = None  # of rank 0

    def run(self) -> int:
        """Take part from the rendezvous to the end of the job; return the exit code."""
        from train.pack import build_agent

        digest, workdir = build_agent().digest, self._entry.workdir
        env = {name: value for name, value in os.environ.items() if name != SECRET_VARIABLE}
        with contextlib.ExitStack() as stack:
            stack.callback(self._unmark)
            mark = self._agree(digest)
            stack.callback(remove_empty, workdir / self._job / "checkpoints", workdir / self._job)
            root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fleet-", ignore_cleanup_errors=True)))
            agent = stack.enter_context(open_local_agent(self._node, root, digest, env))
            results = stack.enter_context(result_directories(workdir / self._job, self._task))
            commit = self._commit(*self._prepare(agent, mark), results)
            task = LocalTask(agent, commit)
            try:
                task.start()  # on all nodes; if one cannot, nothing starts
                self._rendezvous.gather("committed", {}, _COMMITTED_S)
                if self._leads:
                    self._sink.emit(started(commit, time.time()))
                result = task.follow(self._sink, leads=self._leads)
            except BaseException:
                task.give_up()
                raise
            return self._end(task, commit, result)

    def _unmark(self) -> None:
        if self._mark is not None:
            self._mark.unlink(missing_ok=True)

    # --- coming together --------------------------------------------------------------------------------------------

    def _agree(self, digest: str) -> str:
        """Agree with the other processes on the program, the name of the job, and its checkpoint directory.

        Returns:
            The name of the file that rank 0 has created in this directory; empty: the directory is a URL.

        Raises:
            NotReadyError: the processes differ.
        """
        request, directory, script = self._request, self._entry.workdir, self._request.script
        replication(request.checkpoint_dir, _COPY_MIB_S)  # refuses another directory
        check_policy(request.policy, spares=0, hosts=self._rendezvous.size, link_timeout_s=LINK_TIMEOUT_S)
        program: Value = {
            "version of fleet": digest,
            "command line": [script, *request.arguments],
            f"content of {script}": hashlib.sha256((directory / script).read_bytes()).hexdigest(),
        }
        mine: Value = {"host": socket.gethostname(), "boot": boot_id(), **program}
        if self._leads:
            job = f"fleet-{request.launch.job}" if request.launch.job else job_id(time.time())
            self._mark = create_mark(self._checkpoints_of(job))
            mine |= {"job": job, "mark": self._mark.name if self._mark else ""}
        values = self._rendezvous.gather("hello", mine, request.wait_s)
        first = values[0]
        self._job = str(first["job"])
        self._checkpoints = self._checkpoints_of(self._job)
        hosts = tuple(str(value["host"]) for value in values)
        self._participants = Participants(self._rank, self._rendezvous.size, hosts)
        self._is_single_host = len({(value["host"], value["boot"]) for value in values}) == 1
        for key in sorted(program):
            if others := [rank for rank, value in enumerate(values) if value.get(key) != first.get(key)]:
                names, leader = self._participants.names(others), self._participants.name(0)
                raise self._shared_error(NotReadyError(f"the {key} on {names} is not that of {leader}"))
        return str(first["mark"])

    def _checkpoints_of(self, job: str) -> Path | None:
        """Return the directory of the script's checkpoints; None if it is a URL."""
        given = self._request.checkpoint_dir
        path = Path(given).expanduser() if given else Path(job) / "checkpoints"
        return None if "://" in given else self._entry.workdir / path

    def _shared_error(self, error: FleetError) -> Exception:
        """Return the error to raise if all processes see it: rank 0 alone reports it."""
        return error if self._leads else AbandonedError(self._participants.name(0), error.message, error.exit_code)

    def _address(self) -> str:
        if self._is_single_host:
            return self._request.address or LOOPBACK
        nodes = self._request.launch.nodes or self._participants.nodes
        address = self._request.address or self._rendezvous.address or address_of_node(self._node, nodes)
        if not address:
            raise NotReadyError(
                f"cannot determine the address of {self._node}",
                cause=f"{', '.join(name for name in nodes if name != self._node)} cannot be looked up here",
                hint="give the address of this node: --address ADDRESS",
            )
        return address

    def _prepare(self, agent: AgentClient, mark: str) -> tuple[list[records.Prepared], records.Replication]:
        """Prepare all nodes; return their answers, and how they copy checkpoints, unless they share a directory."""
        prepared = agent.prepare(
            records.Prepare(
                job=self._job,
                fleet=self._job,
                slot=self._task,
                entries=[],
                address=self._address(),
                python=self._request.python,
                directory=str(self._entry.workdir),
            )
        )
        mine = {"prepared": records.to_dict(prepared), "sees": sees_mark(self._checkpoints, mark)}
        values = self._rendezvous.gather("prepared", mine, _PREPARED_S)
        self._unmark()
        blind = [rank for rank, value in enumerate(values) if not value["sees"]]
        if 0 < len(blind) < len(values) - 1:
            seen = self._participants.names([rank for rank in range(len(values)) if rank not in blind])
            error = NotReadyError(
                f"the checkpoint directory is shared by {seen}, but not by {self._participants.names(blind)}",
                hint="name a directory that all nodes share, or none: --checkpoint-dir PATH",
            )
            raise self._shared_error(error)
        copied = replication(self._request.checkpoint_dir or self._job, _COPY_MIB_S if blind else 0.0)
        if self._checkpoints is not None:
            copied = copied._replace(directory=str(self._checkpoints))
        return [records.build(records.Prepared, value["prepared"]) for value in values], copied

    def _commit(
        self, prepared: Sequence[records.Prepared], copied: records.Replication, results: dict[str, str]
    ) -> records.Commit:
        request = self._request
        try:
            choice = choose_keras(self._entry, request, prepared)
        except NotReadyError as error:
            raise self._shared_error(error) from error
        if choice.note and self._leads:
            self._sink.emit(Note(choice.note))
        return records.Commit(
            job=self._job,
            slot=self._task,
            members=[item.member._replace(task=item.member.slot) for item in prepared],
            secret=self._rendezvous.secret,
            command=self._entry.command(prepared[self._rank].python, request.arguments),
            env={"PWD": str(self._entry.workdir), **choice.env, **results, **request.env},
            secret_env={},
            grace_s=request.grace_s,
            policy=request.policy,
            replication=copied,
            name=request.script,
            preemption_notices=preemption_notices(),
        )

    # --- the end ----------------------------------------------------------------------------------------------------

    def _end(self, task: LocalTask, commit: records.Commit, result: records.JobResult) -> int:
        """Report how the job ended; after a failure, find the first cause with the other processes."""
        ended_well = result.outcome is records.Outcome.SUCCEEDED
        ran = result.started or ended_well
        local: Value = {"stopped_by": task.stopped_by, "evidence": task.evidence(log=not ended_well) if ran else {}}
        if not self._leads:
            self._rendezvous.send_to_rank_0("end", local)
        try:
            cause, values = None, [local]
            if self._leads and ran and not task.stopped_by:
                values += self._rendezvous.collect("end", _COLLECT_S).values()
            # A scheduler signals one node after the other: the job may end before the signal arrives at rank 0.
            stopped_by = next((str(value["stopped_by"]) for value in values if value.get("stopped_by")), "")
            if stopped_by and not ended_well:
                raise CancelledError(f"job {self._job} was stopped by {stopped_by}")
            if self._leads:
                evidence = Evidence(commit.members)
                for value in values:
                    evidence.merge(value.get("evidence") or {})
                cause = evidence.verdict(result) if ran and not ended_well else None
                self._sink.emit(publish(result))
                if ran and (warning := evidence.independence_warning(result)):
                    self._sink.emit(Note(warning, Level.WARNING))
            outcome_or_raise(Ended(result, cause))
        except FleetError as error:
            if self._leads:
                raise error.replaced(next_steps=()) from None  # they need a fleet
            return error.exit_code
        return 0


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
    wait: float = _rendezvous(RENDEZVOUS_TIMEOUT_S, "--wait", "How long to wait for the other processes.", TIME),
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
    with session(DEFAULT_FLEET, Output.LINES, prefix=False) as running:
        request = AgentRequest(
            fleet=DEFAULT_FLEET,
            script=script,
            arguments=tuple(arguments or ()),
            workdir=workdir,
            adapt=not no_adapt,
            env=environment(env or (), (), os.environ),
            launch=find_launch(os.environ, rank=rank, size=size, nodes=nodes),
            python=python,
            grace_s=grace,
            policy=Policy(restarts=restarts, restart=restart_policy, timeout_s=timeout, hang_timeout_s=hang_timeout),
            checkpoint_dir=checkpoint_dir,
            rendezvous=rendezvous,
            secret_file=secret_file,
            address=address,
            wait_s=wait,
        )
        code = run(request, running)
    raise typer.Exit(code)
