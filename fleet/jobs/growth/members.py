"""Hosts that have joined a running job since it started."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

from fleet.fleets.agents import opened
from fleet.remote.client import AgentClient
from fleet.remote.fanout import values_of
from fleet.state import FleetDirectory, FleetRecord, slots
from provision.model import Host
from train.agent.protocol.records import JobReport, Member


def all_members(first: JobReport, reports: Mapping[str, JobReport]) -> tuple[Member, ...]:
    """Return the members of a job as they were committed, and the slots that joined it since, without their tasks.

    Args:
        first: The report that describes the job as most hosts do.
        reports: The reports of the hosts about the job, by slot.
    """
    committed = {member.slot for member in first.members}
    joined = [
        member._replace(task="")
        for slot, report in sorted(reports.items())
        for member in report.members
        if member.slot == slot and slot in first.joinable and slot not in committed
    ]
    return (*first.members, *joined)


def added_slots(record: FleetRecord, directory: FleetDirectory) -> list[Host]:
    """Return the slots of the hosts that were added to a fleet since `record` was read."""
    now = directory.read() if directory.exists() else None
    before = {host.name for host in record.slots}
    current = slots(now.hosts, record.tasks_per_host) if now is not None else ()
    return [host for host in current if host.name not in before]


@contextlib.contextmanager
def with_added(
    clients: Sequence[AgentClient], record: FleetRecord, directory: FleetDirectory
) -> Iterator[list[AgentClient]]:
    """Yield `clients`, and those of the hosts that were added since `record` was read and that answer."""
    with opened(added_slots(record, directory), directory.key) as outcomes:
        yield [*clients, *values_of(outcomes)]


def joining_hosts(first: JobReport, reports: Sequence[JobReport]) -> tuple[str, ...]:
    """Return the slots that have joined a running job and have no task yet.

    Args:
        first: The report that describes the job as most hosts do.
        reports: The reports of its hosts.
    """
    return tuple(
        sorted(item.slot for item in reports if item.slot in first.joinable and item.alive and not item.task)
    )
