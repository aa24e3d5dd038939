"""Data classes of provisioning: fleet specifications, instances, hosts, plans, and quotes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from ipaddress import IPv4Network
from typing import NamedTuple

from provision.options import ProviderOptions


class LocalProgram(NamedTuple):
    """A program that a file lets run on this computer.

    Attributes:
        source: The file that names it.
        text: Its command line, or the lines of an SSH configuration.
        digest: Hash of both, and of the programs and scripts that the command line names.
    """

    source: str
    text: str
    digest: str


class InstanceState(Enum):
    """State of an instance, as its provider reports it."""

    QUEUED = "queued"  # waits for capacity, and costs nothing
    STARTING = "starting"  # for the first time, so that it has no files yet
    RESTARTING = "restarting"  # with its files; on its way to RUNNING, or to STOPPED
    RUNNING = "running"
    STOPPING = "stopping"  # on its way to STOPPED, or out of the list
    STOPPED = "stopped"


@dataclass(frozen=True)
class FleetSpec:
    """The fleet that a user requests.

    Attributes:
        name: Name of the fleet: lower-case letters, digits and hyphens, at most 30 characters.
        provider: Name of the provider that creates the instances.
        workers: Number of instances, 1 or more.
        public_key: OpenSSH public key of the fleet, one line, allowed to log in on every instance.
        python: Interpreter that runs the user's script on the hosts; empty: one that is searched for on the host.
        python_source: The fleet.toml that chose it for this computer; empty: the user typed it.
        packages: Requirement specifiers that pip installs into a separate environment on each host; empty: none.
        index_url: URL of the index from which pip gets packages, without passwords; empty: the settings of each host.
        pip_proxy: URL of the proxy that pip uses, without passwords; empty: the settings of each host.
        options: Options that only its provider reads.
    """

    name: str
    provider: str
    workers: int
    public_key: str = ""
    python: str = ""
    python_source: str = ""
    packages: tuple[str, ...] = ()
    index_url: str = ""
    pip_proxy: str = ""
    options: ProviderOptions = field(default_factory=ProviderOptions)


@dataclass(frozen=True)
class Instance:
    """One virtual machine of a provider, or its equivalent.

    Attributes:
        name: Name within the fleet, ``worker-0``; the same each time a plan is repeated.
        fleet: Name of the fleet it is labelled with.
        id: Identifier that the provider assigned; never reused, so that host keys are pinned by it.
        state: Its state.
        zone: Zone that it is in; ``localhost`` for the local provider, the host's name if the host existed before.
        price_usd_h: Estimated price in US dollars an hour while it runs.
        created_at: Seconds since the epoch.
        delete_at: When its provider deletes it, in seconds since the epoch; 0: never.
        has_data: Whether files that were stored on it may exist; False if its deletion was interrupted.
        stopped_usd_h: Estimated price in US dollars an hour while it is stopped.
        started_at: When it was started last, in seconds since the epoch; 0: unknown.
        stopped_at: When it was stopped last, in seconds since the epoch; 0: never, or unknown.
        stop_at: When it stops by itself, in seconds since the epoch; 0: never.
        end_at: When its jobs are ended, in seconds since the epoch; 0: never.
        maintenance_start: Start of planned maintenance that stops it, in seconds since the epoch; 0: none is known.
        maintenance_end: End of this time window; 0: unknown.
    """

    name: str
    fleet: str
    id: str
    state: InstanceState
    zone: str
    price_usd_h: float = 0.0
    created_at: float = 0.0
    delete_at: float = 0.0
    has_data: bool = True
    stopped_usd_h: float = 0.0
    started_at: float = 0.0
    stopped_at: float = 0.0
    stop_at: float = 0.0
    end_at: float = 0.0
    maintenance_start: float = 0.0
    maintenance_end: float = 0.0

    @property
    def maintenance(self) -> tuple[float, ...]:
        """Return the time window of planned maintenance; empty: none is known."""
        return (self.maintenance_start, self.maintenance_end) if self.maintenance_start else ()

    @property
    def current_usd_h(self) -> float:
        """Return the price in US dollars an hour in its present state."""
        if self.state is InstanceState.QUEUED:
            return 0.0
        return self.stopped_usd_h if self.state is InstanceState.STOPPED else self.price_usd_h


@dataclass(frozen=True)
class Host:
    """A computer that SSH reaches.

    Attributes:
        name: Name of its instance, ``worker-0``.
        address: Address that SSH connects to.
        port: TCP port that SSH connects to.
        user: Login name.
        host_key: OpenSSH public host key (``ssh-ed25519 AAAA…``), from a source other than the connection.
        key_alias: Name under which the host key is pinned; outlives the reuse of an address.
        private_address: Address by which the other hosts of the fleet reach it; empty: the host itself reports it.
        python: Interpreter for the user's script; empty: one that is searched for on the host.
        root: Directory of fleet's files on the host; relative to the login directory unless absolute.
        shared: Such a directory for the whole host, if `root` belongs to one of its slots; empty: it has one slot.
        proxy: Command whose input and output reach the host's SSH port, as a list of words; empty: SSH uses TCP.
        identities: Files of the user's private keys that are offered; if empty and without `agent`, the fleet's key
            is offered.
        certificates: Files of OpenSSH certificates for these keys, in addition to ``IDENTITY-cert.pub``.
        agent: Socket of the user's SSH agent, whose keys are also offered; ``SSH_AUTH_SOCK`` or ``$NAME``: the socket
            that this variable names when SSH connects; empty: none.
        identities_only: Offer only those keys of the agent that are in `identities`.
        agreed: Hash of `proxy`, or of `python` on this computer, with its files, if a file chose what runs on this
            computer and the user accepted it; empty: no consent is needed.
    """

    name: str
    address: str
    port: int
    user: str
    host_key: str
    key_alias: str
    private_address: str
    python: str = ""
    root: str = ".fleet"
    shared: str = ""
    proxy: tuple[str, ...] = ()
    identities: tuple[str, ...] = ()
    certificates: tuple[str, ...] = ()
    agent: str = ""
    identities_only: bool = False
    agreed: str = ""

    @property
    def is_users(self) -> bool:
        """Return whether the user's own keys log in on this host, not the fleet's key."""
        return bool(self.identities or self.agent)


class Plan(NamedTuple):
    """Changes that turn the existing instances into the requested ones.

    Attributes:
        create: Names of instances to create, in the order of their index.
        keep: Instances to leave as they are, in the order of their index.
        delete: Instances that are not requested.
    """

    create: tuple[str, ...] = ()
    keep: tuple[Instance, ...] = ()
    delete: tuple[Instance, ...] = ()


class Resize(NamedTuple):
    """Change of the number of workers of a fleet.

    Attributes:
        added: Names of the new workers, in the order of their index.
        released: Instances that leave the fleet.
    """

    added: tuple[str, ...] = ()
    released: tuple[Instance, ...] = ()


@dataclass(frozen=True)
class Price:
    """Estimated price of one instance in US dollars an hour, by part.

    Attributes:
        machine: vCPUs, memory, and Local SSDs.
        gpu: Its GPUs.
        disk: Its other disks, which are also paid while it is stopped.
        address: Its external address.
    """

    machine: float
    gpu: float = 0.0
    disk: float = 0.0
    address: float = 0.0

    @property
    def usd_h(self) -> float:
        """Return the price while the instance runs."""
        return round(self.machine + self.gpu + self.disk + self.address, 6)

    @property
    def stopped_usd_h(self) -> float:
        """Return the price while the instance is stopped."""
        return round(self.disk, 6)


@dataclass(frozen=True)
class Offer:
    """A zone that can have the instances, and the price of one instance in it.

    Attributes:
        zone: Name of the zone.
        machine: Machine type and GPUs as the cloud names them, ``n1-standard-4 + 1 nvidia-tesla-t4``.
        price_usd_h: Estimated price of one instance in US dollars an hour; None: unknown.
        price: The parts of that price; None: unknown.
    """

    zone: str
    machine: str
    price_usd_h: float | None
    price: Price | None = None


@dataclass(frozen=True)
class Quote:
    """Estimated cost of creating instances, before any is created.

    Attributes:
        instances: Number of instances to create; all of them are in one zone.
        offers: Zones in the order in which they are tried; empty: nothing is rented.
        spot: Prices are those of spot instances.
        priced_at: Date of the prices, ``2026-11-01``.
        delete_after_s: The cloud deletes them by itself after this time, if they run; 0: never.
        stop_after_s: They stop by themselves after this time; 0: never.
        notes: Sentences that the user should read before paying.
        max_cost_usd: Limit of the cost of the fleet, which shortens that time; 0: none.
        used_usd: What the existing instances cost at most, and what earlier ones have cost.
        price_source: Origin of the prices, ``the Cloud Billing catalog``.
        flex_start: Prices are those of Flex-start VMs.
    """

    instances: int
    offers: tuple[Offer, ...] = ()
    spot: bool = False
    priced_at: str = ""
    delete_after_s: int = 0
    stop_after_s: int = 0
    notes: tuple[str, ...] = ()
    max_cost_usd: float = 0.0
    used_usd: float = 0.0
    price_source: str = ""
    flex_start: bool = False


class SshAccess(NamedTuple):
    """Addresses that can reach the instances of a fleet by SSH, according to the fleet's own firewall rule.

    Attributes:
        open_to: Ranges of addresses in CIDR notation; empty: the provider has no such rule.
        callers: Addresses of this computer in CIDR notation; empty: unknown, or not relevant.
        changed: This call changed the rule.
        before: Ranges that the rule allowed before this call changed it.
        propagation_s: Longest time until a changed rule is in force everywhere.
        note: Reason why the fleet has no rules of its own.
        denied_by: Clause about another rule that denies this computer access; empty: none is known.
        option: Option of `fleet up` that sets the ranges; may be repeated.
    """

    open_to: tuple[str, ...] = ()
    callers: tuple[str, ...] = ()
    changed: bool = False
    before: tuple[str, ...] = ()
    propagation_s: float = 0.0
    note: str = ""
    option: str = ""
    denied_by: str = ""

    @property
    def admits_caller(self) -> bool:
        """Return whether every known address of this computer is in one of the ranges."""
        ranges = [IPv4Network(text, strict=False) for text in self.open_to if ":" not in text]
        return all(any(IPv4Network(caller).subnet_of(network) for network in ranges) for caller in self.callers)


class UnknownHost(NamedTuple):
    """A host whose key no known_hosts file confirms.

    Attributes:
        host: The host, without a key.
        inventory_name: Its name in the inventory.
        checking: Value of StrictHostKeyChecking for it.
        trusted: Keys that known_hosts lists for its address, if the host is reached under another name.
        revoked: Keys that known_hosts revokes for it.
        authority: File that names a certificate authority for it; empty: there is none.
    """

    host: Host
    inventory_name: str
    checking: str = "ask"
    trusted: tuple[str, ...] = ()
    revoked: tuple[str, ...] = ()
    authority: str = ""


class Orphan(NamedTuple):
    """A resource that belongs to a fleet, or an image.

    Attributes:
        fleet: Name of the fleet.
        owner: ID of the state directory from which it was created; empty: it belongs to this computer.
        user: Login and computer of the user who created it; empty: unknown.
        kind: ``instance``, ``disk``, ``address``, ``firewall rule``, or ``image``.
        name: Name of the resource.
        zone: Zone or region; for a firewall rule, the project that contains it; empty: it is global.
        created_at: Seconds since the epoch.
        price_usd_h: Estimated price in US dollars an hour.
        size_gb: Size for which an image is billed; 0: another resource.
    """

    fleet: str
    owner: str
    user: str
    kind: str
    name: str
    zone: str = ""
    created_at: float = 0.0
    price_usd_h: float = 0.0
    size_gb: float = 0.0


IMAGE = "image"
"""Kind of a resource that is kept until the user requests its deletion."""


class Image(NamedTuple):
    """An image of a prepared host.

    Attributes:
        name: Name of the image.
        size_gb: Size for which it is billed.
        usd_month: Estimated price in US dollars a month.
    """

    name: str
    size_gb: float
    usd_month: float


class Baking(NamedTuple):
    """The image from which the hosts of a fleet would boot, and how it is made.

    Attributes:
        host: Fleet of the one host of which it is made.
        image: Name of the image.
        existing: The image, if it exists already.
    """

    host: FleetSpec
    image: str
    existing: Image | None = None


Command = tuple[str, ...] | str
"""A command to recommend: its words, unquoted; or a command line, if only a shell can run it."""


class Finding(NamedTuple):
    """Result of the check of one prerequisite of a provider.

    Attributes:
        subject: Name of the prerequisite, ``credentials``.
        ok: The prerequisite is met; None: that could not be checked.
        message: Result of the check.
        hint: Change to make, one sentence.
        next_steps: Commands that repair it.
    """

    subject: str
    ok: bool | None
    message: str
    hint: str = ""
    next_steps: Sequence[Command] = ()
