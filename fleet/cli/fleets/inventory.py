"""`fleet inventory`: export the hosts of a fleet for other programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from fleet.cli.application import command
from fleet.cli.options import Fleet, option
from fleet.cli.runtime import make_services, print_result, resolve_fleet
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


@command("Hosts")
def inventory(
    form: Annotated[
        Literal["ansible", "ssh-config", "json"], option("--format", "Output format.", "<ansible|ssh-config|json>")
    ] = "ansible",
    fleet: Fleet = "",
) -> None:
    """Export the hosts of a fleet for other programs.

    Examples:
      fleet inventory > hosts.yaml
      fleet inventory --format ssh-config
    """
    request = InventoryRequest(fleet=resolve_fleet(fleet), form=form)
    print_result(request.fleet, lambda out: out.write(run(request, make_services())))
