"""Let replaced hosts take over their slots in the running job, and new hosts join it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fleet.errors import FleetError
from fleet.events import Level, Note, Sink
from fleet.fleets.agents import newest_reports, opened
from fleet.fleets.gpu_shares import moved_share
from fleet.fleets.install import install, job_packages
from fleet.folding import fold
from fleet.remote.client import AgentClient
from fleet.remote.clocks import correction_s
from fleet.state import FleetDirectory, FleetRecord
from fleet.steps import Step
from train.agent.protocol.records import Commit, GetJoinInfo, JobReport


def missing_slots(reports: Mapping[str, JobReport]) -> tuple[str, list[str]]:
    """Return a host that runs the current job, and the slots that no longer take part in it.

    Args:
        reports: The report of each host that answers about the newest job, by host name.

    Returns:
        The name of the host, and the names of the missing slots; empty if no job runs, or if none is missing.
    """
    alive = {host for host, report in reports.items() if report.alive and report.result is None}
    if not alive:
        return "", []
    source = min(alive)
    missing = [member.slot for member in reports[source].members if member.slot not in alive]
    return (source, missing) if missing else ("", [])


def joining_slots(reports: Mapping[str, JobReport]) -> tuple[str, list[str]]:
    """Return a host that runs the current job, and the slots that may join it and do not take part in it.

    Args:
        reports: As for `missing_slots`.
    """
    running = {host: report for host, report in reports.items() if report.alive and report.result is None}
    if not running:
        return "", []
    source = min(running)
    return source, [slot for slot in reports[source].joinable if slot not in running]


def rejoin(record: FleetRecord, directory: FleetDirectory, sink: Sink) -> list[str]:
    """Let the hosts of a fleet rejoin the running job if they lost their slots in it, or join it if it may grow.

    Returns:
        Names of the hosts that joined; a host that cannot join is reported, and does not affect the others.
    """
    with opened(record.slots, directory.key, sink=sink) as outcomes:
        clients = {outcome.host.name: outcome.value for outcome in outcomes if outcome.value is not None}
        try:
            reports = newest_reports(list(clients.values()), started=record.last_job).by_host
        except FleetError:
            return []
        _, missing = missing_slots(reports)
        source, joining = joining_slots(reports)
        if source:
            _report_outside([name for name in clients if name not in joining], reports[source], sink)
        return [
            name
            for name in dict.fromkeys((*missing, *joining))
            if name in clients and _join(name, source, reports, clients, record, sink)
        ]


def _report_outside(hosts: Sequence[str], running: JobReport, sink: Sink) -> None:
    """Report which of the hosts cannot take part in the running job."""
    inside = {*(member.slot for member in running.members), *running.joinable}
    outside = [name for name in hosts if name not in inside]
    if outside:
        verb = "does" if len(outside) == 1 else "do"
        why = f"it takes at most {running.max_workers}" if running.max_workers else "it was started without it"
        sink.emit(Note(f"{fold(outside)} {verb} not join the running job {running.job}: {why} (--max-workers)"))


def _join(
    name: str,
    source: str,
    reports: Mapping[str, JobReport],
    clients: Mapping[str, AgentClient],
    record: FleetRecord,
    sink: Sink,
) -> bool:

    job = reports[source].job
    try:
        join_info, python = clients[source].get_join_info(GetJoinInfo(job, source)), ""
        commit = _correct_clock(join_info.commit, clients[source], clients[name])
        join_info = join_info._replace(commit=commit)
        if commit.requirements:
            packages = job_packages(commit.requirements, commit.constraints, record.spec)
            (installed,) = install([clients[name]], packages, sink)
            python = installed.python
        clients[name].join(
            join_info,
            name,
            clients[source],
            lambda prepared, env: moved_share(env, prepared.gpus, (source, name), record.tasks_per_host),
            python,
        )
    except FleetError as error:
        why = f"{name} cannot join job {job}: {error.message}"
        sink.emit(Note(f"{why}; retry with `{Step('up').text(record.spec.name)}`", Level.WARNING))
        return False
    when = "its next complete checkpoint" if name in commit.joinable else "the next attempt"
    sink.emit(Note(f"{name} joined job {job} and takes part from {when} on"))
    return True


def _correct_clock(commit: Commit, source: AgentClient, target: AgentClient) -> Commit:
    """Return the commit of `source` with the correction of the clock of `target`."""
    reference = source.read_clock()
    reference = reference._replace(ahead_s=reference.ahead_s + commit.clock_correction_s)
    return commit._replace(clock_correction_s=correction_s(target.read_clock(), reference))
