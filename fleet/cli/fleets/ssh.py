"""`fleet ssh`: a shell or a command on a host of a fleet, through the ssh program."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import typer

from fleet.cli.application import AFTER_DASHES, WithProgram, command
from fleet.cli.options import FLEET, Output, argument, complete_worker, option
from fleet.cli.runtime import CommandEnded, resolve_fleet, session
from fleet.errors import NotFoundError, UsageError
from fleet.fleets.access import is_reachable_now, select_hosts
from fleet.fleets.agents import ExistingFleet
from fleet.remote.fanout import raise_failures
from fleet.remote.ssh.program import FAILED, find_ssh, remote_command, run_session, ssh_command
from fleet.state import FleetRecord
from fleet.steps import Step
from provision.model import Host
from provision.ssh_config.programs import require_agreed
from train.agent.protocol.cluster import task_rank

if TYPE_CHECKING:
    from train.agent.protocol.records import JobReport


def _one_host(worker: str, command: Sequence[str], record: FleetRecord) -> Host:
    hosts = select_hosts(record.spec.name, record.hosts, worker or "0")
    if len(hosts) > 1:
        raise UsageError(
            f"fleet ssh opens one session, and {worker} names {len(hosts)} hosts",
            next_steps=[
                Step("exec", "--worker", worker, "--", *(command or ("hostname",))),
                Step("ssh", hosts[0].name),
            ],
        )
    return hosts[0]


def _find_task(reference: str, worker: str, words: Sequence[str], fleet: ExistingFleet) -> tuple[Host, str]:
    """Return the host of a job's task, and the command that enters the task's environment."""
    from fleet.fleets.agents import newest_reports  # a session without a job starts without these
    from fleet.jobs.selection import is_newest, select_reported
    from fleet.jobs.tasks import worker_name
    from train import pack

    name, record = worker_name(worker) if worker else "", fleet.record
    with fleet.open_some(record.slots) as (clients, unreached):
        select = select_reported(reference, fleet.name)
        reports = newest_reports(clients, select, record.last_job).by_host
        if not reports:
            raise_failures(unreached, "find the job")
            raise NotFoundError(f"fleet {fleet.name!r} has no job yet", next_steps=[Step("jobs")])
        slot = find_slot(name, reports)
        if not slot:
            raise_failures(unreached, f"find {name}")
            tasks = sorted((report.task or report.slot for report in reports.values()), key=task_rank)
            raise NotFoundError(
                f"job {next(iter(reports.values())).job} has no task {name!r}",
                cause=f"its tasks are {', '.join(tasks)}",
                next_steps=[Step("ssh", tasks[0], "--job", *([] if is_newest(reference) else [reference]))],
            )
        client = next(client for client in clients if client.host.name == slot)
    host = client.host
    task = (reports[slot].job, slot)
    python, digest = host.python or "python3", pack.build_agent().digest
    command = pack.enter_command(python, host.root, digest, host.shared, task, words)
    return record.hosts[record.slots.index(host) // record.tasks_per_host], command


def find_slot(task: str, reports: Mapping[str, JobReport]) -> str:
    """Return the slot that has a task of a job, or the first one by rank if `task` is empty; empty if none has it."""
    names = {report.task or slot: slot for slot, report in reports.items()}
    first = min(names, key=task_rank, default="")
    return names.get(task or first, "")


_JOB = "--job"
_NOT_A_JOB = re.compile(r"-(?![1-9]).*|[0-9]+|(chief|worker|ps|evaluator)-[0-9]+", re.ASCII)


class WithJob(WithProgram):
    """A command that takes ``--job``."""

    optional_values = ((_JOB, "-1", lambda word: not _NOT_A_JOB.fullmatch(word)),)


@command("Hosts", WithJob)
def ssh(
    ctx: typer.Context,
    worker: str = argument(
        "",
        "[WORKER]",
        "Host: 1 or worker-1; with --job a task.  [default: the first]",
        autocompletion=complete_worker,
    ),
    command: list[str] | None = argument(None, "-- CMD", "Command to run instead of a shell."),
    job: str = option(
        "",
        _JOB,
        "Use the directory and environment of this job's task; without JOB those of the newest job.",
        "[JOB]",
        shown="the login directory",
    ),
    fleet: str = FLEET,
) -> None:
    """Open a shell on a host, or run one command.

    Passes the size of the terminal, all keys, and the exit code. ~. at the start of a line ends the session.

    Examples:
      fleet ssh worker-1
      fleet ssh 0 --job -- ls checkpoints
    """
    words = ctx.meta.get(AFTER_DASHES, ())
    if command:
        raise UsageError(
            f"unexpected argument {command[0]!r}",
            hint="a command goes after --",
            next_steps=[Step("ssh", worker, "--", *command, *words)],
        )
    has_input, has_output = sys.stdin.isatty(), sys.stdout.isatty()
    with session(resolve_fleet(fleet), Output.LINES, raw=True) as run:
        existing, program = run.find_fleet(), find_ssh()
        if job:
            host, remote = _find_task(job, worker, words, existing)
        else:
            host, remote = _one_host(worker, words, existing.record), remote_command(words)
        require_agreed(host)
        try:
            config = existing.directory.export_ssh_config(existing.record)
        except ValueError as error:
            raise UsageError(str(error), next_steps=[Step("inventory", "--format", "json")]) from error
        name, has_terminal = f"{run.fleet}-{host.name}", has_input and has_output
        line = ssh_command(program, config, name, remote, input_terminal=has_input, terminal=has_terminal)
        code = run_session(line)
        if code == FAILED and is_reachable_now(host, existing.directory.key, existing.access):
            code = run_session(line)
    raise CommandEnded(code)
