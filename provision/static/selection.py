"""Selects a fleet's hosts from an inventory, resolves the route to each, and reports all problems."""

from __future__ import annotations

import hashlib
import re
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

from provision.directories import home_directory
from provision.inventory.allocation import is_allocation, read_allocation
from provision.inventory.entry import Entry
from provision.inventory.files import InventoryError
from provision.inventory.reader import Inventory, read_inventory
from provision.model import FleetSpec
from provision.quantities import counted
from provision.ssh_config.programs import programs_of_ssh
from provision.ssh_config.routes import Route, SshConfigError, agent_socket, expanded, resolve_route
from provision.static.options import StaticOptions

_AT_ONCE = 16
_ID_LENGTH = 16
_UNSAFE = re.compile(r"[^A-Za-z0-9.]+")

T = TypeVar("T")
U = TypeVar("U")


class SelectedHost(NamedTuple):
    """A host of an inventory, and the SSH route to it.

    Attributes:
        entry: The host as the inventory describes it.
        route: The route that ssh resolves from it.
        id: Unique identifier of the host: equal for the same route and login in the same allocation.
    """

    entry: Entry
    route: Route
    id: str


def read_selection(options: StaticOptions) -> tuple[Inventory, tuple[Entry, ...]]:
    """Return the inventory that options name, and the hosts of it that they select, in their order.

    Raises:
        InventoryError: no file is given, it cannot be read, is not supported, or has no such host.
    """
    if not options.inventory:
        raise InventoryError(
            "no hosts specified",
            hint="give the file that lists the hosts: --inventory FILE",
            next_steps=[("fleet", "up", "--help")],
        )
    if is_allocation(options.inventory):
        inventory = read_allocation(options.inventory)
    else:
        path = Path(options.inventory)  # in messages, as a user in the working directory would write it
        inventory = read_inventory(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
    return inventory, inventory.select(options.limit)


def select_entries(spec: FleetSpec) -> tuple[Entry, ...]:
    """Return the hosts of fleet `spec`, in the order of their indices, as the inventory describes them.

    Raises:
        InventoryError: there are too few hosts, or the inventory cannot be read.
    """
    options = StaticOptions.of(spec.options)
    inventory, entries = read_selection(options)
    if spec.workers > len(entries):
        which = f"--limit {options.limit} selects" if options.limit else "it has"
        raise InventoryError(
            f"{counted(spec.workers, 'worker')} requested, but {which} {counted(len(entries), 'host')}",
            str(inventory.path),
            hint="remove --workers to use all hosts",
            again={"--workers": None},
        )
    return entries[: spec.workers]


def select_hosts(spec: FleetSpec) -> list[SelectedHost]:
    """Return the hosts of fleet `spec`, in the order of their indices.

    Raises:
        ProviderError: there are too few hosts, the route to a host is not supported, or two hosts are the same.
    """
    inventory = StaticOptions.of(spec.options).inventory
    allocation = inventory if is_allocation(inventory) else ""
    entries = select_entries(spec)
    routes = map_parallel(_resolve, entries)
    hosts = [SelectedHost(*each, host_id(each[1], allocation)) for each in zip(entries, routes, strict=True)]
    _reject_duplicates(hosts)
    return hosts


def host_id(route: Route, allocation: str) -> str:
    """Return the identifier of a host with this route, in an allocation of a batch system or, if empty, in none."""
    text = "\n".join((route.address, str(route.port), route.user, route.key_name, *route.proxy))
    digest = hashlib.sha256(text.encode()).hexdigest()[:_ID_LENGTH]
    return f"{_UNSAFE.sub('-', allocation)}-{digest}" if allocation else digest


def map_parallel(action: Callable[[T], U], items: Sequence[T]) -> list[U]:
    """Call `action` for each of `items` in parallel; return the results, or raise the first error in their order."""
    with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
        return list(pool.map(action, items))


def _resolve(entry: Entry) -> Route:
    for text in entry.keys:  # if a key of the inventory is missing, ssh would only try other keys
        path = expanded(text.replace("%%", "%"), home_directory())
        has_variable = "$" in text or "%" in text.replace("%%", "")
        if not has_variable and not (Path(path).is_file() or Path(f"{path}.pub").is_file()):
            message = f"the private key of host {entry.name!r} does not exist: {text}"
            raise InventoryError(message, entry.location, hint="correct the path")
    try:
        route = resolve_route(entry.address, options=entry.options)
    except SshConfigError as error:
        error.message = f"{entry.location}: host {entry.name!r}: {error.message}"
        raise
    if not (route.identities or agent_socket(route.agent)):
        raise InventoryError(
            f"no key to log in to host {entry.name!r}",
            entry.location,
            cause="no private key file for it exists, and no SSH agent is available",
            hint="this command must log in without a password",
            next_steps=[] if programs_of_ssh("", entry.options) else [("ssh", *entry.options, entry.address)],
        )
    return route


def _reject_duplicates(hosts: Sequence[SelectedHost]) -> None:
    """Raise InventoryError if two names are the same host, or a name cannot be resolved."""
    seen: dict[object, SelectedHost] = {}
    for host, addresses in zip(hosts, map_parallel(_addresses, hosts), strict=True):
        for end in addresses:
            other = seen.setdefault((end, host.route.port, host.route.proxy), host)
            if other is not host:
                raise InventoryError(
                    f"hosts {other.entry.name!r} and {host.entry.name!r} are the same: both are "
                    f"{end} on port {host.route.port}",
                    host.entry.location,
                    hint="remove one of them",
                )


def _addresses(host: SelectedHost) -> set[str]:
    """Return the addresses of a host; only a proxy can resolve a name behind it.

    Raises:
        InventoryError: its name cannot be resolved.
    """
    if host.route.proxy:
        return {host.route.address.lower()}
    try:
        resolved = socket.getaddrinfo(host.route.address, host.route.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise InventoryError(
            f"cannot resolve host {host.entry.name!r}: {host.route.address} has no address",
            host.entry.location,
            cause=error.strerror or str(error),
            hint="add its address to the same line, e.g. ansible_host=10.0.0.3",
        ) from error
    return {str(end[4][0]) for end in resolved}
