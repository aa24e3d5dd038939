"""`fleet check`: properties of each host, whether the hosts match, and whether a script runs alone on each."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import typer

from fleet.cli.application import command
from fleet.cli.options import OUTPUT, Output, option
from fleet.cli.program import LOCAL_FIRST, SMOKE_TEST_S, ProgramOptions, WithTrial, program_request, with_program
from fleet.cli.runtime import Session, resolve_fleet, session
from fleet.errors import NotReadyError, UsageError, fold
from fleet.events import BootstrapProgress, HostFacts, HostsChecked, Level, Note, PushProgress, SmokeTested
from fleet.fleets.agents import ExistingFleet, call_each, open_agents
from fleet.jobs import program as programs
from fleet.jobs.selection import job_id
from fleet.remote.client import AgentClient
from fleet.remote.fanout import Outcome, where
from fleet.steps import Again
from train.agent.gang.readiness import Readiness, ReadinessFacts, verdict
from train.agent.injected.adaptations import KERAS, VARIABLE
from train.agent.protocol.records import Exit, Prepare, Prepared, SmokeTest, SmokeTestResult
from train.lint.finding import Finding, Severity
from train.script.keras import Choice

_KERAS = ("tensorflow", "keras", "tf-keras")


def run(request: programs.ProgramRequest, trial_s: float, running: Session) -> None:
    """Check all hosts of a fleet, and the requirements of a script; leave no files on the hosts.

    Args:
        request: The program; without one, only the hosts are checked.
        trial_s: Time to run the program on each host separately; 0: it is not run.
        running: The command.

    Raises:
        UsageError: the script or an option is wrong.
        NotFoundError: the fleet does not exist.
        UnreachableError: a host does not answer.
        NotReadyError: a host cannot run the job, or the hosts do not match.
    """
    has_program = bool(request.script or request.module or request.command)
    if trial_s > 0 and not has_program:
        message = "--local-first runs a script, and none is given"
        raise UsageError(message, hint="give the script, for example: fleet check task.py --local-first")
    located = programs.find(request) if has_program else None
    fleet = running.find_fleet()
    env = {**fleet.record.spec.options.variables, **request.env}
    request = dataclasses.replace(request, env=env, arguments=located.arguments if located else ())
    program = programs.collect(located, running.services, env.get("PYTHONPATH", "")) if located else None
    fleet.announce()
    for text in program.bundle.notes if program else ():
        running.note(text)
    with open_agents(fleet.record.hosts, fleet.directory.key, fleet.access) as clients:
        check = _Check(request, trial_s, fleet, clients, program)
        problems = check.inspect_hosts()
        is_tried = trial_s > 0 and not problems
        if is_tried:
            problems = check.run_smoke_tests(f"check-{job_id(running.services.clock())}")
        problems += check.report_findings(tried=is_tried and not problems)
    if problems:
        raise NotReadyError(
            f"fleet {running.fleet!r} is not ready" + (f" for {located.entry.name}" if located else ""),
            hint="fix the problems, then check again",
            next_steps=[Again({})],
        )


class _Check:
    """One check of all hosts.

    Args:
        request: The program, as the user requested it.
        trial_s: Time to run it on each host separately; 0: it is not run.
        fleet: The fleet.
        clients: An agent on each host.
        program: The program to check; None: none.
    """

    def __init__(
        self,
        request: programs.ProgramRequest,
        trial_s: float,
        fleet: ExistingFleet,
        clients: Sequence[AgentClient],
        program: programs.Program | None,
    ) -> None:
        self._request, self._trial_s, self._fleet = request, trial_s, fleet
        self._clients, self._program, self._sink = clients, program, fleet.sink
        self._pythons = {client.host.name: client.host.python for client in clients}
        self._choice = Choice()
        self._findings: list[Finding] = []  # why the script fails between several workers

    def inspect_hosts(self) -> list[str]:
        """Report the properties of the hosts; return the reasons why a job cannot run there, a sentence each."""
        program = self._program
        pending = program.requirements if program else None  # requirements that are not installed yet
        if program and self._trial_s > 0:
            self._pythons = programs.install_for(program, self._fleet.record.spec, self._clients, self._sink)
            pending = None
        outcomes = call_each(
            self._clients,
            lambda client: client.prepare(self._preparation(client, "check", dry_run=True)._replace(entries=[])),
        )
        hosts = [_facts(outcome) for outcome in outcomes]
        prepared = [outcome.value for outcome in outcomes if outcome.value is not None]
        comparison = _compare_hosts(prepared)
        by_problem: dict[str, list[str]] = {}
        for host in hosts:
            by_problem.setdefault(host.problem, []).append(host.host)
        problems = [f"{fold(names)}: {problem}" for problem, names in by_problem.items() if problem]
        problems += comparison.problems
        notes = list(comparison.warnings)
        if program and prepared:
            locations = {
                name: location
                for name, location in program.imports.locations.items()
                if not (pending and pending.brings(name))
            }
            hosts = [host._replace(missing=tuple(filter(locations.get, host.missing))) for host in hosts]
            missing = {host.host: host.missing for host in hosts}
            problems += programs.missing_imports(locations, missing, program.entry)
            installs_keras = bool(pending and pending.names.intersection(_KERAS))  # in a version that is not known
            problems += [] if installs_keras else self._choose_keras(program, prepared)
            notes += filter(None, [program.entry.note, program.imports.note])
            variables = frozenset({*self._request.env, *self._request.secrets})
            terms = programs.Terms(adapt=self._request.adapt, variables=variables)
            findings = programs.script_findings(program.entry, prepared, terms, has_final_versions=not installs_keras)
            self._findings = [finding for finding in findings if finding.fails]
            notes += (programs.described(finding) for finding in findings if finding.severity is Severity.WARNING)
        fails = bool(self._findings) and not problems
        reasons = (*problems, *self._errors())
        self._sink.emit(HostsChecked(self._fleet.name, tuple(hosts), reasons, tuple(notes), script_fails=fails))
        return problems

    def report_findings(self, *, tried: bool) -> list[str]:
        """Return the errors that the linter expects with all workers.

        Args:
            tried: The script was run on each host alone, and works there.
        """
        for finding in self._findings if tried else ():
            text = (
                f"it works alone, but not with {len(self._fleet.record.hosts)} workers: {programs.described(finding)}"
            )
            self._sink.emit(Note(text, Level.WARNING))
        return self._errors()

    def _errors(self) -> list[str]:
        return [programs.described(finding) for finding in self._findings if finding.severity is Severity.ERROR]

    def _preparation(self, client: AgentClient, job: str, *, dry_run: bool) -> Prepare:
        host, fleet = client.host, self._fleet.name
        return programs.preparation(self._program, fleet, host, job, self._pythons[host.name], dry_run=dry_run)

    def _choose_keras(self, program: programs.Program, prepared: Sequence[Prepared]) -> list[str]:
        try:
            self._choice = programs.choose_keras(program.entry, self._request, prepared)
        except NotReadyError as error:
            return [error.message + (f" ({error.cause})" if error.cause else "")]
        if self._choice.note:
            self._sink.emit(Note(self._choice.note))
        return []

    def run_smoke_tests(self, job: str) -> list[str]:
        """Run the script alone on each host; return a sentence for each failure."""
        problems = []
        for outcome in call_each(self._clients, lambda client: self._run_smoke_test(client, job)):
            host, tried = outcome.host.name, outcome.value
            result = describe_smoke_test(host, tried) if tried else SmokeTested(host, False, _reason(outcome))
            self._sink.emit(result)
            if not result.ok:
                problems.append(f"{host}: {result.message}")
        return problems

    def _run_smoke_test(self, client: AgentClient, job: str) -> SmokeTestResult:
        program, name, request = self._program, client.host.name, self._request
        assert program is not None  # nothing is tried without one
        prepared = client.prepare(
            self._preparation(client, job, dry_run=False),
            program.bundle,
            lambda *counts: self._sink.emit(PushProgress(name, *counts)),
        )
        command = program.entry.command(prepared.python, request.arguments)
        aliased = KERAS in self._choice.env.get(VARIABLE, "").split(",")  # alone it runs on the Keras that it imports
        env = {**({} if aliased else self._choice.env), **request.env}
        return client.smoke_test(
            SmokeTest(command, env, request.secrets, self._trial_s),
            lambda step: self._sink.emit(BootstrapProgress(name, step.step, step.detail)),
        )


def describe_smoke_test(host: str, tried: SmokeTestResult) -> SmokeTested:
    """Return the result of a smoke test."""
    seconds = f"{tried.seconds:.0f} s" if tried.seconds >= 10 else f"{tried.seconds:.1f} s"
    if not tried.stepped and tried.exit not in (None, Exit(0)):
        code, number = tried.exit
        ended = f"was killed by signal {number}" if number else f"exited with code {code}"
        return SmokeTested(host, False, f"the script {ended} after {seconds}", tuple(tried.lines))
    running = f"the script was still running after {seconds}; no step was seen in its output"
    ended = running if tried.exit is None else f"the script ended after {seconds}"
    return SmokeTested(host, True, f"the script made its first step after {seconds}" if tried.stepped else ended)


def _facts(outcome: Outcome[Prepared]) -> HostFacts:
    host, prepared = outcome.host, outcome.value
    if prepared is None:
        return HostFacts(host.name, host.private_address, problem=_reason(outcome))
    return HostFacts(
        host=host.name,
        address=prepared.member.address,
        python=prepared.python,
        versions=prepared.versions,
        gpus=tuple(gpu.name for gpu in prepared.gpus),
        disk_free=prepared.disk_free,
        memory=prepared.memory_total,
        machine=prepared.machine,
        missing=tuple(prepared.missing),
    )


def _reason(outcome: Outcome[Prepared] | Outcome[SmokeTestResult]) -> str:
    """Return why a host did not answer as expected, without its name."""
    message = outcome.error.message if outcome.error else "it did not answer"
    return message.removeprefix(f"{where(outcome.host)}: ").removeprefix(f"{outcome.host.name}: ")


def _compare_hosts(prepared: Sequence[Prepared]) -> Readiness:
    """Return what the readiness check would report if all hosts could connect and ran a worker each."""
    members = [item.member._replace(task=item.member.slot) for item in prepared]
    facts = {
        item.member.slot: ReadinessFacts(
            item.versions, [gpu.name for gpu in item.gpus], item.disk_free, machine=item.machine
        )
        for item in prepared
    }
    pairs = {(member.task, other.task): "" for member in members for other in members if member is not other}
    return verdict(members, facts, pairs)


@command("Jobs", WithTrial)
@with_program
def check(
    ctx: typer.Context,
    program: ProgramOptions,
    local_first: float = option(
        0.0,
        LOCAL_FIRST,
        "Run SCRIPT on each host separately, up to its first step or TIME.",
        "[TIME]",
        shown=str(SMOKE_TEST_S),
    ),
    output: Output = OUTPUT,
) -> None:
    """Check that the hosts can run SCRIPT.

    Shows versions, GPUs, and disks of all hosts, whether they match, and which imports are missing. Runs SCRIPT only
    with --local-first. Exit code 14 if a host is not ready.

    Examples:
      fleet check
      fleet check task.py --local-first
    """
    with session(resolve_fleet(program.fleet), output, live=False) as running:
        run(program_request(ctx, program), local_first, running)
