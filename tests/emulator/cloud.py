"""The resources of the emulated project."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from tests.emulator import firewall, os_login
from tests.emulator.blueprint import Blueprint, check_metadata, last, project_of
from tests.emulator.catalog import entries, locations
from tests.emulator.charges import Charges
from tests.emulator.clock import Clock
from tests.emulator.discovery import Method
from tests.emulator.failures import Refusal, not_found
from tests.emulator.faults import Rule
from tests.emulator.governance import Governance
from tests.emulator.guests import Guest, Guests
from tests.emulator.limits import Limits, Usage, disk_quota
from tests.emulator.operations import Launch, Operation, Operations, Work

Json = dict[str, Any]
T = TypeVar("T")
_ADDRESSES = 253


@dataclass
class Call:
    """One call of a method.

    Attributes:
        method: The method.
        path: Parameters of its path.
        query: Parameters of its query.
        body: Its body; empty: it came without one.
        fault: The fault of its operation, if any.
        token: Access token of the caller; empty: none.
    """

    method: Method
    path: Mapping[str, str]
    query: Mapping[str, str]
    body: Json
    fault: Rule | None = None
    token: str = ""

    @property
    def scope(self) -> str:
        """``zones/Z``, ``regions/R`` or ``global``."""
        if "zone" in self.path:
            return f"zones/{self.path['zone']}"
        return f"regions/{self.path['region']}" if "region" in self.path else "global"

    @property
    def zone(self) -> str:
        """Its zone."""
        return self.path["zone"]


@dataclass
class Instance:
    """An instance.

    Attributes:
        blueprint: The request.
        body: As the API shows it.
        address: Its internal address, which it has until it is deleted.
        external: Its latest external address, another one after each start; empty: it has none.
        guest: The guest on it.
        attributes: Guest attributes by namespace and key.
        latest: The last operation on it; the next operation begins after it.
        starts: Number of its starts.
        updates: Changes of its metadata that the guest does not have yet, in their order.
        updating: Held while the guest takes one of them.
    """

    blueprint: Blueprint
    body: Json
    address: str
    external: str = ""
    guest: Guest | None = None
    attributes: dict[tuple[str, str], str] = field(default_factory=dict)
    latest: Operation | None = None
    starts: int = 0
    updates: deque[Callable[[], None]] = field(default_factory=deque)
    updating: threading.RLock = field(default_factory=threading.RLock)

    @property
    def status(self) -> str:
        """``RUNNING``."""
        return str(self.body["status"])

    def metadata(self) -> dict[str, str]:
        """Return its metadata items."""
        return items_of(self.body["metadata"])

    def update_guest(self) -> None:
        """Pass the oldest change of the metadata to the guest; the threads that call this may be in any order."""
        with self.updating:
            self.updates.popleft()()


def items_of(metadata: Json) -> dict[str, str]:
    """Return the items of a Metadata by key."""
    return {item["key"]: item.get("value", "") for item in metadata["items"]}


class Cloud:
    """The resources of one project.

    Callers must hold the clock's lock.

    Args:
        project: Its id.
        clock: Emulator's time.
        operation_s: Duration of an operation.
        guests: Creates the guests of the instances.
        threaded: Whether calls to guests take time and run in their own threads.
        directory: The guests' files.
        ssh_port: Port of the guests' sshd.
    """

    def __init__(
        self,
        project: str,
        clock: Clock,
        operation_s: float,
        guests: Guests,
        *,
        threaded: bool,
        directory: Path,
        ssh_port: int,
    ) -> None:
        self.project = project
        self.clock = clock
        self.operations = Operations(clock, operation_s)
        self._parts: dict[type[Any], Any] = {}
        self.guests = guests
        self.directory = directory
        self.ssh_port = ssh_port
        self.root = ""
        self.base = ""
        self.google_hosts: tuple[str, ...] = ()
        self.google_certificate = ""
        self.grace_s = 30.0
        self.late_s = 0.0
        self.caller = "127.0.0.1"
        self._threaded = threaded
        self._address_stem = ""
        self._threads: list[threading.Thread] = []
        self.instances: dict[tuple[str, str], Instance] = {}
        self.disks: dict[tuple[str, str], Json] = {}
        self.firewalls: dict[str, Json] = {}
        self.rules_in_force: list[Json] = []
        self.propagation_s = 0.0
        self.addresses: dict[tuple[str, str], Json] = {}
        self.networks: list[str] = []
        self.shared: dict[str, list[str]] = {}
        self.denied: set[str] = set()
        self.requests: dict[tuple[str, ...], Operation] = {}
        self.charges = Charges()
        self.metadata: Json = {}
        self.scopes = ""  # of the access token that was granted last
        self._serial = 0
        self._addresses_given = -1
        self.empty()

    def settle_at(self, url: str, port: int) -> None:
        """Set the URL and TCP port of the server that shows this cloud."""
        self.root = f"{url}/compute/v1"
        self.base = f"{self.root}/projects/{self.project}"
        self.operations.base = self.base
        self._address_stem = f"127.{port >> 8}.{port & 255}"

    def serve_google(self, hosts: Sequence[str], certificate: str) -> str:
        """Let guests find Google's hosts at an address, which is returned, and trust a certificate authority."""
        address = f"{self._address_stem}.1"
        self.google_hosts, self.google_certificate = (f"{address} {' '.join(hosts)}",), certificate
        return address

    def empty(self) -> None:
        """Delete all resources."""
        self.operations.clear()
        self.charges = Charges()
        self._parts.clear()
        for held in (self.instances, self.disks, self.firewalls, self.addresses, self.requests, self.denied):
            held.clear()
        self.networks = ["default"]
        self.shared = {}
        self.caller = "127.0.0.1"
        self.rules_in_force = []
        self.propagation_s = 0.0
        self.metadata = check_metadata({})

    def part(self, kind: type[T]) -> T:
        """Return the state that a service or a kind of resource keeps, new after `empty`."""
        if kind not in self._parts:
            self._parts[kind] = kind()
        return cast("T", self._parts[kind])

    @property
    def limits(self) -> Limits:
        """Return the capacity of zones, and the quotas."""
        return self.part(Limits)

    @property
    def governance(self) -> Governance:
        """Return the state that decides which calls are allowed."""
        return self.part(Governance)

    def networks_of(self, project: str) -> list[str]:
        """Return the networks of a project: of this one, or of a host project of a Shared VPC."""
        return self.networks if project == self.project else self.shared.get(project, [])

    def url_of(self, project: str) -> str:
        """Return the URL of a project."""
        return f"{self.root}/projects/{project}"

    def network(self, reference: str) -> str:
        """Return the URL of the network in a name, a path, or a URL.

        Raises:
            Refusal: it does not exist.
        """
        project = project_of(reference) or self.project
        name = last(reference)
        if name not in self.networks_of(project):
            raise not_found(f"projects/{project}/global/networks/{name}")
        return f"{self.url_of(project)}/global/networks/{name}"

    def new_id(self) -> str:
        """Return a numeric id that no resource has."""
        self._serial += 1
        return entries.numeric_id(f"{self.clock.now()} {self._serial}")

    def launch(
        self,
        call: Call,
        kind: str,
        target: str,
        work: Work,
        *,
        target_id: str = "",
        after: Operation | None = None,
        group: str = "",
    ) -> Operation:
        """Start the operation that answers `call`."""
        fault = call.fault
        launch = Launch(
            call.scope,
            kind,
            target,
            target_id,
            client_id=call.query.get("requestId", ""),
            group=group,
            extra_s=fault.seconds if fault and fault.kind == "slow-operation" else 0.0,
        )
        return self.operations.launch(launch, work, after)

    def instance(self, zone: str, name: str) -> Instance:
        """Return the instance with this name or id.

        Raises:
            Refusal: it does not exist.
        """
        match = self.instances.get((zone, name))
        if match is None and name.isdigit():
            match = next((instance for instance in self.instances.values() if instance.body["id"] == name), None)
        if match is None:
            raise not_found(f"projects/{self.project}/zones/{zone}/instances/{name}")
        return match

    def guest_metadata(self, instance: Instance) -> dict[str, str]:
        """Return the metadata items of an instance, and of its project those that decide who may log in.

        An item of the instance wins; its SSH keys and those of the project count, unless it blocks the latter.
        """
        items = {**self._project_items(os_login.ENABLE), **instance.metadata()}
        if items.get("block-project-ssh-keys", "").upper() != "TRUE":
            keys = [items.get("ssh-keys", ""), *self._project_items("ssh-keys").values()]
            if any(keys):
                items["ssh-keys"] = "\n".join(filter(None, keys))
        return items

    def _project_items(self, key: str) -> dict[str, str]:
        """Return the item `key` of the project's metadata, if it has one."""
        return {name: value for name, value in items_of(self.metadata).items() if name == key}

    def os_login_keys(self, instance: Instance) -> dict[str, list[str]]:
        """Return the keys by user that OS Login grants on an instance, if the instance uses it."""
        has_account = bool(instance.body.get("serviceAccounts"))
        return self.part(os_login.Profiles).granted(
            self.denied, has_service_account=has_account, now=self.clock.now()
        )

    def update_guests(self, *instances: Instance) -> None:
        """Pass the current metadata, and the keys of OS Login, to the guests of `instances`."""
        for instance in instances:
            if instance.guest:
                metadata, keys = self.guest_metadata(instance), self.os_login_keys(instance)
                instance.updates.append(partial(instance.guest.update_metadata, metadata, keys))
                self.aside(instance.update_guest)

    def change_firewall(self) -> None:
        """Let changed firewall rules take effect, after `propagation_s`."""
        rules = list(self.firewalls.values())

        def take_effect() -> None:
            self.rules_in_force = rules
            self.apply_firewall()

        if self.propagation_s:
            self.clock.call_in(self.propagation_s, take_effect)
        else:
            take_effect()

    def apply_firewall(self, *instances: Instance) -> None:
        """Apply the firewall rules to the guests of `instances`, or to all guests."""
        for instance in instances or tuple(self.instances.values()):
            if instance.guest:
                self.aside(partial(instance.guest.admit, partial(self._admits, instance)))

    def _admits(self, instance: Instance) -> bool:
        return self.admits(instance, self.caller if instance.blueprint.external else firewall.PROXY, self.ssh_port)

    def admits(self, instance: Instance, caller: str, port: int) -> bool:
        """Return whether the firewall lets an address connect to a TCP port of an instance."""
        policies = self.part(firewall.Policies).policies
        return firewall.admits(self.rules_in_force, policies, instance.body, caller, port)

    def held(self) -> Iterator[Blueprint]:
        """Return the requests of the instances that use the zones' capacity."""
        return (
            instance.blueprint
            for instance in self.instances.values()
            if instance.status not in ("PENDING", "TERMINATED")
        )

    def usage(self) -> Usage:
        """Return the usage of each quota."""
        used: Usage = {("", "FIREWALLS"): float(len(self.firewalls)), ("", "NETWORKS"): float(len(self.networks))}
        for blueprint in self.held():
            for key, amount in self.limits.consumption(blueprint).items():
                used[key] = used.get(key, 0.0) + amount
        for (zone, _), disk in self.disks.items():
            where = (locations.ZONES[zone], disk_quota(disk["type"].rsplit("/", 1)[-1]))
            used[where] = used.get(where, 0.0) + float(disk["sizeGb"])
        return used

    def free_address(self) -> str:
        """Return an address that no instance has.

        Raises:
            Refusal: all are in use.
        """
        taken = {address for each in self.instances.values() for address in (each.address, each.external)}
        for _ in range(_ADDRESSES):
            self._addresses_given += 1  # a released address is not given to the next instance
            address = f"{self._address_stem}.{2 + self._addresses_given % _ADDRESSES}"
            if address not in taken:
                return address
        raise Refusal(403, "quotaExceeded", "The emulator has no address left.", domain="usageLimits")

    def aside(self, action: Callable[[], None], then: Callable[[], None] = lambda: None) -> None:
        """Call `action` on a guest, which may take time; then call `then` with the lock held."""
        if not self._threaded:
            action()
            then()
            return

        def run() -> None:
            action()
            with self.clock.changed:
                then()
                self.clock.changed.notify_all()

        thread = threading.Thread(target=run, name="emulator guest", daemon=True)
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        self._threads.append(thread)
        thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait, without the lock, for the end of all calls to guests.

        Raises:
            TimeoutError: they take longer.
        """
        deadline = time.monotonic() + timeout_s
        for thread in list(self._threads):
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                raise TimeoutError(f"a guest still has not ended after {timeout_s:g} s")
