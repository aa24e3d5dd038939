"""Existing hosts of an inventory as the hosts of fleets: nothing is created or deleted."""

from __future__ import annotations

import dataclasses
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from provision.keys import fingerprint
from provision.model import Finding, FleetSpec, Host, Instance, InstanceState, LocalProgram, Quote, UnknownHost
from provision.names import index_of, instance_name
from provision.openssh import install_openssh
from provision.provider import ErrorKind, Progress, Provider, ProviderError, Site
from provision.ssh_config.programs import AcceptedPrograms, agree, programs_of_ssh
from provision.ssh_config.routes import KnownKeys, Route, known_keys, resolve_route
from provision.static.assignments import Assignment, Assignments
from provision.static.options import StaticOptions
from provision.static.selection import SelectedHost, map_parallel, read_selection, select_entries, select_hosts

DIRECTORY = ".fleet"
"""Of all fleets on a host, in the login directory."""


class StaticProvider(Provider):
    """Assigns the hosts of inventories to fleets.

    Args:
        root: Directory of the assignments of the hosts of each fleet; created with the first fleet.
    """

    name = "static"

    def __init__(self, root: Path) -> None:
        self._assignments = Assignments(root.absolute())
        self._accepted = AcceptedPrograms(root.absolute().parent / "programs")

    @classmethod
    def open(cls, options: StaticOptions, site: Site) -> StaticProvider:
        """Return the provider of existing hosts."""
        del options
        return cls(site.directory / "static")

    @classmethod
    def named_hosts(cls, options: StaticOptions) -> Sequence[str]:
        """Return the names of the selected hosts, in the order of the inventory.

        Raises:
            ProviderError: the inventory does not exist, or cannot be read.
        """
        return [entry.name for entry in read_selection(options)[1]]

    def check(self, spec: FleetSpec) -> None:
        """Check that the inventory has the hosts of `spec`, without changing anything.

        A fleet that has its hosts keeps them, even if the file changes.

        Raises:
            ProviderError: hosts are missing, or a host cannot be reached as configured.
        """
        super().check(spec)
        assignments = self._assignments.read(spec.name)
        if len(assignments) < spec.workers:
            if any(each.text.startswith("-F") for each in self.programs(spec)):
                select_entries(spec)  # ssh would run programs of that configuration, even for its options alone
            else:
                _check_new(select_hosts(spec), assignments)

    def programs(self, spec: FleetSpec) -> Sequence[LocalProgram]:
        """Return the programs that ssh runs for the hosts of the fleet, and for those of the inventory.

        Raises:
            ProviderError: the inventory, or an SSH configuration that it names, cannot be read.
        """
        assignments = self._assignments.read(spec.name)
        entries = select_entries(spec) if len(assignments) < spec.workers else ()
        return _programs(spec, [each.options for each in assignments] + [entry.options for entry in entries])

    def quote(self, spec: FleetSpec, names: Sequence[str]) -> Quote:
        """Return the hosts of the inventory that would be used, without a price."""
        hosts = self.named_hosts(StaticOptions.of(spec.options))
        which = ", ".join(f"{name} would be {hosts[index_of(name)]}" for name in names)
        return Quote(len(names), notes=(f"{which}; nothing was touched",) if names else ())

    def create(self, spec: FleetSpec, names: Sequence[str], progress: Progress) -> None:
        """Take the hosts `names` of the inventory into the fleet; hosts that are in it already do not change.

        Raises:
            ProviderError: the inventory does not have these hosts.
        """
        assignments = {each.name: each for each in self._assignments.read(spec.name) if each.id}
        if not set(names) <= set(assignments):
            self._accepted.require(self.programs(spec))
            now = time.time()
            for index, selected in enumerate(select_hosts(spec)):
                name = instance_name(index)
                if name in names and name not in assignments:
                    assignments[name] = _assignment(spec.name, name, selected, now)
            self._assignments.write(spec.name, sorted(assignments.values(), key=lambda each: index_of(each.name)))
        for name in dict.fromkeys(names):
            progress(name, "ready")

    def hosts(self, spec: FleetSpec, instances: Sequence[Instance]) -> list[Host]:
        """Return the SSH routes to `instances`, in their order, from the user's current SSH configuration.

        Raises:
            ProviderError: a host has left the fleet, its key is not confirmed, or two are the same machine.
        """
        assignments = [self._assignment(instance) for instance in instances]
        hosts = [host for host, _, _ in self._probe(spec, assignments)]
        for assignment, host in zip(assignments, hosts, strict=True):
            if not host.host_key:
                raise ProviderError(
                    ErrorKind.UNREACHABLE,
                    f"the host key of {host.name} in fleet {spec.name} ({assignment.inventory_name}) "
                    "is not confirmed",
                    next_steps=[("fleet", "up")],
                )
        _check_machines_differ(assignments, hosts)
        return hosts

    def unknown_hosts(self, spec: FleetSpec) -> list[UnknownHost]:
        """Return the hosts of the fleet whose keys no known_hosts file confirms, in their order."""
        assignments = [assignment for assignment in self._assignments.read(spec.name) if assignment.id]
        probed = zip(assignments, self._probe(spec, assignments), strict=True)
        return [_unknown_host(assignment, *result) for assignment, result in probed if not result[0].host_key]

    def _probe(self, spec: FleetSpec, assignments: Sequence[Assignment]) -> list[tuple[Host, Route, KnownKeys]]:
        self._accepted.require(_programs(spec, [assignment.options for assignment in assignments]))
        return map_parallel(partial(_probe, spec), assignments)

    def pin(self, fleet: str, keys: Mapping[str, str]) -> None:
        """Store host keys that the user confirmed.

        Args:
            fleet: Name of the fleet.
            keys: Host keys by instance name, each ``ssh-ed25519 AAAA…``.
        """
        pinned = [
            dataclasses.replace(each, host_key=keys.get(each.name, each.host_key))
            for each in self._assignments.read(fleet)
        ]
        self._assignments.write(fleet, pinned)

    def delete(self, instances: Sequence[Instance], progress: Progress) -> None:
        """Release `instances` from their fleet. A missing instance is success.

        The agents must remove their files from the hosts before this.
        """
        for instance in instances:
            progress(instance.name, "deleting")
            left = [each for each in self._assignments.read(instance.fleet) if each.id != instance.id]
            self._assignments.write(instance.fleet, left)
            progress(instance.name, "deleted")

    def doctor(self, workers: int = 1) -> list[Finding]:  # noqa: ARG002 - any number
        """Check that the programs that read the user's SSH configuration and keys are installed."""
        return [_program(name) for name in ("ssh", "ssh-keygen")]

    def list(self, fleet: str | None = None) -> list[Instance]:
        """Return all hosts of `fleet` (None: of every fleet), ordered by fleet and index."""
        names = self._assignments.fleets() if fleet is None else [fleet]
        return [_instance(name, assignment) for name in names for assignment in self._assignments.read(name)]

    def _assignment(self, instance: Instance) -> Assignment:
        for assignment in self._assignments.read(instance.fleet):
            if assignment.id and assignment.id == instance.id:
                return assignment
        raise ProviderError(
            ErrorKind.UNREACHABLE,
            f"{instance.name} in fleet {instance.fleet} is not in the state directory any more",
            next_steps=[("fleet", "up")],
        )


def _programs(spec: FleetSpec, options: Sequence[Sequence[str]]) -> list[LocalProgram]:
    source = StaticOptions.of(spec.options).inventory
    return [each for words in dict.fromkeys(map(tuple, options)) for each in programs_of_ssh(source, words)]


def _check_new(selected: Sequence[SelectedHost], assignments: Sequence[Assignment]) -> None:
    """Raise ProviderError if a host that would be added is in the fleet already, under the name of another worker."""
    assigned = {assignment.name for assignment in assignments}
    by_id = {assignment.id: assignment for assignment in assignments}
    for index, host in enumerate(selected):
        if instance_name(index) not in assigned and host.id in by_id:
            raise ProviderError(
                ErrorKind.USAGE,
                f"host {host.entry.name!r} cannot be added as {instance_name(index)}: "
                f"it is {by_id[host.id].name} of the fleet already",
                cause="the order of the hosts in the inventory has changed",
                hint="add new hosts at the end of the inventory",
            )


def _assignment(fleet: str, name: str, selected: SelectedHost, now: float) -> Assignment:
    return Assignment(
        name=name,
        id=selected.id,
        inventory_name=selected.entry.name,
        target=selected.entry.address,
        options=selected.entry.options,
        python=selected.entry.python,
        private_address=selected.entry.private_address,
        # Several fleets, even of several computers, may share hosts and a login.
        root=f"{DIRECTORY}/{fleet}-{name}-{secrets.token_hex(4)}",
        created_at=now,
    )


def _instance(fleet: str, assignment: Assignment) -> Instance:
    state = InstanceState.RUNNING if assignment.id else InstanceState.STARTING
    return Instance(
        assignment.name, fleet, assignment.id, state, assignment.inventory_name, created_at=assignment.created_at
    )


def _probe(spec: FleetSpec, assignment: Assignment) -> tuple[Host, Route, KnownKeys]:
    """Return a host, its route, and its known_hosts entries; it has no key if none is confirmed."""
    route = resolve_route(assignment.target, options=assignment.options)
    entries = known_keys(route.key_name, route.known_hosts)
    host = Host(
        name=assignment.name,
        address=route.address,
        port=route.port,
        user=route.user,
        host_key=next(iter(entries.keys), assignment.host_key if assignment.host_key not in entries.revoked else ""),
        key_alias=f"static.{assignment.id}",
        private_address=assignment.private_address,
        python=spec.python or assignment.python,
        root=assignment.root,
        proxy=route.proxy,
        identities=route.identities,
        certificates=route.certificates,
        agent=route.agent,
        identities_only=route.identities_only,
        agreed=agree(assignment.options, route.proxy),
    )
    return host, route, entries


def _unknown_host(assignment: Assignment, host: Host, route: Route, entries: KnownKeys) -> UnknownHost:
    bare = known_keys(route.bare_name, route.known_hosts) if route.bare_name else KnownKeys()
    return UnknownHost(
        host=host,
        inventory_name=assignment.inventory_name,
        checking=route.checking,
        trusted=bare.keys,
        revoked=(*entries.revoked, *bare.revoked),
        authority=entries.authority or bare.authority,
    )


def _check_machines_differ(assignments: Sequence[Assignment], hosts: Sequence[Host]) -> None:
    seen: dict[str, Assignment] = {}
    for assignment, host in zip(assignments, hosts, strict=True):
        other = seen.setdefault(host.host_key, assignment)
        if other is not assignment:
            raise ProviderError(
                ErrorKind.USAGE,
                f"{other.inventory_name} and {assignment.inventory_name} have the same host key, "
                f"{fingerprint(host.host_key)}",
                cause="they are the same machine, or cloned disks",
                hint="remove one of them; on a clone, create new host keys with ssh-keygen -A after rm "
                "/etc/ssh/ssh_host_*",
            )


def _program(name: str) -> Finding:
    if path := shutil.which(name):
        return Finding(name, True, f"{name} is {path}")
    return Finding(name, False, f"{name} is not installed on this computer", next_steps=install_openssh("client"))
