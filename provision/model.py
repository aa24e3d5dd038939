"""The nouns of provisioning: what a user asks for, what a provider sells, what SSH reaches."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class InstanceState(Enum):
    """Where an instance is in its life, as its provider tells it."""

    STARTING = "starting"
    RUNNING = "running"
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
    """

    name: str
    provider: str
    workers: int
    public_key: str = ""
    python: str = ""


@dataclass(frozen=True)
class Instance:
    """What a provider sells: one virtual machine, or one of its kind.

    Attributes:
        name: Name within the fleet, ``worker-0``; the same for every repeat of the same plan.
        fleet: Name of the fleet it is labelled with.
        id: The provider's own identifier; never reused, so that host keys are pinned by it.
        state: Where it is in its life.
        zone: Where it stands; ``localhost`` for the local provider.
        price_usd_h: Estimated price in US dollars an hour.
        created_at: Seconds since the epoch.
    """

    name: str
    fleet: str
    id: str
    state: InstanceState
    zone: str
    price_usd_h: float = 0.0
    created_at: float = 0.0


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
        private_address: Address by which the other hosts of the fleet reach it.
        python: Interpreter for the user's script; empty: found on the host.
        root: Folder of fleet's files on the host; relative to the login folder unless absolute.
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
