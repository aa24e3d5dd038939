"""Hosts that exist already, named by an inventory: nothing is made, nothing is deleted, and a fleet borrows them."""

from __future__ import annotations

import dataclasses
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from provision.keys import fingerprint
from provision.model import Finding, FleetSpec, Host, Instance, InstanceState, Quote, SshAccess
from provision.names import index_of, instance_name, validate_fleet_name
from provision.packages import install_openssh
from provision.provider import ErrorKind, Progress, ProviderError
from provision.ssh_config.known_hosts import Known, known_keys
from provision.ssh_config.routes import Way
from provision.static.registry import Record, Records
from provision.static.selection import Chosen, at_once, choose, way_of

DIRECTORY = ".fleet"
"""Of all fleets on a host, in the login directory."""


@dataclass(frozen=True)
class Stranger:
    """A host of which nothing vouches for the key.

    Attributes:
        host: How SSH reaches it; without a host key.
        place: Its name in the inventory.
        checking: What the SSH configuration wants done with it: ``ask``, ``yes`` (refuse), ``accept-new``, ``no``.
        trusted: Keys that are known under its name without the port, any of which it may show.
        revoked: Keys that it must not show.
        authority: File that names a certificate authority for it; empty: none does.
    """

    host: Host
    place: str
    checking: str
    trusted: tuple[str, ...]
    revoked: tuple[str, ...]
    authority: str


class StaticProvider:
    """Lends the hosts of inventories to fleets.

    Args:
        root: Directory that tells which hosts are in which fleet; made with the first fleet.
    """

    name = "static"

    def __init__(self, root: Path) -> None:
        self._records = Records(root.absolute())

    def check(self, spec: FleetSpec) -> None:
        """Raise ProviderError if the inventory does not yield the hosts of `spec`; touches nothing.

        A fleet that has its hosts keeps them, whatever becomes of the file.
        """
        try:
            validate_fleet_name(spec.name)
        except ValueError as error:
            raise ProviderError(ErrorKind.USAGE, str(error)) from error
        if spec.workers < 1:
            raise ProviderError(ErrorKind.USAGE, f"A fleet has 1 worker or more, not {spec.workers}")
        if spec.cloud is not None:
            raise ProviderError(
                ErrorKind.USAGE, "Hosts that exist already have no cloud settings", hint="leave them out"
            )
        if not spec.inventory:
            raise ProviderError(
                ErrorKind.USAGE,
                "Nothing says which hosts are meant",
                hint="name a file of hosts: --inventory FILE",
            )
        if len(self._records.read(spec.name)) != spec.workers:
            choose(spec)

    def completed(self, spec: FleetSpec) -> FleetSpec:
        """Return `spec`: there is nothing to add."""
        return spec

    def quote(self, _spec: FleetSpec, names: Sequence[str]) -> Quote:
        """What it costs: nothing is rented."""
        return Quote(len(names))

    def create(self, spec: FleetSpec, names: Sequence[str], progress: Progress) -> None:
        """Take the hosts `names` of the inventory into the fleet; those that are in it stay as they are.

        Raises:
            ProviderError: the inventory does not yield them.
        """
        there = {record.name: record for record in self._records.read(spec.name) if record.id}
        if not set(names) <= set(there):
            now = time.time()
            for index, chosen in enumerate(choose(spec)):
                name = instance_name(index)
                if name in names and name not in there:
                    there[name] = _record(spec.name, name, chosen, now)
            self._records.write(spec.name, sorted(there.values(), key=lambda one: index_of(one.name)))
        for name in dict.fromkeys(names):
            progress(name, "ready")

    def hosts(self, spec: FleetSpec, instances: Sequence[Instance]) -> list[Host]:
        """How SSH reaches `instances`, in their order, by what the user's SSH configuration says now.

        Raises:
            ProviderError: one is not in the fleet any more, nothing vouches for its key, or two are one machine.
        """
        records = [self._record(instance) for instance in instances]
        found = [host for host, _, _ in at_once(_look, [(spec, record) for record in records])]
        for record, host in zip(records, found, strict=True):
            if not host.host_key:
                raise ProviderError(
                    ErrorKind.UNREACHABLE,
                    f"Nothing vouches for the host key of {host.name} in fleet {spec.name}, {record.place}",
                    next_step="fleet up",
                )
        _refuse_one_machine(records, found)
        return found

    def strangers(self, spec: FleetSpec) -> list[Stranger]:
        """Hosts of the fleet of which nothing vouches for the key, in their order."""
        records = [record for record in self._records.read(spec.name) if record.id]
        found = at_once(_look, [(spec, record) for record in records])
        return [
            _stranger(record, host, way, known)
            for record, (host, way, known) in zip(records, found, strict=True)
            if not host.host_key
        ]

    def pin(self, fleet: str, keys: Mapping[str, str]) -> None:
        """Remember the user's word for host keys.

        Args:
            fleet: Name of the fleet.
            keys: By name of the instance, each ``ssh-ed25519 AAAA…``.
        """
        records = self._records.read(fleet)
        pinned = [dataclasses.replace(one, host_key=keys.get(one.name, one.host_key)) for one in records]
        self._records.write(fleet, pinned)

    def open_ssh(self, _spec: FleetSpec, *, make: bool = False) -> SshAccess:
        """Return nothing: no firewall of the fleet's own is in the way."""
        del make
        return SshAccess()

    def delete(self, instances: Sequence[Instance], progress: Progress) -> None:
        """Give `instances` back: they are in no fleet any more. One that is gone is success.

        What lies on the hosts is for their agents to remove, before this.
        """
        for instance in instances:
            progress(instance.name, "deleting")
            left = [record for record in self._records.read(instance.fleet) if record.id != instance.id]
            self._records.write(instance.fleet, left)
            progress(instance.name, "deleted")

    def delete_fleet(self, fleet: str, progress: Progress) -> list[str]:
        """Give the hosts of `fleet` back, and list again.

        Returns:
            Names of what is still there.
        """
        self.delete(self.list(fleet), progress)
        self._records.forget(fleet)
        return [instance.name for instance in self.list(fleet)]

    def extend(self, _instances: Sequence[Instance], _seconds: float, _progress: Progress) -> None:
        """Refuse: nobody deletes hosts that exist.

        Raises:
            ProviderError: always.
        """
        raise ProviderError(
            ErrorKind.USAGE, "Hosts that exist already have no deletion time: they stay until `fleet down`"
        )

    def stop_at(self, _instances: Sequence[Instance], _at: float) -> bool:
        """Return False: nothing is rented."""
        return False

    def fates(self, _fleet: str, _names: Sequence[str]) -> Mapping[str, str]:
        """Nothing is known of them but what they say themselves."""
        return {}

    def doctor(self) -> list[Finding]:
        """Whether the programs that know the user's SSH configuration and keys are there."""
        return [_program(name) for name in ("ssh", "ssh-keygen")]

    def list(self, fleet: str | None = None) -> list[Instance]:
        """All hosts of `fleet` (of every fleet, where it is None), ordered by fleet and index."""
        names = self._records.fleets() if fleet is None else [fleet]
        return [_instance(name, record) for name in names for record in self._records.read(name)]

    def _record(self, instance: Instance) -> Record:
        for record in self._records.read(instance.fleet):
            if record.id and record.id == instance.id:
                return record
        raise ProviderError(
            ErrorKind.UNREACHABLE,
            f"{instance.name} in fleet {instance.fleet} is not known here any more",
            next_step="fleet up",
        )


def _record(fleet: str, name: str, chosen: Chosen, now: float) -> Record:
    return Record(
        name=name,
        id=chosen.id,
        place=chosen.entry.name,
        target=chosen.entry.address,
        options=chosen.options,
        python=chosen.entry.python,
        private_address=chosen.private_address,
        # Several fleets, of several computers too, may have hosts and a login in common.
        root=f"{DIRECTORY}/{fleet}-{name}-{secrets.token_hex(4)}",
        created_at=now,
    )


def _instance(fleet: str, record: Record) -> Instance:
    state = InstanceState.RUNNING if record.id else InstanceState.STARTING
    return Instance(record.name, fleet, record.id, state, record.place, created_at=record.created_at)


def _look(item: tuple[FleetSpec, Record]) -> tuple[Host, Way, Known]:
    """The host of a record, without a key where nothing vouches for one."""
    spec, record = item
    way = way_of(record.target, record.options)
    known = _known(way.key_name, way)
    host = Host(
        name=record.name,
        address=way.address,
        port=way.port,
        user=way.user,
        host_key=next(iter(known.keys), record.host_key if record.host_key not in known.revoked else ""),
        key_alias=f"static.{record.id}",
        private_address=record.private_address,
        python=spec.python or record.python,
        root=record.root,
        proxy=way.proxy,
        identities=way.identities,
        certificates=way.certificates,
        agent=way.agent,
        identities_only=way.identities_only,
    )
    return host, way, known


def _known(name: str, way: Way) -> Known:
    return known_keys(name, way.known_hosts)


def _stranger(record: Record, host: Host, way: Way, known: Known) -> Stranger:
    bare = _known(way.bare_name, way) if way.bare_name else Known()
    return Stranger(
        host=host,
        place=record.place,
        checking=way.checking,
        trusted=bare.keys,
        revoked=(*known.revoked, *bare.revoked),
        authority=known.authority or bare.authority,
    )


def _refuse_one_machine(records: Sequence[Record], hosts: Sequence[Host]) -> None:
    seen: dict[str, Record] = {}
    for record, host in zip(records, hosts, strict=True):
        other = seen.setdefault(host.host_key, record)
        if other is not record:
            raise ProviderError(
                ErrorKind.USAGE,
                f"{other.place} and {record.place} are one machine: both have the host key "
                f"{fingerprint(host.host_key)}",
                cause="or they are copies of one, which pass for each other",
                hint="leave one of them out; a copy gets a key of its own with: ssh-keygen -A, after rm "
                "/etc/ssh/ssh_host_*",
            )


def _program(name: str) -> Finding:
    path = shutil.which(name)
    if path is None:
        return Finding(name, False, f"{name} is not installed on this computer", install_openssh("client"))
    return Finding(name, True, f"{name} is {path}")
