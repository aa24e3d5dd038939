"""The hosts of an inventory of which a fleet consists, and how SSH reaches each; every problem is named at once."""

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
from provision.static.options import options_of

ADDRESS_VARIABLE = "fleet_private_address"
_AT_ONCE = 16
_ID_LENGTH = 16
_UNSAFE = re.compile(r"[^A-Za-z0-9.]+")

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class Chosen:
    """A host of an inventory, and how SSH reaches it.

    Attributes:
        entry: As the inventory says it.
        place: Where it is first named.
        options: What ssh is given besides the host, word by word.
        way: What ssh makes of that.
        private_address: Address by which other hosts reach it, where the inventory says so.
        allocation: Of a batch system, that it belongs to; empty: none.
    """

    entry: Entry
    place: Place
    options: tuple[str, ...]
    way: Way
    private_address: str
    allocation: str = ""

    @property
    def id(self) -> str:
        """Tells the host from all others: the same for the same way and login, in the same allocation."""
        one = self.way
        text = "\n".join((one.address, str(one.port), one.user, one.key_name, *one.proxy))
        digest = hashlib.sha256(text.encode()).hexdigest()[:_ID_LENGTH]
        return f"{_UNSAFE.sub('-', self.allocation)}-{digest}" if self.allocation else digest


def selected(inventory: str, limit: str) -> tuple[Inventory, tuple[Entry, ...]]:
    """The hosts of an inventory that a limit names, in their order.

    Args:
        inventory: Path of the file, or an allocation.
        limit: As Ansible's ``--limit`` has it; empty: all.

    Raises:
        ProviderError: no file is given.
        InventoryError: it cannot be read or honoured, or there is no such host.
    """
    if not inventory:
        raise ProviderError(
            ErrorKind.USAGE, "no hosts specified", hint="give the file that lists the hosts: --inventory FILE"
        )
    found = read_allocation(inventory) if is_allocation(inventory) else read_inventory(_spoken(Path(inventory)))
    return found, found.select(limit)


def choose(spec: FleetSpec) -> list[Chosen]:
    """The hosts of fleet `spec`, in the order of their indices.

    Raises:
        ProviderError: they are too few, one cannot be reached as it wants to be, or two are the same.
    """
    options = options_of(spec)
    inventory, entries = selected(options.inventory, options.limit)
    if spec.workers > len(entries):
        which = f"--limit {options.limit} selects" if options.limit else "it has"
        raise InventoryError(
            f"{counted(spec.workers, 'worker')} requested, but {which} {counted(len(entries), 'host')}",
            place=Place(inventory.path),
            hint="leave --workers out to take all of them",
            again={"--workers": None},
        )
    found = at_once(lambda entry: _chosen(entry, inventory.place(entry.name)), entries[: spec.workers])
    _refuse_twins(found)
    if not is_allocation(options.inventory):
        return found
    return [replace(one, allocation=options.inventory) for one in found]


def at_once(action: Callable[[T], U], items: Sequence[T]) -> list[U]:
    """What `action` makes of each of `items`, side by side; the first error in their order is raised."""
    with ThreadPoolExecutor(max_workers=max(1, min(len(items), _AT_ONCE))) as pool:
        futures = [pool.submit(action, item) for item in items]
        return [future.result() for future in futures]


def _spoken(path: Path) -> Path:
    """`path` as a user in the working directory would write it."""
    try:
        return path.relative_to(Path.cwd())
    except ValueError:
        return path


def _chosen(entry: Entry, place: Place) -> Chosen:
    _check_keys(entry, place)
    words = ssh_options(entry)
    try:
        found = way(entry.address, options=words)
    except WayError as error:
        raise InventoryError(
            f"the host {entry.name!r}: {error.message}",
            place=place,
            cause=error.cause,
            hint=error.hint,
            next_step=error.next_step,
        ) from error
    if not (found.identities or agent_socket(found.agent)):
        raise InventoryError(
            f"there is no key to log in to the host {entry.name!r} with",
            place=place,
            cause="no file of a private key that is meant for it exists, and no SSH agent may be asked",
            hint="this command must log in without a password",
            next_step=shlex.join(["ssh", *words, entry.address]),
        )
    return Chosen(entry, place, words, found, _private_address(entry, place))


def ssh_options(entry: Entry) -> tuple[str, ...]:
    """What ssh is given besides the host, so that it does what the inventory says wherever it is started."""
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
    """A path that means the same in every working directory; ssh itself knows what ``~`` and ``none`` are."""
    return path if path in ("", "none") or path.startswith("~") else str(Path(path).absolute())


def _check_keys(entry: Entry, place: Place) -> None:
    """Raise where a private key that the inventory names is not there, at which ssh would only try others."""
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
    """Raise where two names lead to one place, or one leads nowhere."""
    seen: dict[object, Chosen] = {}
    for one, addresses in zip(chosen, at_once(_addresses, chosen), strict=True):
        for end in addresses:
            other = seen.setdefault((end, one.way.port, one.way.proxy), one)
            if other is not one:
                raise InventoryError(
                    f"the hosts {other.entry.name!r} and {one.entry.name!r} are one: both are "
                    f"{end} on port {one.way.port}",
                    place=one.place,
                    hint="leave one of them out",
                )


def _addresses(one: Chosen) -> set[str]:
    """Where `one` is; what lies behind a proxy is known to the proxy alone.

    Raises:
        InventoryError: nobody knows its name.
    """
    if one.way.proxy:
        return {one.way.address.lower()}
    try:
        found = socket.getaddrinfo(one.way.address, one.way.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise InventoryError(
            f"nobody knows where the host {one.entry.name!r} is: {one.way.address} has no address",
            place=one.place,
            cause=error.strerror or str(error),
            hint="write its address beside it, as ansible_host=10.0.0.3",
        ) from error
    return {str(end[4][0]) for end in found}


def way_of(target: str, words: Sequence[str]) -> Way:
    """How ssh reaches a host that was chosen before.

    Raises:
        ProviderError: OpenSSH does not say.
    """
    return way(target, options=words)
