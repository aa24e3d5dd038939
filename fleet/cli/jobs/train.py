"""`fleet train`: push, prepare everywhere, start together, follow."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import typer

from fleet.cli import options
from fleet.cli.application import command
from fleet.cli.options import CHECKPOINTS, FAILURES, TASKS, TIME, TIMEOUTS, Duration, Output, complete_job, option
from fleet.cli.program import TYPED, ProgramOptions, WithResume, program_request, with_program
from fleet.cli.rerun import REPEATED, Repeated, find_remembered, remembered, run_again, run_capsule
from fleet.cli.runtime import resolve_fleet, session
from fleet.errors import CancelledError, FleetError, NotReadyError
from fleet.events import Note, PushProgress, Sink, TaskPlanned, TaskPrepared
from fleet.fleets.agents import ExistingFleet, call_all, call_each, running_job, stop_everywhere
from fleet.fleets.instances import check_lifetime
from fleet.fleets.repair import gpu_share, open_whole, repairing
from fleet.interrupts import defer_interrupts
from fleet.jobs import policy as policies
from fleet.jobs import program as programs
from fleet.jobs.capsules import version_notes
from fleet.jobs.following.follow import Ended, Followed, detached, follow, until_running
from fleet.jobs.following.log_view import Selection
from fleet.jobs.following.outcome import outcome_or_raise
from fleet.jobs.pull import PullRequest, pull_results, warning_of
from fleet.jobs.queue import conflict, find_place, queued_event
from fleet.jobs.results import report_results
from fleet.jobs.resume import find_origin, is_resumable
from fleet.jobs.selection import check_job_name, job_id
from fleet.jobs.tasks import TaskTypes, assign, check_task_types, success, with_added
from fleet.remote.client import AgentClient
from fleet.remote.clocks import corrections
from fleet.remote.publication import started
from fleet.remote.quoting import show_command
from fleet.results.target import check_new
from fleet.services import Services
from fleet.state import FleetRecord, TrainCommand
from fleet.steps import Again, Step
from train.agent.protocol import records
from train.agent.protocol.cluster import expand_placeholders, tf_config
from train.agent.protocol.records import OnHang, Policy, Replication, RestartPolicy, SuccessPolicy
from train.agent.protocol.wording import endpoint
from train.defaults import GRACE_S, LINK_TIMEOUT_S, SPOT_HOST_TIMEOUT_S
from train.script import keras


@dataclass(frozen=True)
class TrainRequest(programs.ProgramRequest):
    """Request of the command: what to train, and with which options."""

    name: str = ""  # of the job; empty: none
    after: str | None = None  # job to wait for, as in `select_job`; None: none; see fleet.jobs.queue
    resume: str | None = None  # job whose newest checkpoint is the start, as in `select_job`; None: no checkpoint
    command_line: TrainCommand | None = None  # to repeat it; None: it is not stored
    repeated_versions: dict[str, str] = field(default_factory=dict)  # on the hosts of the job that this one repeats
    detach: bool = False
    pull: str = ""  # directory for the results when the job has ended; empty: they are not pulled
    dry_run: bool = False
    grace_s: float = GRACE_S
    spares: int = 0  # the last slots get no task until a host is lost
    policy: records.Policy = field(default_factory=records.Policy)
    preemptions: int | None = None  # lost hosts that do not count as failures; None: depends on the fleet
    host_timeout_s: float | None = None  # time to wait for a lost host; None: depends on the fleet
    replication: records.Replication = field(default_factory=records.Replication)
    link_timeout_s: float = LINK_TIMEOUT_S
    task_types: TaskTypes = field(default_factory=TaskTypes)
    warm: bool = False  # tasks may be forked from a process that has imported their first modules
    startup: bool = False  # TensorFlow's startup messages are shown

    @property
    def terms(self) -> programs.Terms:
        """The properties of the job on which warnings about its script depend."""
        return programs.Terms(
            adapt=self.adapt,
            servers=self.task_types.has_servers,
            chief=bool(self.task_types.chief),
            variables=frozenset({*self.env, *self.secrets}),
            restarts=self.policy.restarts > 0,
            keeps=bool(self.replication.directory),
        )


def run(request: TrainRequest, services: Services, sink: Sink) -> str:
    """Start a job on all hosts of a fleet, and follow it unless asked not to.

    Returns:
        The job; empty after a dry run.

    Raises:
        UsageError: the script or an option is wrong; nothing was started.
        NotFoundError: the fleet does not exist.
        NotReadyError: a host cannot run the job; all reasons are given and nothing was started.
        UnreachableError: a host does not answer.
        JobFailedError: the job failed.
        JobNotFinished: Ctrl-C; the job keeps running.
        CancelledError: Ctrl-C before anything was started, or the job was stopped.
    """
    started_jobs: list[str] = []
    try:
        return _make_training(request, services, sink).run(started_jobs)
    except KeyboardInterrupt:
        if started_jobs:
            raise detached(started_jobs[0]) from None
        raise CancelledError("interrupted; nothing was started", next_steps=[Again({})]) from None


def _make_training(request: TrainRequest, services: Services, sink: Sink) -> _Training:
    """Return the job, checked as far as possible without its hosts; only a job to continue is read from them."""
    check_job_name(request.name)
    if request.pull:
        check_new(Path(request.pull).expanduser().absolute(), "--pull")
    located = programs.find(request)
    fleet = ExistingFleet.find(request.fleet, services, sink, "train")
    options = fleet.record.spec.options
    policy = policies.on_fleet(
        request.policy._replace(idle_timeout_s=float(options.idle_timeout_s)),
        spot=options.spot,
        preemptions=request.preemptions,
        host_timeout_s=request.host_timeout_s,
    )
    env = {**options.variables, **request.env}
    request = replace(request, arguments=located.arguments, policy=policy, env=env)
    check_lifetime(fleet.record, request.grace_s, services, sink)
    fleet = replace(fleet, record=_assign_slots(request, fleet))
    if not request.task_types.has_servers:
        programs.refuse_without_servers(located.entry, len(fleet.record.hosts))
    origin: tuple[records.Resumption, str] | None = None
    if request.resume is not None:
        policies.check_replicated("--resume", request.replication)
        origin = find_origin(request.resume, fleet)
    program = programs.collect(located, services, env.get("PYTHONPATH", ""))
    return _Training(request, program, fleet, origin)


def _assign_slots(request: TrainRequest, fleet: ExistingFleet) -> FleetRecord:
    """Return the fleet with as many slots per host as the job requires.

    Raises:
        UsageError: the task types or the policy do not fit.
        NotReadyError: a running job has a different number of slots per host.
    """
    types, record, policy = request.task_types, fleet.record, request.policy
    policies.check_growth(policy.max_workers, record.spec.options, request.replication)
    check_task_types(types, hosts=len(record.hosts), spares=request.spares)
    placed = replace(record, tasks_per_host=types.tasks_per_host)
    slots, link_s = len(placed.slots), request.link_timeout_s
    policies.check_policy(policy, spares=request.spares, hosts=slots, link_timeout_s=link_s, others=types.others)
    differs = record.last_job and record.tasks_per_host != types.tasks_per_host and not request.dry_run
    if differs and (job := running_job(record, fleet.directory.key)):
        raise conflict(job, record, is_queued=request.after is not None)
    return placed


@dataclass
class _Training:
    """A job on an existing fleet.

    Args:
        request: What the user typed, completed by what the fleet requires.
        program: The program of the job.
        fleet: The fleet, with the slots of the job.
        origin: The checkpoint from which the job continues, with its name for users; None: none.
    """

    request: TrainRequest
    program: programs.Program
    fleet: ExistingFleet
    origin: tuple[records.Resumption, str] | None

    def run(self, started_jobs: list[str]) -> str:
        """Start the job and follow it; append it to `started_jobs` as soon as it runs."""
        request, directory, services = self.request, self.fleet.directory, self.fleet.services
        shown = programs.shown(self.program.entry)
        with contextlib.ExitStack() as stack:
            lock = stack.enter_context(contextlib.ExitStack())
            lock.enter_context(services.store.lock(request.fleet, f"train {shown}"))
            self._announce()
            record, clients = stack.enter_context(open_whole(self.fleet))
            job = job_id(services.clock())
            after = find_place(request.after, clients, record, self.fleet.sink)
            self.request = request = replace(request, after=after)
            commits = self._plan(job, record, clients)
            if request.dry_run:
                self._show(record, commits)
                return ""
            self.fleet = replace(self.fleet, record=replace(record, last_job=job, last_script=shown))
            with defer_interrupts():
                commit_all(clients, commits, self.fleet, request.pull)
                if request.command_line is not None:
                    directory.note_command(job, request.command_line)
                directory.note_results(job, legacy_keras=commits[0].env.get(keras.VARIABLE) == "1")
                started_jobs.append(job)
            lock.close()
            return self._follow(clients, commits[0])

    def _note(self, text: str) -> None:
        self.fleet.sink.emit(Note(text))

    def _announce(self) -> None:
        """Report on which fleet the job is to run, what its upload leaves out, and where it continues.

        Raises:
            NotFoundError: `fleet down` deleted the fleet before the lock was acquired.
            NotReadyError: `fleet up` changed its hosts.
        """
        fleet = self.fleet
        if fleet.services.store.need(fleet.name)[1].hosts != fleet.record.hosts:
            raise NotReadyError("the fleet was changed meanwhile; nothing was started", next_steps=[Again({})])
        fleet.announce()
        for text in self.program.bundle.notes:
            self._note(text)
        if self.origin is not None:
            resumption, checkpoint = self.origin
            self._note(f"continuing from checkpoint {checkpoint} of job {resumption.job}")

    def _plan(self, job: str, record: FleetRecord, clients: Sequence[AgentClient]) -> list[records.Commit]:
        """Prepare the hosts, choose Keras, and warn about likely failures; return the commit of each slot."""
        request, program = self.request, self.program
        prepared = self._prepare(job, record, clients)
        first = len(prepared) - request.spares
        choice = programs.choose_keras(program.entry, request, prepared[:first], prepared[first:])
        if choice.note:
            self._note(choice.note)
        for note in (
            *programs.warnings(program, prepared[:first], request.terms),
            *programs.warn_of_defaults(request, program.entry, first, request.command_line),
        ):
            self.fleet.sink.emit(note)
        return self._commits(job, record, prepared, {**choice.env, **request.env})

    def _prepare(self, job: str, record: FleetRecord, clients: Sequence[AgentClient]) -> list[records.Prepared]:
        program, dry_run, sink = self.program, self.request.dry_run, self.fleet.sink
        to_install = program
        if dry_run and program.requirements is not None:
            self._note("packages are not installed in a dry run; versions are shown without them")
            to_install = replace(program, requirements=None)
        pythons = programs.install_for(to_install, record.spec, clients, sink)

        def prepare_host(client: AgentClient) -> records.Prepared:
            host, fleet = client.host, self.fleet.name
            to_prepare = programs.preparation(program, fleet, host, job, pythons[host.name], dry_run=dry_run)
            return client.prepare(
                to_prepare._replace(after=self.request.after or ""),
                program.bundle,
                lambda *counts: sink.emit(PushProgress(host.name, *counts)),
            )

        prepared = call_all(clients, prepare_host, "prepare the job")
        for item in prepared:
            gpus, member = tuple(gpu.name for gpu in item.gpus), item.member
            sink.emit(TaskPrepared(member.slot, endpoint(member.address, member.port), item.versions, gpus))
        for note in version_notes(self.request.repeated_versions, prepared):
            sink.emit(note)
        return prepared

    def _commits(
        self, job: str, record: FleetRecord, prepared: Sequence[records.Prepared], env: dict[str, str]
    ) -> list[records.Commit]:
        request, program, types, options = self.request, self.program, self.request.task_types, record.spec.options
        tasks = assign(types, len(prepared), request.spares)
        workers = len(prepared) - request.spares - types.others
        slots, given = types.tasks_per_host, {*env, *request.secrets}
        members = [item.member._replace(task=task) for item, task in zip(prepared, tasks, strict=True)]
        common = records.Commit(
            job=job,
            slot="",
            members=records.SharedList(members),
            secret=secrets.token_hex(32),
            requirements=program.requirements.text if program.requirements else "",
            constraints=program.requirements.constraints if program.requirements else "",
            command=[],
            env=env,
            secret_env=request.secrets,
            grace_s=request.grace_s,
            link_timeout_s=request.link_timeout_s,
            policy=request.policy,
            replication=request.replication,
            name=programs.shown(program.entry),
            preemption_notices=policies.preemption_notices(options),
            resume=self.origin[0] if self.origin else None,
            job_name=request.name,
            arguments=list(request.arguments),
            code_sha256=program.bundle.digest,
            joinable=policies.name_joinable(len(prepared), workers, request.policy.max_workers),
            after=request.after or "",
            warm=request.warm,
        )
        return [
            common._replace(
                slot=item.member.slot,
                command=program.entry.command(item.python, request.arguments),
                env={**env, **gpu_share(item.gpus, at % slots, slots, given)},
            )
            for at, item in enumerate(prepared)
        ]

    def _show(self, record: FleetRecord, commits: Sequence[records.Commit]) -> None:
        members = [member for member in commits[0].members if member.task]
        for member, commit, host in zip(commits[0].members, commits, record.slots, strict=True):
            task, words = member.task, commit.command
            words = expand_placeholders(words, members, task, commit.attempt) if task else words
            config, command = tf_config(members, task) if task else "", show_command(words)
            self.fleet.sink.emit(TaskPlanned(task, member.slot, host.address, config, command, commit.env))

    # --- the running job --------------------------------------------------------------------------------------------

    def _follow(self, clients: Sequence[AgentClient], commit: records.Commit) -> str:
        request, fleet, job = self.request, self.fleet, commit.job
        event = started(commit, fleet.services.clock())
        fleet.sink.emit(queued_event(event, commit.after) if commit.after else event)
        followed = Followed(
            directory=fleet.directory,
            record=fleet.record,
            job=job,
            clients=tuple(clients),
            members=tuple(commit.members),
            attempts=event.attempts,
            max_workers=event.max_workers,
            selection=Selection(startup=request.startup),
            unread=fleet.services.unread,
            starts=event if commit.after else None,
        )
        if not request.detach:
            with repairing(fleet, request.policy.host_timeout_s) as repairer:
                ended = follow(replace(followed, repairer=repairer), fleet.sink)
            if ended.result is not None:
                fleet.directory.note_results(job, log_shown=ended.shown)
            return self._finish(job, clients, ended)
        if commit.after:
            self._note(f"follow it with `{Step('logs', '-f', '--job', job).text(fleet.name)}`")
        else:
            ended = until_running(replace(followed, logs=False, unread=lambda: False), fleet.sink)
            if ended.result is not None:
                return self._finish(job, clients, ended)
            follow_it, stop_it = Step("logs", "-f").text(fleet.name), Step("stop").text(fleet.name)
            self._note(f"job {job} is running; follow it with `{follow_it}`, stop it with `{stop_it}`")
        if request.pull:
            pull = Step("pull", job).text(fleet.name)
            self._note(f"when it has ended, `{pull}` or the next command copies its results to {request.pull}")
        return job

    def _finish(self, job: str, clients: Sequence[AgentClient], ended: Ended) -> str:
        """Report the results of a job that has ended, or copy them if this was requested.

        Raises:
            JobFailedError: the job failed; a failed copy is a warning.
            FleetError: the results could not be copied.
        """
        request, fleet = self.request, self.fleet
        failed: FleetError | None = None
        if ended.result is not None:
            with with_added(clients, fleet.record, fleet.directory) as everyone:
                stored = report_results(fleet, job, everyone)
            ended = replace(ended, resumable=is_resumable(stored, fleet.directory))
            if request.pull:
                try:
                    pull_results(ExistingFleet.find(fleet.name, fleet.services, fleet.sink), PullRequest(job))
                except FleetError as error:
                    failed = error
        try:
            outcome_or_raise(ended)
        except FleetError as error:
            if failed is not None:
                fleet.sink.emit(warning_of(job, fleet.name, failed))
            if request.command_line is not None and not request.repeated_versions:
                entry, typed = self.program.entry, request.command_line
                programs.add_next_steps(error, request, entry, ended.verdict, typed)
            raise
        if failed is not None:
            raise failed
        return job


def commit_all(
    clients: Sequence[AgentClient], commits: Sequence[records.Commit], fleet: ExistingFleet, pull_to: str
) -> None:
    """Record the job and the requested pull, and commit on all hosts; if one cannot, stop the others again.

    The job is recorded first: other commands find its tasks in the recorded slots, even if this program is killed.

    Args:
        clients: The agents.
        commits: The commit of each.
        fleet: The fleet with the new job.
        pull_to: Directory for the results; empty: none.

    Raises:
        FleetError: a host did not accept the commit; nothing runs, and the job is not recorded.
    """
    directory, job = fleet.directory, commits[0].job
    before = directory.read()
    directory.write(fleet.record)
    if pull_to:
        directory.note_results(job, pull_to=str(Path(pull_to).expanduser().absolute()))
    # The clocks are measured once, before the job starts: the order of its output is the same on each call.
    answers = call_each(clients, lambda client: client.read_clock())
    ahead = corrections({answer.host.name: answer.value for answer in answers if answer.value is not None})
    by_host = {client.host.name: commit for client, commit in zip(clients, commits, strict=True)}
    try:
        call_all(
            clients,
            lambda client: client.commit(
                by_host[client.host.name]._replace(clock_correction_s=ahead.get(client.host.name, 0.0))
            ),
            "start the job",
        )
    except FleetError:
        directory.forget_pull(job)
        stop_everywhere(clients, job, commits[0].grace_s)
        if before is not None:
            directory.write(before)
        raise


_DEFAULTS = Policy()
_task = partial(option, panel=TASKS)
_failure = partial(option, panel=FAILURES)
_timeout = partial(option, panel=TIMEOUTS)
_checkpoint = partial(option, panel=CHECKPOINTS)


@command("Jobs", WithResume)
@with_program
def train(
    ctx: typer.Context,
    program: ProgramOptions,
    name: str = option("", "--name", "Name of the job, for commands that take a job.", "NAME", shown="none"),
    detach: bool = option(False, "--detach", "Return as soon as the job is running, or queued.", short="-d"),
    after: str | None = option(
        None,
        "--after",
        "Queue the job on the hosts: it starts when JOB, the last job by default, has ended.",
        "[JOB]",
        shown="start now",
        autocompletion=complete_job,
    ),
    pull: str = option("", "--pull", "Copy the results to DIR when the job has ended.", "DIR", shown="not copied"),
    warm: bool = option(
        False, "--warm", "Fork tasks from a process that has imported TensorFlow; see docs/scripts.md.", rare=True
    ),
    grace: float = options.GRACE,
    from_capsule: str = option(
        "", "--from-capsule", "Repeat the job of a capsule that fleet report wrote.", "FILE", shown="none", rare=True
    ),
    dry_run: bool = option(False, "--dry-run", "Show the TF_CONFIG and the command of each task; start nothing."),
    raw: bool = options.RAW,
    output: Output = options.OUTPUT,
    chief: bool = _task(False, "--chief", "Use a chief task."),
    ps: int = _task(0, "--ps", "Number of parameter servers.", "N", min=0),
    evaluator: bool = _task(False, "--evaluator", "Add an evaluator task.", rare=True),
    tasks_per_host: int = _task(
        1, "--tasks-per-host", "Tasks per host; GPUs are divided among them.", "K", min=1, rare=True
    ),
    restarts: int = options.RESTARTS,
    restart_policy: RestartPolicy = options.RESTART_POLICY,
    backoff: float = _failure(
        _DEFAULTS.backoff_s, "--backoff", "Delay before the first restart; doubled each time.", TIME, rare=True
    ),
    success_policy: SuccessPolicy | None = _failure(
        None,
        "--success-policy",
        "Tasks that must succeed.",
        "<chief|all-workers>",
        shown="all-workers; with --ps chief",
        rare=True,
    ),
    spares: int = _failure(0, "--spares", "Keep N slots as spares.", "N", min=0),
    min_workers: int | None = _failure(
        None, "--min-workers", "Continue with as few as M workers if hosts are lost.", "M", min=1, shown="all"
    ),
    max_workers: int | None = _failure(
        None,
        "--max-workers",
        "Take in new hosts of the fleet at a checkpoint, up to N workers.",
        "N",
        min=1,
        shown="no new hosts",
    ),
    preemptions: int | None = _failure(
        None,
        "--preemptions",
        "Survive up to N lost hosts without using --restarts.",
        "N",
        min=0,
        shown="0; unlimited on Spot VMs",
        rare=True,
    ),
    host_timeout: float | None = _failure(
        None,
        "--host-timeout",
        "How long to wait for a lost host.",
        TIME,
        shown=f"{Duration(_DEFAULTS.host_timeout_s)}; {Duration(SPOT_HOST_TIMEOUT_S)} on Spot VMs",
        rare=True,
    ),
    timeout: float = options.TIMEOUT,
    start_timeout: float = _timeout(
        _DEFAULTS.start_timeout_s,
        "--start-timeout",
        "Time until the first training step of an attempt; 0 disables it.",
        TIME,
        rare=True,
    ),
    hang_timeout: float = options.HANG_TIMEOUT,
    on_hang: OnHang = _timeout(
        _DEFAULTS.on_hang,
        "--on-hang",
        "What to do if the job hangs: report stacks only, or restart as well.",
        "<report|restart>",
        rare=True,
    ),
    link_timeout: float = _timeout(
        LINK_TIMEOUT_S, "--link-timeout", "Declare a host lost after this time without a message.", TIME, rare=True
    ),
    resume: str | None = _checkpoint(
        None,
        "--resume",
        "Start from the newest checkpoint of JOB, the latest job by default; without SCRIPT, repeat its command.",
        "[JOB]",
        shown="none",
    ),
    checkpoint_dir: str = options.CHECKPOINT_DIR,
    checkpoint_bandwidth: float = _checkpoint(
        Replication().mib_s,
        "--checkpoint-bandwidth",
        "Replication bandwidth per host in MiB/s; 0 disables replication.",
        "MIB_S",
        min=0,
        number=float,
        rare=True,
    ),
) -> None:
    """Run a training script on all workers.

    Uploads the script's directory, starts every worker with its TF_CONFIG, and streams the logs. Ctrl-C detaches; the
    job keeps running. Use -m MODULE for a module, or give any command after --.

    Examples:
      fleet train task.py -- --epochs 5
      fleet train -m trainer.task --restarts 3
      fleet train --after --detach -- ./run.sh --fast
    """
    from fleet.jobs.capsules import confirm_capsule

    typed = ctx.meta[TYPED]
    fleet = resolve_fleet(program.fleet)
    if resume and not (typed.program or program.module or any(word.is_operand for word in typed.words)):
        job, command = find_remembered(resume, fleet)
        overriding = [part for word in typed.changed({"--resume": job}).words for part in word.text]
        run_again(command, fleet, overriding)
        return

    if from_capsule:
        run_capsule(typed, from_capsule, fleet)
        return
    repeated: Repeated | None = ctx.meta.get(REPEATED)

    with session(fleet, output, raw=raw) as running:
        request = TrainRequest(
            **vars(program_request(ctx, program)),
            name=name,
            after=after,
            resume=resume,
            command_line=replace(repeated.command, name=name) if repeated else remembered(typed, name),
            repeated_versions=dict(repeated.versions) if repeated else {},
            detach=detach,
            pull=pull,
            dry_run=dry_run,
            grace_s=grace,
            spares=spares,
            policy=Policy(
                restarts=restarts,
                restart=restart_policy,
                backoff_s=backoff,
                success=success(success_policy, ps),
                min_workers=min_workers or 0,
                max_workers=max_workers or 0,
                timeout_s=timeout,
                start_timeout_s=start_timeout,
                hang_timeout_s=hang_timeout,
                on_hang=on_hang,
            ),
            preemptions=preemptions,
            host_timeout_s=host_timeout,
            replication=policies.replication(checkpoint_dir, checkpoint_bandwidth),
            link_timeout_s=link_timeout,
            task_types=TaskTypes(chief, ps, evaluator, tasks_per_host),
            warm=warm,
            startup=raw or output is Output.JSON,
        )
        if repeated:
            words = (*filter(None, (Path(request.script).name, request.module)), *request.command, *request.arguments)
            confirm_capsule(repeated.capsule, words, running.services, running, dry_run=dry_run)
        run(request, running.services, running)
