"""The contract of every provider; tests/cloud checks it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

from provision.model import Finding, FleetSpec, Host, Instance, Orphan, Quote, SshAccess, UnknownHost
from provision.names import validate_fleet_name

Progress = Callable[[str, str], None]
"""Called with an instance's name and a step, ``("worker-0", "starting sshd")``, or with a zone's name and its result,
``("us-central1-a", "has no capacity for 2 instances")``."""


class Journal(Protocol):
    """Records what a provider is about to do, so that a crash of the program leaves nothing unknown."""

    def intend(self, fleet: str, intent: str, **details: Any) -> None:
        """Write an intent; on disk when this returns. Intents of unknown fleets are not written."""

    def intents(self, fleet: str) -> list[dict[str, Any]]:
        """Return all intents of a fleet, oldest first, as they were given; ``intent`` has the name."""


@dataclass(frozen=True)
class Site:
    """What a provider may use of this computer.

    Attributes:
        directory: State directory; a provider stores its state in a directory of its own below it.
        user: Login and computer of the user, in characters that labels of clouds can have.
        owner: Returns the ID of the state directory.
        journal: Records intents.
    """

    directory: Path
    user: str
    owner: Callable[[], str]
    journal: Journal


class ErrorKind(Enum):
    """Kinds of provider errors; each has an exit code of the program."""

    USAGE = "usage"
    MISSING = "missing"  # a program, a file, or a setting
    CREDENTIALS = "credentials"
    QUOTA = "quota"
    CAPACITY = "capacity"
    UNREACHABLE = "unreachable"


class ProviderError(Exception):
    """A provider could not do what was requested.

    Attributes:
        kind: Kind of the error.
        message: What happened, for the user.
        cause: Why, if known.
        hint: What to change, one sentence.
        next_step: Commands that can be pasted into a shell, one a line.
        again: Options of ``fleet up`` to change (None removes one) before it is repeated; None: no repetition helps.
    """

    def __init__(
        self,
        kind: ErrorKind,
        message: str,
        *,
        cause: str = "",
        hint: str = "",
        next_step: str = "",
        again: Mapping[str, str | bool | None] | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.cause = cause
        self.hint = hint
        self.next_step = next_step
        self.again = again


class Provider(ABC):
    """Creates, lists, and deletes the instances of fleets.

    A provider must have `create`, `list`, `hosts`, and `delete`; every other method has a default for a provider that
    rents nothing. Traits that are needed before any call, such as `rents`, belong to its `ProviderOptions`.

    Every method may be repeated after any crash, of this program or of the provider, and then repairs.

    A provider of existing hosts starts and stops nothing. `create` adds them to the fleet and `delete` releases them;
    they are RUNNING as long as they belong to it, and keep their id. Before that, files of the fleet are deleted
    through SSH.
    """

    name: str

    @classmethod
    def open(cls, options: Any, site: Site) -> Provider:
        """Return the provider.

        Args:
            options: Of a fleet, of the class that declares the provider; which account to use.
            site: What the provider may use of this computer.
        """
        raise NotImplementedError  # every provider that can be looked up by name has it

    @classmethod
    def change(cls, options: Any, given: Mapping[str, Any]) -> Any:
        """Return options with some changed, and with defaults that depend on them.

        Args:
            options: To be changed.
            given: Values by field.

        Raises:
            ValueError: a value is invalid, or values contradict each other.
        """
        return replace(options, **given)

    @classmethod
    def named_hosts(cls, options: Any) -> Sequence[str] | None:
        """Return the names of existing hosts that the options select; None if the provider creates hosts.

        Raises:
            ProviderError: the hosts cannot be determined.
        """
        del options
        return None

    def check(self, spec: FleetSpec) -> None:
        """Check the spec and this computer; start nothing and call nobody.

        Raises:
            ProviderError: the fleet cannot be created.
        """
        try:
            validate_fleet_name(spec.name)
        except ValueError as error:
            raise ProviderError(ErrorKind.USAGE, str(error)) from error
        if spec.workers < 1:
            raise ProviderError(
                ErrorKind.USAGE, f"a fleet has at least 1 worker, not {spec.workers}", again={"--workers": "2"}
            )

    def complete(self, spec: FleetSpec) -> FleetSpec:
        """Return `spec` with what only the provider knows, such as the GPUs of a machine type.

        Raises:
            ProviderError: the provider does not answer.
        """
        return spec

    def quote(self, spec: FleetSpec, names: Sequence[str]) -> Quote:
        """Return where the instances `names` would be created, and their price; start nothing.

        Raises:
            ProviderError: they cannot be created, because of credentials, a quota, or a machine type.
        """
        del spec
        return Quote(len(names))

    @abstractmethod
    def create(self, spec: FleetSpec, names: Sequence[str], progress: Progress) -> None:
        """Create the instances `names` of fleet `spec`, all in one zone or none.

        Names are deterministic. Instances that exist are left alone. A STOPPED one is started again, with its id, its
        host key, and its files. A STARTING one is left over from a crash and is created anew. Afterwards `list` shows
        every name as RUNNING. If this raises, KeyboardInterrupt included, `list` still shows what was created.

        Raises:
            ProviderError: an instance could not be created.
        """

    @abstractmethod
    def list(self, fleet: str | None = None) -> list[Instance]:
        """Return all instances of `fleet`, or of every fleet, ordered by fleet and index; in one call.

        Incomplete instances (STARTING) and dead ones (STOPPED) are listed, so that `delete` finds them.
        """

    @abstractmethod
    def hosts(self, spec: FleetSpec, instances: Sequence[Instance]) -> Sequence[Host]:
        """Return how SSH reaches RUNNING instances, in their order, with host keys from another source than SSH.

        Raises:
            ProviderError: an instance does not run, or has not published its host key.
        """

    @abstractmethod
    def delete(self, instances: Sequence[Instance], progress: Progress) -> None:
        """Delete `instances` with their processes and files, and wait for that; a missing one is success."""

    def delete_fleet(self, fleet: str, progress: Progress) -> Sequence[str]:
        """Delete the instances of `fleet` and all that was created for it, and list again.

        Returns:
            Names of what could not be deleted.
        """
        self.delete(self.list(fleet), progress)
        return [instance.name for instance in self.list(fleet)]

    def open_ssh(self, spec: FleetSpec, *, make: bool = False) -> SshAccess:
        """Let this computer reach the instances of `spec` by SSH, if a firewall rule of the fleet decides that.

        Ranges of addresses that the user gave are never widened.

        Args:
            spec: The fleet.
            make: Create what is missing and apply what `spec` says; only while the lock of the fleet is held.

        Returns:
            Who can reach the instances now; empty if no rule of the fleet decides that.

        Raises:
            ProviderError: the address of this computer is not known, or the rule cannot be changed.
        """
        del spec, make
        return SshAccess()

    def unknown_hosts(self, spec: FleetSpec) -> Sequence[UnknownHost]:
        """Return the hosts of a fleet whose keys the user has to confirm, in their order."""
        del spec
        return ()

    def pin(self, fleet: str, keys: Mapping[str, str]) -> None:
        """Store host keys that the user confirmed.

        Args:
            fleet: Name of the fleet.
            keys: By name of the instance, each ``ssh-ed25519 AAAA…``.
        """
        raise NotImplementedError  # a provider that returns unknown hosts overrides it

    def extend(self, instances: Sequence[Instance], seconds: float, progress: Progress) -> None:
        """Let the provider delete `instances` this many seconds from now.

        Raises:
            ProviderError: it has no such deadline, or does not change it.
        """
        del instances, seconds, progress
        raise ProviderError(
            ErrorKind.USAGE, f"a fleet of provider {self.name!r} has no deletion time: it stays until `fleet down`"
        )

    def stop_at(self, instances: Sequence[Instance], at: float) -> bool:
        """Let instances of one fleet stop by themselves at a time, whatever happens to this computer.

        A stopped instance costs no more than its disk, and `create` starts it again.

        Args:
            instances: Instances of one fleet.
            at: Seconds since the epoch; 0: never.

        Returns:
            True if every instance has confirmed it; False if this provider cannot do it.

        Raises:
            ProviderError: it cannot be set.
        """
        del instances, at
        return False

    def termination_reasons(self, fleet: str, names: Sequence[str]) -> Mapping[str, str]:
        """Return why instances are gone or stopped, each as a clause (``was preempted at 12:03:10``), if known."""
        del fleet, names
        return {}

    def doctor(self) -> Sequence[Finding]:
        """Check all prerequisites; change nothing."""
        return ()

    def orphans(self) -> Sequence[Orphan]:
        """Return everything that belongs to any fleet, whoever created it; the caller knows which fleets exist.

        Raises:
            ProviderError: the provider does not answer.
        """
        return [
            Orphan(one.fleet, "", "", "instance", f"{one.fleet}-{one.name}", one.zone, one.created_at)
            for one in self.list()
        ]

    def delete_orphans(self, orphans: Sequence[Orphan], progress: Progress) -> Sequence[str]:
        """Delete `orphans`, and list again.

        Returns:
            Names of those that could not be deleted.

        Raises:
            ProviderError: one could not be deleted.
        """
        left = []
        for fleet in dict.fromkeys(one.fleet for one in orphans):

            def report(name: str, step: str, fleet: str = fleet) -> None:
                progress(f"{fleet}-{name}", step)

            left += [f"{fleet}-{name}" for name in self.delete_fleet(fleet, report)]
        return left
