"""The command `fleet inventory`: its options, and the request that they make."""

from __future__ import annotations

from typing import Annotated, Literal

from fleet.cli.options import Fleet, option
from fleet.cli.runtime import make_services, print_result, resolve_fleet


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
    from fleet.commands.fleets import inventory as verb

    request = verb.InventoryRequest(fleet=resolve_fleet(fleet), form=form)
    print_result(request.fleet, lambda out: out.write(verb.run(request, make_services())))
