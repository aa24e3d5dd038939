"""Select hosts of a fleet by name."""

from __future__ import annotations

from collections.abc import Sequence

from fleet.errors import NotFoundError, UsageError
from fleet.folding import fold
from fleet.steps import Step
from provision.model import Host
from provision.names import instance_name, is_instance_name

ALL = "all"


def select_hosts(fleet: str, hosts: Sequence[Host], given: str) -> list[Host]:
    """Return the hosts that ``1``, ``worker-1``, ``worker:1``, or ``all`` names; commas separate several names.

    Args:
        fleet: Name of the fleet, for messages.
        hosts: Hosts of the fleet, in their order.
        given: The names.

    Raises:
        UsageError: a name is not that of a host.
        NotFoundError: the fleet does not have such a host.
    """
    if given == ALL:
        return list(hosts)
    by_name = {host.name: host for host in hosts}
    chosen = {}
    for word in given.split(","):
        name = instance_name(int(word)) if word.isascii() and word.isdigit() else word.replace(":", "-")
        if not is_instance_name(name):
            raise UsageError(
                f"{word!r} is not a host",
                hint=f"hosts of fleet {fleet!r}: {fold(by_name)}; tasks are selected with --job",
                next_steps=[Step("status", fleet=fleet)],
            )
        if name not in by_name:
            raise NotFoundError(
                f"fleet {fleet!r} has no host {name!r}",
                cause=f"its hosts are {fold(by_name)}" if len(by_name) > 1 else f"its only host is {fold(by_name)}",
                next_steps=[Step("status", fleet=fleet)],
            )
        chosen[name] = by_name[name]
    return [host for host in hosts if host.name in chosen]
