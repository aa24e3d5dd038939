"""The nouns of provisioning: what a user asks for, what a provider sells, what SSH reaches."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from ipaddress import IPv4Network

from provision.options import ProviderOptions


class InstanceState(Enum):
    """Where an instance is in its life, as its provider tells it."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"  # on its way to STOPPED, or out of the list
    STOPPED = "stopped"


@dataclass(frozen=True)
class FleetSpec:
    """What a user asks for.

    Attributes:
        name: Name of the fleet: lower-case letters, digits and hyphens, at most 30 characters.
        provider: Name of the provider that makes the instances.
        workers: Number of instances, 1 or more.
        public_key: OpenSSH public key of the fleet, one line, allowed to log in on every instance.
        python: Interpreter that runs the user's script on the hosts; empty: found on the host.
        packages: What pip installs into an environment of its own on each host, as requirement specifiers; empty:
            nothing is installed.
        options: What only its provider knows.
    """

    name: str
    provider: str
    workers: int
    public_key: str = ""
    python: str = ""
    packages: tuple[str, ...] = ()
    options: ProviderOptions = field(default_factory=ProviderOptions)


@dataclass(frozen=True)
class Instance:
    """What a provider sells: one virtual machine, or one of its kind.

    Attributes:
        name: Name within the fleet, ``worker-0``; the same for every repeat of the same plan.
        fleet: Name of the fleet it is labelled with.
        id: The provider's own identifier; never reused, so that host keys are pinned by it.
        state: Where it is in its life.
        zone: Where it stands; ``localhost`` for the local provider, the host's own name where it exists already.
        price_usd_h: Estimated price in US dollars an hour.
        created_at: Seconds since the epoch.
        delete_at: When its provider deletes it, in seconds since the epoch; 0: never.
    """

    name: str
    fleet: str
    id: str
    state: InstanceState
    zone: str
    price_usd_h: float = 0.0
    created_at: float = 0.0
    delete_at: float = 0.0


@dataclass(frozen=True)
class Host:
    """What SSH reaches.

    Attributes:
        name: Name of its instance, ``worker-0``.
        address: Address that SSH connects to.
        port: TCP port that SSH connects to.
        user: Login name.
        host_key: OpenSSH public host key (``ssh-ed25519 AAAA…``), from a source other than the connection.
        key_alias: Name under which the host key is pinned; outlives the reuse of an address.
        private_address: Address by which the other hosts of the fleet reach it; empty: the host itself tells.
        python: Interpreter for the user's script; empty: found on the host.
        root: Directory of fleet's files on the host; relative to the login directory unless absolute.
        shared: The same of the whole host, if `root` is that of one of its slots; empty: it has one slot.
        proxy: Command whose input and output reach the host's SSH port, word by word; empty: TCP does.
        identities: Files of the user's private keys that are offered; empty, and no agent: the fleet's own key is.
        certificates: Files of OpenSSH certificates for these keys, besides ``IDENTITY-cert.pub``.
        agent: Socket of the user's SSH agent, whose keys are offered, too; ``SSH_AUTH_SOCK`` or ``$NAME``: the one
            that this variable names when SSH connects; empty: none.
        identities_only: Of the agent's keys only those that are among `identities`.
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

    @property
    def is_users(self) -> bool:
        """Whether it is the user's own keys that open it, not the fleet's."""
        return bool(self.identities or self.agent)


@dataclass(frozen=True)
class Plan:
    """What turns the instances that are there into those that are wanted.

    Attributes:
        create: Names of instances to create, in the order of their index.
        keep: Instances to leave as they are, in the order of their index.
        delete: Instances that are not wanted.
    """

    create: tuple[str, ...] = ()
    keep: tuple[Instance, ...] = field(default=())
    delete: tuple[Instance, ...] = field(default=())


@dataclass(frozen=True)
class Offer:
    """A zone that can have the instances, and the price of one of them there.

    Attributes:
        zone: Name of the zone.
        machine: Machine type and GPUs as the cloud names them, ``n1-standard-4 + 1 nvidia-tesla-t4``.
        price_usd_h: Estimated price of one instance in US dollars an hour; None: not known.
    """

    zone: str
    machine: str
    price_usd_h: float | None


@dataclass(frozen=True)
class Quote:
    """What making instances would cost, before any is made.

    Attributes:
        instances: How many would be made; all of them stand in one place.
        offers: Places in the order in which they are tried; empty: nothing is rented.
        spot: Prices are those of spot instances.
        priced_at: Date of the prices, ``2026-11-01``.
        delete_after_s: The cloud deletes them by itself after so long; 0: never.
        notes: What else the user should know before paying, a sentence each.
    """

    instances: int
    offers: tuple[Offer, ...] = ()
    spot: bool = False
    priced_at: str = ""
    delete_after_s: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class SshAccess:
    """Who can reach the instances of a fleet by SSH, as the fleet's own firewall rule says.

    Attributes:
        open_to: Ranges of addresses in CIDR notation; empty: the provider has no such rule.
        callers: Addresses of this computer in CIDR notation; empty: not known, or of no importance.
        changed: This call changed the rule.
        before: What the rule allowed before this call changed it.
        note: Why the fleet has no rules of its own.
    """

    open_to: tuple[str, ...] = ()
    callers: tuple[str, ...] = ()
    changed: bool = False
    before: tuple[str, ...] = ()
    note: str = ""

    @property
    def admits_caller(self) -> bool:
        """Whether every known address of this computer is in one of the ranges."""
        ranges = [IPv4Network(text, strict=False) for text in self.open_to if ":" not in text]
        return all(any(IPv4Network(one).subnet_of(network) for network in ranges) for one in self.callers)


@dataclass(frozen=True)
class UnknownHost:
    """A host whose key no known_hosts file confirms.

    Attributes:
        host: The host, without a key.
        place: Its name in the inventory.
        checking: StrictHostKeyChecking for it.
        trusted: Keys that known_hosts has for its address, for a host that is reached under another name.
        revoked: Keys that known_hosts revokes for it.
        authority: File that names a certificate authority for it; empty: none does.
    """

    host: Host
    place: str
    checking: str = "ask"
    trusted: tuple[str, ...] = ()
    revoked: tuple[str, ...] = ()
    authority: str = ""


@dataclass(frozen=True)
class Orphan:
    """A resource that belongs to a fleet.

    Attributes:
        fleet: Name of the fleet.
        owner: ID of the state directory from which it was created; empty: it is of this computer.
        user: Login and computer of the user who created it; empty: not known.
        kind: ``instance``, ``disk``, ``address`` or ``firewall rule``.
        name: Its own name.
        zone: Zone or region; of a firewall rule the project that has it; empty: it is global.
        created_at: Seconds since the epoch.
        price_usd_h: Estimated price in US dollars an hour.
    """

    fleet: str
    owner: str
    user: str
    kind: str
    name: str
    zone: str = ""
    created_at: float = 0.0
    price_usd_h: float = 0.0


@dataclass(frozen=True)
class Finding:
    """One thing that a provider needs, and whether it is there.

    Attributes:
        subject: What was looked at, ``credentials``.
        ok: Whether it is as it should be.
        message: What was found.
        next_step: Commands that repair it, one a line.
        hint: What to change, one sentence.
    """

    subject: str
    ok: bool
    message: str
    next_step: str = ""
    hint: str = ""
