"""Existing hosts of an inventory as the hosts of fleets: nothing is created or deleted."""

from __future__ import annotations

import dataclasses
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from provision.keys import fingerprint
from provision.model import Finding, FleetSpec, Host, Instance, InstanceState, Quote, UnknownHost
from provision.names import index_of, instance_name
from provision.packages import install_openssh
from provision.provider import ErrorKind, Progress, Provider, ProviderError, Site
from provision.ssh_config.known_hosts import Known, known_keys
from provision.ssh_config.routes import Way
from provision.static.options import StaticOptions
from provision.static.registry import Record, Records
from provision.static.selection import Chosen, at_once, choose, selected, way_of

DIRECTORY = ".fleet"
"""Of all fleets on a host, in the login directory."""


class StaticProvider(Provider):
    """Assigns the hosts of inventories to fleets.

    Args:
        root: Directory of the records of the hosts of each fleet; created with the first fleet.
    """

    name = "static"

    def __init__(self, root: Path) -> None:
        self._records = Records(root.absolute())

    @classmethod
    def open(cls, options: StaticOptions, site: Site) -> StaticProvider:
        """Return the provider of existing hosts."""
        del options
        return cls(site.directory / "static")

    @classmethod
    def named_hosts(cls, options: StaticOptions) -> Sequence[str]:
        """Return the names of the selected hosts, in the order of the inventory.

        Raises:
            ProviderError: there is no inventory, or it cannot be read.
        """
        return [entry.name for entry in selected(options.inventory, options.limit)[1]]

    def check(self, spec: FleetSpec) -> None:
        """Check that the inventory has the hosts of `spec`, without changing anything.

        A fleet that has its hosts keeps them, even if the file changes.

        Raises:
            ProviderError: hosts are missing, or a host cannot be reached as configured.
        """
        super().check(spec)
        if len(self._records.read(spec.name)) != spec.workers:
            choose(spec)

    def quote(self, spec: FleetSpec, names: Sequence[str]) -> Quote:
        """Return the hosts of the inventory that would be used; there is no cost."""
        hosts = self.named_hosts(StaticOptions.of(spec.options))
        which = ", ".join(f"{name} would be {hosts[index_of(name)]}" for name in names)
        return Quote(len(names), notes=(f"{which}; nothing was touched",) if names else ())

    def create(self, spec: FleetSpec, names: Sequence[str], progress: Progress) -> None:
        """Take the hosts `names` of the inventory into the fleet; hosts that are in it already do not change.

        Raises:
            ProviderError: the inventory does not have these hosts.
        """
        records = {record.name: record for record in self._records.read(spec.name) if record.id}
        if not set(names) <= set(records):
            now = time.time()
            for index, chosen in enumerate(choose(spec)):
                name = instance_name(index)
                if name in names and name not in records:
                    records[name] = _record(spec.name, name, chosen, now)
            self._records.write(spec.name, sorted(records.values(), key=lambda record: index_of(record.name)))
        for name in dict.fromkeys(names):
            progress(name, "ready")

    def hosts(self, spec: FleetSpec, instances: Sequence[Instance]) -> list[Host]:
        """Return the SSH routes to `instances`, in their order, from the user's current SSH configuration.

        Raises:
            ProviderError: a host is no longer in the fleet, its key is not confirmed, or two are the same machine.
        """
        records = [self._record(instance) for instance in instances]
        hosts = [host for host, _, _ in at_once(_look, [(spec, record) for record in records])]
        for record, host in zip(records, hosts, strict=True):
            if not host.host_key:
                raise ProviderError(
                    ErrorKind.UNREACHABLE,
                    f"Nothing vouches for the host key of {host.name} in fleet {spec.name}, {record.place}",
                    next_step="fleet up",
                )
        _refuse_one_machine(records, hosts)
        return hosts

    def unknown_hosts(self, spec: FleetSpec) -> list[UnknownHost]:
        """Return the hosts of the fleet whose keys no known_hosts file confirms, in their order."""
        records = [record for record in self._records.read(spec.name) if record.id]
        probed = at_once(_look, [(spec, record) for record in records])
        return [
            _unknown_host(record, host, way, entries)
            for record, (host, way, entries) in zip(records, probed, strict=True)
            if not host.host_key
        ]

    def pin(self, fleet: str, keys: Mapping[str, str]) -> None:
        """Store host keys that the user confirmed.

        Args:
            fleet: Name of the fleet.
            keys: Host keys by instance name, each ``ssh-ed25519 AAAA…``.
        """
        records = self._records.read(fleet)
        pinned = [dataclasses.replace(record, host_key=keys.get(record.name, record.host_key)) for record in records]
        self._records.write(fleet, pinned)

    def delete(self, instances: Sequence[Instance], progress: Progress) -> None:
        """Release `instances` from their fleet. A missing instance is success.

        The agents must remove their files from the hosts before this.
        """
        for instance in instances:
            progress(instance.name, "deleting")
            left = [record for record in self._records.read(instance.fleet) if record.id != instance.id]
            self._records.write(instance.fleet, left)
            progress(instance.name, "deleted")

    def delete_fleet(self, fleet: str, progress: Progress) -> Sequence[str]:
        """Release the hosts of `fleet`, and return those that are left.

        Returns:
            Names of the hosts that could not be released.
        """
        self.delete(self.list(fleet), progress)
        self._records.forget(fleet)
        return [instance.name for instance in self.list(fleet)]

    def doctor(self) -> list[Finding]:
        """Check that the programs that read the user's SSH configuration and keys are installed."""
        return [_program(name) for name in ("ssh", "ssh-keygen")]

    def list(self, fleet: str | None = None) -> list[Instance]:
        """Return all hosts of `fleet` (None: of every fleet), ordered by fleet and index."""
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
        # Several fleets, even of several computers, may share hosts and a login.
        root=f"{DIRECTORY}/{fleet}-{name}-{secrets.token_hex(4)}",
        created_at=now,
    )


def _instance(fleet: str, record: Record) -> Instance:
    state = InstanceState.RUNNING if record.id else InstanceState.STARTING
    return Instance(record.name, fleet, record.id, state, record.place, created_at=record.created_at)


def _look(item: tuple[FleetSpec, Record]) -> tuple[Host, Way, Known]:
    """Return the host of a record, without a key if none is confirmed, with its route and known_hosts entries."""
    spec, record = item
    way = way_of(record.target, record.options)
    entries = _known(way.key_name, way)
    host = Host(
        name=record.name,
        address=way.address,
        port=way.port,
        user=way.user,
        host_key=next(iter(entries.keys), record.host_key if record.host_key not in entries.revoked else ""),
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
    return host, way, entries


def _known(name: str, way: Way) -> Known:
    return known_keys(name, way.known_hosts)


def _unknown_host(record: Record, host: Host, way: Way, entries: Known) -> UnknownHost:
    bare = _known(way.bare_name, way) if way.bare_name else Known()
    return UnknownHost(
        host=host,
        place=record.place,
        checking=way.checking,
        trusted=bare.keys,
        revoked=(*entries.revoked, *bare.revoked),
        authority=entries.authority or bare.authority,
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
