"""The resources and the state of the emulated project."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.emulator import firewall
from tests.emulator.accounts import OS_LOGIN, Profiles
from tests.emulator.blueprint import Blueprint, check_metadata, last, project_of, relative
from tests.emulator.catalog import ZONES, Image, compute_skus, numeric_id
from tests.emulator.clock import Clock
from tests.emulator.discovery import Method
from tests.emulator.disk import SSH_PORT, Access, GuestSpec
from tests.emulator.faults import Rule
from tests.emulator.governance import Governance
from tests.emulator.guests import Guest, Guests
from tests.emulator.limits import Limits, Usage, disk_quota
from tests.emulator.messages import Failure, Refusal, not_found
from tests.emulator.operations import Operation, Operations
from tests.emulator.storage import Storage

Json = dict[str, Any]
_ADDRESSES = 253
_NAT_ALL = ("ALL_SUBNETWORKS_ALL_IP_RANGES", "ALL_SUBNETWORKS_ALL_PRIMARY_IP_RANGES")


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
    def noun(self) -> str:
        """``instances``; for operations of all scopes ``operations``."""
        noun = self.method.id.split(".")[1]
        return "operations" if noun.endswith("Operations") else noun

    @property
    def zone(self) -> str:
        """Its zone."""
        return self.path["zone"]


Answer = Callable[["Cloud", Call], Json]
METHODS: dict[str, Answer] = {}
STARTING: set[str] = set()
"""Of the methods, those that start an operation."""


def method(*ids: str) -> Callable[[Answer], Answer]:
    """Let the decorated function answer these methods."""

    def register(answer: Answer) -> Answer:
        METHODS.update(dict.fromkeys(ids, answer))
        return answer

    return register


def starting(*ids: str) -> Callable[[Answer], Answer]:
    """Let the decorated function answer these methods, and start an operation."""
    STARTING.update(ids)
    return method(*ids)


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
    """

    blueprint: Blueprint
    body: Json
    address: str
    external: str = ""
    guest: Guest | None = None
    attributes: dict[tuple[str, str], str] = field(default_factory=dict)
    latest: Operation | None = None
    starts: int = 0

    @property
    def status(self) -> str:
        """``RUNNING``."""
        return str(self.body["status"])

    def metadata(self) -> dict[str, str]:
        """Return its metadata items."""
        return items_of(self.body["metadata"])


def items_of(metadata: Json) -> dict[str, str]:
    """Return the items of a Metadata by key."""
    return {item["key"]: item.get("value", "") for item in metadata["items"]}


@dataclass
class Charge:
    """A time for which a resource is billed.

    Attributes:
        resource: ID of the instance or disk.
        start: Seconds since the epoch.
        blueprint: The instance; None for a disk.
        disk: The disk; None for an instance.
        end: Seconds since the epoch; 0: it is not over.
    """

    resource: str
    start: float
    blueprint: Blueprint | None = None
    disk: Json | None = None
    end: float = 0.0


@dataclass
class Ticket:
    """A Flex-start request that waits for capacity.

    Attributes:
        instance: ID of its instance, which is PENDING.
        admit: Provisions the instance, and returns True, if there is capacity.
        end: Ends the request with a failure.
    """

    instance: str
    admit: Callable[[], bool]
    end: Callable[[Failure | None], None]


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
    ) -> None:
        self.project = project
        self.clock = clock
        self.operations = Operations(clock, operation_s)
        self.guests = guests
        self.directory = directory
        self.root = ""
        self.base = ""
        self.google_hosts: tuple[str, ...] = ()
        self.google_certificate = ""
        self.grace_s = 30.0
        self.late_s = 0.0
        self.scopes = ""  # of the access token that was granted last
        self._threaded = threaded
        self._address_stem = ""
        self._threads: list[threading.Thread] = []
        self._serial = 0
        self._addresses_given = -1
        self.empty()

    def settle_at(self, url: str, port: int) -> None:
        """Set the URL and TCP port of the server that shows this cloud."""
        self.root = f"{url}/compute/v1"
        self.base = f"{self.root}/projects/{self.project}"
        self._address_stem = f"127.{port >> 8}.{port & 255}"

    def serve_google(self, hosts: Sequence[str], certificate: str) -> str:
        """Let guests find Google's hosts at an address, which is returned, and trust a certificate authority."""
        address = f"{self._address_stem}.1"
        self.google_hosts, self.google_certificate = (f"{address} {' '.join(hosts)}",), certificate
        return address

    def empty(self) -> None:
        """Hold nothing, as at the start; resources are kept by place and name, global ones by name."""
        self.operations.clear()
        self.instances: dict[tuple[str, str], Instance] = {}
        self.disks: dict[Any, Json] = {}
        self.addresses: dict[Any, Json] = {}
        self.firewalls: dict[Any, Json] = {}
        self.images: dict[Any, Json] = {}
        self.image_contents: dict[str, Image] = {}
        self.policies: dict[Any, Json] = {}
        self.reservations: dict[Any, Json] = {}
        self.routers: dict[Any, Json] = {}
        self.requests: dict[tuple[str, ...], Operation] = {}
        self.charges: list[Charge] = []
        self.queue: list[Ticket] = []
        self.networks = ["default"]
        self.shared: dict[str, list[str]] = {}
        self.firewall_policies: list[Json] = []
        self.rules_in_force: list[Json] = []
        self.propagation_s = 0.0
        self.caller = "127.0.0.1"
        self.denied: set[str] = set()
        self.silent: set[str] = set()  # zones and regions that do not answer
        self.has_partial_lists = True
        self.metadata: Json = check_metadata({})
        self.skus, self.sku_page = compute_skus(), 5000
        self.limits, self.governance, self.storage, self.profiles = Limits(), Governance(), Storage(), Profiles()

    def networks_of(self, project: str) -> list[str]:
        """Return the networks of a project: of this one, or of a host project of a Shared VPC."""
        return self.networks if project == self.project else self.shared.get(project, [])

    def url_of(self, project: str) -> str:
        """Return the URL of a project."""
        return f"{self.root}/projects/{project}"

    def network(self, reference: str, project: str = "") -> str:
        """Return the URL of the network in a name, a path, or a URL; without a project, it is of `project`.

        Raises:
            Refusal: it does not exist.
        """
        project, name = project_of(reference) or project or self.project, last(reference)
        if name not in self.networks_of(project):
            raise not_found(f"projects/{project}/global/networks/{name}")
        return f"{self.url_of(project)}/global/networks/{name}"

    def new_id(self) -> str:
        """Return a numeric id that no resource has."""
        self._serial += 1
        return numeric_id(f"{self.clock.now()} {self._serial}")

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

    # --- billing, queue, quotas

    def end_charge(self, resource: str) -> None:
        """Record that the billing of an instance or a disk ends."""
        for charge in self.charges:
            if charge.resource == resource and not charge.end:
                charge.end = self.clock.now()

    def recheck_queue(self) -> None:
        """Provision the waiting instances for which there is capacity, oldest first."""
        for ticket in list(self.queue):
            if ticket in self.queue and ticket.admit():
                self.queue.remove(ticket)

    def take_ticket(self, instance: Instance) -> Ticket | None:
        """Remove and return the request of an instance, if it waits."""
        ticket = next((ticket for ticket in self.queue if ticket.instance == instance.body["id"]), None)
        if ticket is not None:
            self.queue.remove(ticket)
        return ticket

    def held(self) -> Iterator[Blueprint]:
        """Return the requests of the instances that use the zones' capacity."""
        for instance in self.instances.values():
            if instance.status not in ("PENDING", "TERMINATED"):
                yield instance.blueprint

    def reserved(self, zone: str, name: str) -> int:
        """Return the number of instances that consume a reservation."""
        return sum((each.zone, each.reservation) == (zone, name) for each in self.held())

    def usage(self) -> Usage:
        """Return the usage of each quota."""
        counts = {"FIREWALLS": self.firewalls, "NETWORKS": self.networks, "IMAGES": self.images}
        used: Usage = {("", metric): float(len(held)) for metric, held in counts.items()}
        for blueprint in self.held():
            for key, amount in self.limits.consumption(blueprint).items():
                used[key] = used.get(key, 0.0) + amount
        for (zone, _), disk in self.disks.items():
            where = (ZONES[zone], disk_quota(last(disk["type"])))
            used[where] = used.get(where, 0.0) + float(disk["sizeGb"])
        return used

    # --- guests

    def guest_spec(self, instance: Instance) -> GuestSpec:
        """Return the properties of the guest of `instance`, which follow from it and from the project."""
        blueprint = instance.blueprint
        is_online = blueprint.external or self._has_nat(instance.body["networkInterfaces"][0])
        return GuestSpec(
            blueprint=blueprint,
            id=instance.body["id"],
            address=instance.address,
            directory=self.directory / instance.body["id"],
            access=self.access(instance),
            clock=self.clock,
            index=is_online,
            hosts=self.google_hosts if is_online else (),
            certificate=self.google_certificate,
            service_accounts=tuple(instance.body.get("serviceAccounts", ())),
        )

    def _has_nat(self, interface: Json) -> bool:
        """Return whether Cloud NAT, which belongs to Cloud Routers, serves a network interface."""
        network, subnetwork = relative(interface["network"]), relative(interface["subnetwork"])
        region = subnetwork.split("/")[3]
        routers = [router for (where, _), router in self.routers.items() if where == region]
        nats = [nat for each in routers if relative(each["network"]) == network for nat in each.get("nats", ())]
        return any(  # Private NAT serves other networks, not the internet
            nat.get("type") != "PRIVATE"
            and (
                nat.get("sourceSubnetworkIpRangesToNat") in _NAT_ALL
                or subnetwork in {relative(each["name"]) for each in nat.get("subnetworks", ())}
            )
            for nat in nats
        )

    def access(self, instance: Instance) -> Access:
        """Return the metadata items of a guest, and the keys by user that OS Login grants on it, if it uses it.

        Of the items of the project, only those count that decide who may log in. An item of the instance wins; its
        SSH keys and those of the project count, unless it blocks the latter.
        """
        project = items_of(self.metadata)
        items = {key: value for key, value in project.items() if key == OS_LOGIN} | instance.metadata()
        if items.get("block-project-ssh-keys", "").upper() != "TRUE":
            keys = [*filter(None, (items.get("ssh-keys"), project.get("ssh-keys")))]
            items |= {"ssh-keys": "\n".join(keys)} if keys else {}
        has_account = bool(instance.body.get("serviceAccounts"))
        return items, self.profiles.granted(self.denied, has_service_account=has_account, now=self.clock.now())

    def update_guests(self, *instances: Instance) -> None:
        """Let the guests of `instances`, or all, take the current metadata and the keys of OS Login."""
        for instance in instances or tuple(self.instances.values()):
            if instance.guest:
                self.aside(partial(instance.guest.update, partial(self.access, instance)))

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
                self.aside(partial(instance.guest.admit, partial(self._admits_caller, instance)))

    def _admits_caller(self, instance: Instance) -> bool:
        return self.admits(instance, self.caller if instance.blueprint.external else firewall.PROXY, SSH_PORT)

    def admits(self, instance: Instance, caller: str, port: int) -> bool:
        """Return whether the firewall lets an address connect to a TCP port of an instance."""
        return firewall.admits(self.rules_in_force, self.firewall_policies, instance.body, caller, port)

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
        raise Refusal(403, "quotaExceeded", "The emulator has no address left.", "usageLimits")

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
