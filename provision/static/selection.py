"""Selects a fleet's hosts from an inventory, resolves the route to each, and reports all problems."""

from __future__ import annotations

import hashlib
import re
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from provision.directories import home_directory
from provision.inventory.allocation import is_allocation, read_allocation
from provision.inventory.entry import Entry
from provision.inventory.files import InventoryError, Location
from provision.inventory.names import is_host_name
from provision.inventory.reader import Inventory, read_inventory
from provision.model import FleetSpec
from provision.provider import ErrorKind, ProviderError
from provision.quantities import counted
from provision.ssh_config.programs import programs_of_ssh
from provision.ssh_config.routes import Route, SshConfigError, agent_socket, expanded, resolve_route
from provision.static.options import StaticOptions

ADDRESS_VARIABLE = "fleet_private_address"
_AT_ONCE = 16
_ID_LENGTH = 16
_UNSAFE = re.compile(r"[^A-Za-z0-9.]+")

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class SelectedHost:
    """A host of an inventory, and the SSH route to it.

    Attributes:
        entry: The host as the inventory describes it.
        location: Location at which it is first named.
        options: Arguments of ssh other than the host.
        route: The route that ssh resolves from these.
        private_address: Address at which other hosts reach it, if the inventory sets it.
        allocation: Allocation of a batch system that it belongs to; empty: none.
    """

    entry: Entry
    location: Location
    options: tuple[str, ...]
    route: Route
    private_address: str
    allocation: str = ""

    @property
    def id(self) -> str:
        """Unique identifier of the host: equal for the same route and login in the same allocation."""
        route = self.route
        text = "\n".join((route.address, str(route.port), route.user, route.key_name, *route.proxy))
        digest = hashlib.sha256(text.encode()).hexdigest()[:_ID_LENGTH]
        return f"{_UNSAFE.sub('-', self.allocation)}-{digest}" if self.allocation else digest


def read_selection(inventory: str, limit: str) -> tuple[Inventory, tuple[Entry, ...]]:
    """Return the hosts of an inventory that a limit names, in their order.

    Args:
        inventory: Path of the file, or an allocation.
        limit: Selection in the syntax of Ansible's ``--limit``; empty: all.

    Raises:
        ProviderError: no file is given.
        InventoryError: it cannot be read, is not supported, or has no such host.
    """
    if not inventory:
        raise ProviderError(
            ErrorKind.USAGE,
            "no hosts specified",
            hint="give the file that lists the hosts: --inventory FILE",
            next_steps=[("fleet", "up", "--help")],
        )
    hosts = read_allocation(inventory) if is_allocation(inventory) else read_inventory(_relative(Path(inventory)))
    return hosts, hosts.select(limit)


def select_entries(spec: FleetSpec) -> tuple[Inventory, tuple[Entry, ...]]:
    """Return the hosts of fleet `spec`, in the order of their indices, as the inventory describes them.

    Raises:
        ProviderError: there are too few hosts, or the inventory cannot be read.
    """
    options = StaticOptions.of(spec.options)
    inventory, entries = read_selection(options.inventory, options.limit)
    if spec.workers > len(entries):
        which = f"--limit {options.limit} selects" if options.limit else "it has"
        raise InventoryError(
            f"{counted(spec.workers, 'worker')} requested, but {which} {counted(len(entries), 'host')}",
            location=Location(inventory.path),
            hint="remove --workers to use all hosts",
            again={"--workers": None},
        )
    return inventory, entries[: spec.workers]


def select_hosts(spec: FleetSpec) -> list[SelectedHost]:
    """Return the hosts of fleet `spec`, in the order of their indices.

    Raises:
        ProviderError: there are too few hosts, the route to a host is not supported, or two hosts are the same.
    """
    options = StaticOptions.of(spec.options)
    inventory, entries = select_entries(spec)
    hosts = map_parallel(lambda entry: _resolve(entry, inventory.location(entry.name)), entries)
    _reject_duplicates(hosts)
    if not is_allocation(options.inventory):
        return hosts
    return [replace(host, allocation=options.inventory) for host in hosts]


def map_parallel(action: Callable[[T], U], items: Sequence[T]) -> list[U]:
    """Call `action` for each of `items` in parallel; return the results, or raise the first error in their order."""
    with ThreadPoolExecutor(max_workers=max(1, min(len(items), _AT_ONCE))) as pool:
        futures = [pool.submit(action, item) for item in items]
        return [future.result() for future in futures]


def _relative(path: Path) -> Path:
    """Return `path` as a user in the working directory would write it."""
    try:
        return path.relative_to(Path.cwd())
    except ValueError:
        return path


def _resolve(entry: Entry, location: Location) -> SelectedHost:
    _check_keys(entry, location)
    try:
        route = resolve_route(entry.address, options=entry.options)
    except SshConfigError as error:
        error.message = f"{location}: host {entry.name!r}: {error.message}"
        raise
    if not (route.identities or agent_socket(route.agent)):
        raise InventoryError(
            f"no key to log in to host {entry.name!r}",
            location=location,
            cause="no private key file for it exists, and no SSH agent is available",
            hint="this command must log in without a password",
            next_steps=[] if programs_of_ssh("", entry.options) else [("ssh", *entry.options, entry.address)],
        )
    return SelectedHost(entry, location, entry.options, route, _private_address(entry, location))


def _check_keys(entry: Entry, location: Location) -> None:
    """Raise InventoryError if a private key of the inventory is missing; ssh would only try other keys."""
    for text in entry.keys:
        path = expanded(text.replace("%%", "%"), home_directory())
        has_variable = "$" in text or "%" in text.replace("%%", "")
        if not has_variable and not (Path(path).is_file() or Path(f"{path}.pub").is_file()):
            raise InventoryError(
                f"the private key of host {entry.name!r} does not exist: {text}",
                location=location,
                hint="correct the path",
            )


def _private_address(entry: Entry, location: Location) -> str:
    value = entry.variables.get(ADDRESS_VARIABLE, "")
    if value == "":
        return ""
    if not isinstance(value, str) or not is_host_name(value):
        raise InventoryError(
            f"{ADDRESS_VARIABLE} of host {entry.name!r} is not an address: {value!r}",
            location=location,
            hint="set the address at which the other hosts reach it",
        )
    return value


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
                    location=host.location,
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
            location=host.location,
            cause=error.strerror or str(error),
            hint="add its address to the same line, e.g. ansible_host=10.0.0.3",
        ) from error
    return {str(end[4][0]) for end in resolved}
