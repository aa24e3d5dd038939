"""Release external hosts: stop all processes of the fleet on them, and remove its files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fleet.errors import FleetError
from fleet.events import InstanceChanged, Level, Note, Sink
from fleet.fleets.access import Access
from fleet.fleets.agents import call_each, opened
from fleet.remote.fanout import errors_by_host, values_of
from fleet.state import FleetDirectory, slots
from provision.model import FleetSpec, Host, Instance
from provision.provider import Provider
from train.agent.protocol.records import Release


def external_hosts(spec: FleetSpec, instances: Sequence[Instance], provider: Provider) -> list[Host]:
    """Return the hosts that may hold files of the fleet: those with confirmed host keys."""
    return [host for instance in instances for host in _find_host(spec, instance, provider)]


def release_hosts(
    hosts: Sequence[Host], key: Path, sink: Sink, tasks_per_host: int = 1, access: Access | None = None
) -> list[str]:
    """Stop all processes of a fleet on its hosts, and remove its files there.

    Args:
        hosts: The hosts, with their SSH settings.
        key: Private key of the fleet.
        sink: Takes progress and warnings.
        tasks_per_host: Number of slots of each host. Slots are subdirectories of the hosts' directories; processes
            in them are stopped first.
        access: The access to the hosts, with open agents.

    Returns:
        Names of hosts on which files may be left.
    """
    if tasks_per_host > 1:
        release_hosts(slots(hosts, tasks_per_host), key, sink)
    for host in hosts:
        sink.emit(InstanceChanged(host.name, "deleting fleet's files"))
    with opened(hosts, key, access, sink=sink) as opening:
        outcomes = call_each(values_of(opening), lambda client: client.release(Release()))
    failed = errors_by_host((*opening, *outcomes))
    for outcome in outcomes:
        if outcome.error is None:
            sink.emit(InstanceChanged(outcome.host.name, "deleted fleet's files", done=True))
    for host in hosts:
        if host.name in failed:
            text = f"{failed[host.name].message}; files of fleet in ~/{host.root}, if there are any, stay"
            sink.emit(Note(text, Level.WARNING))
    return [host.name for host in hosts if host.name in failed]


def release_files(
    spec: FleetSpec, instances: Sequence[Instance], directory: FleetDirectory, provider: Provider, sink: Sink
) -> list[str]:
    """Delete the files of a fleet on existing hosts; return the names of those on which some may be left."""
    if not spec.options.existing:
        return []
    record = directory.read()
    hosts = external_hosts(spec, instances, provider)
    return release_hosts(hosts, directory.key, sink, record.tasks_per_host if record else 1)


def ignore_progress(_name: str, _step: str) -> None:
    """Ignore the progress of a provider that releases hosts: `release_hosts` has reported it already."""


def _find_host(spec: FleetSpec, instance: Instance, provider: Provider) -> list[Host]:
    """Return the SSH settings of an instance; empty if its host key was not confirmed, so that it holds no files."""
    try:
        return list(provider.hosts(spec, [instance]))
    except FleetError:
        return []
