"""Hosts that exist on are given back as they were: nothing of the fleet stays on them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fleet.errors import FleetError
from fleet.events import InstanceChanged, Level, Note, Sink
from fleet.fleets.agents import ask_each, opened
from provision.model import FleetSpec, Host, Instance
from provision.provider import Provider, ProviderError
from train.agent.protocol.records import Leave


def lent(spec: FleetSpec, instances: Sequence[Instance], provider: Provider) -> list[Host]:
    """Hosts on which something of the fleet may be: those that somebody has vouched for."""
    return [host for instance in instances for host in _host(spec, instance, provider)]


def leave(hosts: Sequence[Host], key: Path, sink: Sink) -> list[str]:
    """End what runs for a fleet on its hosts, and remove all of its files there.

    Args:
        hosts: How SSH reaches them.
        key: Private key of the fleet.
        sink: Takes what is done, and why it cannot be.

    Returns:
        Names of hosts on which something may be left.
    """
    for host in hosts:
        sink.emit(InstanceChanged(host.name, "deleting fleet's files"))
    failed: dict[str, FleetError] = {}
    with opened(hosts, key) as outcomes:
        from fleet.remote.job import leave as leave_host

        failed |= {one.host.name: one.error for one in outcomes if one.error is not None}
        channels = [one.value for one in outcomes if one.value is not None]
        for one in ask_each(channels, lambda channel: leave_host(channel, Leave())):
            if one.error is None:
                sink.emit(InstanceChanged(one.host.name, "deleted fleet's files", done=True))
            else:
                failed[one.host.name] = one.error
    for host in hosts:
        if host.name in failed:
            text = f"{failed[host.name].message}; what fleet has there stays: ~/{host.root}"
            sink.emit(Note(text, Level.WARNING))
    return [host.name for host in hosts if host.name in failed]


def untold(_name: str, _step: str) -> None:
    """The progress of a provider that gives hosts back: what was done on them is told already."""


def _host(spec: FleetSpec, instance: Instance, provider: Provider) -> list[Host]:
    """How SSH reaches an instance; nothing where nobody has vouched for it, so that nothing can be there."""
    try:
        return list(provider.hosts(spec, [instance]))
    except ProviderError:
        return []
