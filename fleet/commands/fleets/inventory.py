"""`fleet inventory`: export the hosts of a fleet for other programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fleet.errors import UsageError
from fleet.services import Services
from fleet.steps import Step

Form = Literal["ansible", "ssh-config", "json"]


@dataclass(frozen=True)
class InventoryRequest:
    """Request of the command."""

    fleet: str
    form: Form = "ansible"


def run(request: InventoryRequest, services: Services) -> str:
    """Return the hosts of a fleet as the content of a file.

    Raises:
        NotFoundError: the fleet does not exist.
        UsageError: one of its paths cannot be written in such a file.
    """
    from provision.inventory.export import export

    directory, record = services.store.need(request.fleet)
    try:
        return export(request.fleet, record.hosts, directory.key, directory.known_hosts, request.form)
    except ValueError as error:
        raise UsageError(str(error), next_steps=[Step("inventory", "--format", "json")]) from error
