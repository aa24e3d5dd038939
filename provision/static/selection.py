"""Selects a fleet's hosts from an inventory, resolves the route to each, and reports all problems."""

from __future__ import annotations

import hashlib
import re
import shlex
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from provision.inventory.allocation import is_allocation, read_allocation
from provision.inventory.ansible.entries import Entry
from provision.inventory.ansible.ranges import is_host_name
from provision.inventory.errors import InventoryError, Place
from provision.inventory.reader import Inventory, read_inventory
from provision.model import FleetSpec
from provision.provider import ErrorKind, ProviderError
from provision.quantities import counted
from provision.ssh_config.routes import Way, WayError, agent_socket, expanded, home_directory, way
from provision.static.options import StaticOptions

ADDRESS_VARIABLE = "fleet_private_address"
_AT_ONCE = 16
_ID_LENGTH = 16
_UNSAFE = re.compile(r"[^A-Za-z0-9.]+")

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class Chosen:
    """A host of an inventory, and the SSH route to it.

    Attributes:
        entry: The host as the inventory describes it.
        place: Place at which it is first named.
        options: Arguments of ssh other than the host.
        way: The route that ssh resolves from these.
        private_address: Address at which other hosts reach it, if the inventory sets it.
        allocation: Allocation of a batch system that it belongs to; empty: none.
    """

    entry: Entry
    place: Place
    options: tuple[str, ...]
    way: Way
    private_address: str
    allocation: str = ""

    @property
    def id(self) -> str:
        """Unique identifier of the host: equal for the same route and login in the same allocation."""
        route = self.way
        text = "\n".join((route.address, str(route.port), route.user, route.key_name, *route.proxy))
        digest = hashlib.sha256(text.encode()).hexdigest()[:_ID_LENGTH]
        return f"{_UNSAFE.sub('-', self.allocation)}-{digest}" if self.allocation else digest


def selected(inventory: str, limit: str) -> tuple[Inventory, tuple[Entry, ...]]:
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
            ErrorKind.USAGE, "no hosts specified", hint="give the file that lists the hosts: --inventory FILE"
        )
    hosts = read_allocation(inventory) if is_allocation(inventory) else read_inventory(_spoken(Path(inventory)))
    return hosts, hosts.select(limit)


def choose(spec: FleetSpec) -> list[Chosen]:
    """Return the hosts of fleet `spec`, in the order of their indices.

    Raises:
        ProviderError: there are too few hosts, the route to a host is not supported, or two hosts are the same.
    """
    options = StaticOptions.of(spec.options)
    inventory, entries = selected(options.inventory, options.limit)
    if spec.workers > len(entries):
        which = f"--limit {options.limit} selects" if options.limit else "it has"
        raise InventoryError(
            f"{counted(spec.workers, 'worker')} requested, but {which} {counted(len(entries), 'host')}",
            place=Place(inventory.path),
            hint="leave --workers out to take all of them",
            again={"--workers": None},
        )
    chosen = at_once(lambda entry: _chosen(entry, inventory.place(entry.name)), entries[: spec.workers])
    _refuse_twins(chosen)
    if not is_allocation(options.inventory):
        return chosen
    return [replace(host, allocation=options.inventory) for host in chosen]


def at_once(action: Callable[[T], U], items: Sequence[T]) -> list[U]:
    """Call `action` for each of `items` in parallel; return the results, or raise the first error in their order."""
    with ThreadPoolExecutor(max_workers=max(1, min(len(items), _AT_ONCE))) as pool:
        futures = [pool.submit(action, item) for item in items]
        return [future.result() for future in futures]


def _spoken(path: Path) -> Path:
    """Return `path` as a user in the working directory would write it."""
    try:
        return path.relative_to(Path.cwd())
    except ValueError:
        return path


def _chosen(entry: Entry, place: Place) -> Chosen:
    _check_keys(entry, place)
    words = ssh_options(entry)
    try:
        route = way(entry.address, options=words)
    except WayError as error:
        raise InventoryError(
            f"the host {entry.name!r}: {error.message}",
            place=place,
            cause=error.cause,
            hint=error.hint,
            next_step=error.next_step,
        ) from error
    if not (route.identities or agent_socket(route.agent)):
        raise InventoryError(
            f"there is no key to log in to the host {entry.name!r} with",
            place=place,
            cause="no file of a private key that is meant for it exists, and no SSH agent may be asked",
            hint="this command must log in without a password",
            next_step=shlex.join(["ssh", *words, entry.address]),
        )
    return Chosen(entry, place, words, route, _private_address(entry, place))


def ssh_options(entry: Entry) -> tuple[str, ...]:
    """Return the ssh options of a host, with absolute paths, so that they are valid in every working directory."""
    args = entry.ssh_args
    anchored = replace(
        entry,
        key_file=_absolute(entry.key_file),
        ssh_args=replace(
            args,
            more_keys=tuple(_absolute(path) for path in args.more_keys),
            certificates=tuple(_absolute(path) for path in args.certificates),
            agent=_absolute(args.agent) if "/" in args.agent else args.agent,
            known_hosts=_absolute(args.known_hosts),
        ),
    )
    return (*(("-F", _absolute(args.config)) if args.config else ()), *anchored.options())


def _absolute(path: str) -> str:
    """Return a path that is valid in every working directory; ssh itself resolves ``~`` and ``none``."""
    return path if path in ("", "none") or path.startswith("~") else str(Path(path).absolute())


def _check_keys(entry: Entry, place: Place) -> None:
    """Raise InventoryError if a private key of the inventory is missing; ssh would only try other keys."""
    for text in (entry.key_file, *entry.ssh_args.more_keys):
        path = expanded(text, home_directory()) if text else ""
        if path and not (Path(path).is_file() or Path(f"{path}.pub").is_file()):
            raise InventoryError(
                f"the private key of the host {entry.name!r}, {text}, is not there",
                place=place,
                hint="correct the path",
            )


def _private_address(entry: Entry, place: Place) -> str:
    value = entry.variables.get(ADDRESS_VARIABLE, "")
    if value == "":
        return ""
    if not isinstance(value, str) or not is_host_name(value):
        raise InventoryError(
            f"{ADDRESS_VARIABLE} of the host {entry.name!r} must be an address, and {value!r} is none",
            place=place,
            hint="write the address at which the other hosts reach it",
        )
    return value


def _refuse_twins(chosen: Sequence[Chosen]) -> None:
    """Raise InventoryError if two names are the same host, or a name cannot be resolved."""
    seen: dict[object, Chosen] = {}
    for host, addresses in zip(chosen, at_once(_addresses, chosen), strict=True):
        for end in addresses:
            other = seen.setdefault((end, host.way.port, host.way.proxy), host)
            if other is not host:
                raise InventoryError(
                    f"the hosts {other.entry.name!r} and {host.entry.name!r} are one: both are "
                    f"{end} on port {host.way.port}",
                    place=host.place,
                    hint="leave one of them out",
                )


def _addresses(host: Chosen) -> set[str]:
    """Return the addresses of a host; only a proxy can resolve a name behind it.

    Raises:
        InventoryError: its name cannot be resolved.
    """
    if host.way.proxy:
        return {host.way.address.lower()}
    try:
        resolved = socket.getaddrinfo(host.way.address, host.way.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise InventoryError(
            f"nobody knows where the host {host.entry.name!r} is: {host.way.address} has no address",
            place=host.place,
            cause=error.strerror or str(error),
            hint="write its address beside it, as ansible_host=10.0.0.3",
        ) from error
    return {str(end[4][0]) for end in resolved}


def way_of(target: str, words: Sequence[str]) -> Way:
    """Return the SSH route to a host that was selected before.

    Raises:
        ProviderError: OpenSSH gives no route.
    """
    return way(target, options=words)
