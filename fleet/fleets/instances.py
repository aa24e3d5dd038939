"""List the instances of a fleet, and delete some of them."""

from __future__ import annotations

from collections.abc import Sequence

from fleet.events import Sink
from fleet.fleets.connect import progress_to
from fleet.services import Services
from fleet.state import FleetDirectory
from provision.model import Instance
from provision.provider import Provider


def list_instances(fleet: str, provider: Provider, services: Services) -> list[Instance]:
    """Return the instances of a fleet as its provider lists them, and write them to the fleet's journal.

    Raises:
        FleetError: the provider does not answer.
    """
    instances = provider.list(fleet)
    services.store.fleet(fleet).observe(instances, services.clock())
    return instances


def delete_instances(
    instances: Sequence[Instance], directory: FleetDirectory, provider: Provider, sink: Sink
) -> list[str]:
    """Delete `instances` after recording the intent, and list the remaining ones.

    Returns:
        Names of the instances that still exist.
    """
    if not instances:
        return []
    if directory.exists():
        directory.intend("delete", instances=[[item.name, item.id] for item in instances])
    gone = {item.id for item in instances}
    provider.delete(instances, progress_to(sink, "deleted"))
    return [item.name for item in provider.list(instances[0].fleet) if item.id in gone]
