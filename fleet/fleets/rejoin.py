"""Hosts that were made anew take their places in the job that runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fleet.errors import FleetError
from fleet.events import Level, Note, Sink
from fleet.fleets.agents import newest_reports, opened
from fleet.fleets.gpu_shares import moved_share
from fleet.fleets.install import install
from fleet.state import FleetDirectory, FleetRecord
from fleet.steps import Step
from train.agent.protocol.records import Invite, JobReport

if TYPE_CHECKING:
    from fleet.remote.channel import AgentChannel


def missing_slots(reports: Mapping[str, JobReport]) -> tuple[str, list[str]]:
    """Who can tell of the job that runs, and which of its hosts do not take part in it any more.

    Args:
        reports: What each host that answers knows of the newest job, by its name.

    Returns:
        A host where the job runs, and the others' names; empty where no job runs, or none is missing.
    """
    alive = {host for host, report in reports.items() if report.alive and report.result is None}
    if not alive:
        return "", []
    giver = min(alive)
    missing = [member.slot for member in reports[giver].members if member.slot not in alive]
    return (giver, missing) if missing else ("", [])


def rejoin(record: FleetRecord, directory: FleetDirectory, sink: Sink) -> list[str]:
    """Let the hosts of a fleet that lost their part in the running job take it up again.

    Returns:
        Names of those that joined; what hinders one is told, and hinders nobody else.
    """
    with opened(record.places, directory.key) as outcomes:
        channels = {one.value.connection.host.name: one.value for one in outcomes if one.value is not None}
        try:
            reports = newest_reports(list(channels.values()), known=record.last_job).by_host
        except FleetError:
            return []
        giver, missing = missing_slots(reports)
        return [name for name in missing if name in channels and _join(name, giver, reports, channels, record, sink)]


def _join(
    name: str,
    giver: str,
    reports: Mapping[str, JobReport],
    channels: Mapping[str, AgentChannel],
    record: FleetRecord,
    sink: Sink,
) -> bool:
    from fleet.remote.job import invite, join

    job = reports[giver].job
    try:
        invitation, python = invite(channels[giver], Invite(job, giver)), ""
        wanted = invitation.commit
        if wanted.requirements:
            (installed,) = install(
                [channels[name]], wanted.requirements, sink, constraints=wanted.constraints, on_top=True
            )
            python = installed.python
        join(
            channels[name],
            invitation,
            name,
            channels[giver],
            lambda prepared, env: moved_share(env, prepared.gpus, (giver, name), record.tasks_per_host),
            python,
        )
    except FleetError as error:
        why = f"{name} cannot join job {job}: {error.message}"
        sink.emit(Note(f"{why}; retry with `{Step('up').text(record.spec.name)}`", Level.WARNING))
        return False
    sink.emit(Note(f"{name} joined job {job} and takes part from the next attempt"))
    return True
