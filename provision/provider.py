"""The interface of every provider; tests/cloud checks it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

from provision.model import (
    Baking,
    Command,
    Finding,
    FleetSpec,
    Host,
    Image,
    Instance,
    LocalProgram,
    Orphan,
    Quote,
    SshAccess,
    UnknownHost,
)
from provision.names import validate_fleet_name

Progress = Callable[[str, str], None]
"""Called with an instance's name and a step, ``("worker-0", "starting sshd")``, or with a zone's name and its result,
``("us-central1-a", "has no capacity for 2 instances")``."""


class Journal(Protocol):
    """Records each action of a provider in advance, so that no resource is unknown after a crash of the program."""

    def intend(self, fleet: str, intent: str, **details: Any) -> None:
        """Write an intent to disk before returning. Intents of unknown fleets are not written."""

    def intents(self, fleet: str) -> list[dict[str, Any]]:
        """Return all intents of a fleet, oldest first, as they were given; the key ``intent`` has the name."""


@dataclass(frozen=True)
class Site:
    """Resources of this computer that a provider may use.

    Attributes:
        directory: State directory; each provider stores its state in a separate subdirectory.
        user: Login and computer of the user, in characters that cloud labels can have.
        owner: Function that returns the ID of the state directory.
        journal: Journal that records intents.
        report: Takes what the provider waits for; called from any thread.
    """

    directory: Path
    user: str
    owner: Callable[[], str]
    journal: Journal
    report: Callable[[str], None] = lambda _: None


class ErrorKind(Enum):
    """Kinds of provider errors; each has an exit code of the program."""

    USAGE = "usage"
    MISSING = "missing"  # a program, a file, or a setting
    CREDENTIALS = "credentials"
    QUOTA = "quota"
    CAPACITY = "capacity"
    UNREACHABLE = "unreachable"


@dataclass(eq=False)
class ProviderError(Exception):
    """A provider could not do what was requested.

    Attributes:
        kind: Kind of the error.
        message: Description of the error, for the user.
        cause: Cause of the error, if known.
        hint: Change to make, one sentence.
        next_steps: Commands to run next.
        again: Options of ``fleet up`` to change before it is repeated (the value None removes an option); None: a
            repetition does not help.
    """

    kind: ErrorKind
    message: str
    _: KW_ONLY
    cause: str = ""
    hint: str = ""
    next_steps: Sequence[Command] = ()
    again: Mapping[str, str | bool | None] | None = None

    def __str__(self) -> str:
        return self.message

    def finding(self, subject: str) -> Finding:
        """Return the finding that the check of a prerequisite failed with this error."""
        message = f"{self.message}: {self.cause}" if self.cause else self.message
        return Finding(subject, False, message, self.hint, self.next_steps)


def check_prerequisite(subject: str, check: Callable[[], str]) -> Finding:
    """Return the result of a check as a finding, or the error with which it failed."""
    try:
        return Finding(subject, True, check())
    except ProviderError as error:
        return error.finding(subject)


class Provider(ABC):
    """Creates, lists, and deletes the instances of fleets.

    A provider must have `create`, `list`, `hosts`, and `delete`; every other method has a default for a provider that
    rents nothing. Traits that are needed before any call, such as `rents`, belong to its `ProviderOptions`.

    Every method may be repeated after a crash of this program or of the provider, and then repairs the state.

    A provider of existing hosts starts and stops nothing. `create` adds them to the fleet and `delete` releases them;
    they are RUNNING as long as they belong to it, and keep their id. Before that, files of the fleet are deleted
    through SSH.
    """

    name: str

    @classmethod
    def open(cls, options: Any, site: Site) -> Provider:
        """Return the provider.

        Args:
            options: Options of a fleet, of the class that declares the provider; they select the account.
            site: Resources of this computer that the provider may use.
        """
        raise NotImplementedError  # every provider that can be looked up by name overrides it

    @classmethod
    def change(cls, options: Any, given: Mapping[str, Any]) -> Any:
        """Return options with some changed, and with defaults that depend on them.

        Args:
            options: Options to change.
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
        """Check the spec and this computer; start nothing and make no network call.

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
        """Return `spec` with facts that only the provider knows, such as the GPUs of a machine type.

        Raises:
            ProviderError: the provider does not answer.
        """
        return spec

    def quote(self, spec: FleetSpec, names: Sequence[str]) -> Quote:
        """Return the zones in which the instances `names` would be created, and their price; start nothing.

        Raises:
            ProviderError: they cannot be created, because of credentials, a quota, or a machine type.
        """
        del spec
        return Quote(len(names))

    def programs(self, spec: FleetSpec) -> Sequence[LocalProgram]:
        """Return the programs on this computer that the files of `spec` name; run none.

        Raises:
            ProviderError: a file cannot be read, or others can change it.
        """
        del spec
        return ()

    @abstractmethod
    def create(self, spec: FleetSpec, names: Sequence[str], progress: Progress) -> None:
        """Create the instances `names` of fleet `spec`, all in one zone or none.

        Names are deterministic. RUNNING instances are left alone. A STOPPED instance is started again, with its id,
        its host key, and its files. A STARTING instance is left over from a crash and is created again; a RESTARTING
        one is waited for. Afterwards
        `list` shows every name as RUNNING. If this method raises, even KeyboardInterrupt, `list` still shows the
        instances that were created.

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
        """Return the hosts of RUNNING instances, in their order, with host keys from another source than SSH.

        Raises:
            ProviderError: an instance does not run, or has not published its host key.
        """

    def forget_host_keys(self) -> None:  # noqa: B027 - most providers read them only once
        """Let `hosts` read all host keys again: an image can replace its keys while it boots."""

    @abstractmethod
    def delete(self, instances: Sequence[Instance], progress: Progress) -> None:
        """Delete `instances` with their processes and files, and wait for the end; a missing instance is success."""

    def delete_fleet(self, fleet: str, progress: Progress) -> Sequence[str]:
        """Delete the instances of `fleet` and all resources that were created for it, and list again.

        Returns:
            Names of the resources that could not be deleted.
        """
        self.delete(self.list(fleet), progress)
        return [instance.name for instance in self.list(fleet)]

    def open_ssh(self, spec: FleetSpec, *, make: bool = False) -> SshAccess:
        """Let this computer reach the instances of `spec` by SSH, if a firewall rule of the fleet decides that.

        Ranges of addresses that the user gave are never widened.

        Args:
            spec: The fleet.
            make: Create missing rules and apply the settings of `spec`; only while the lock of the fleet is held.

        Returns:
            Addresses that can reach the instances now; empty if no rule of the fleet decides that.

        Raises:
            ProviderError: the address of this computer is unknown, or the rule cannot be changed.
        """
        del spec, make
        return SshAccess()

    def unknown_hosts(self, spec: FleetSpec) -> Sequence[UnknownHost]:
        """Return the hosts of a fleet whose keys the user must confirm, in their order."""
        del spec
        return ()

    def pin(self, fleet: str, keys: Mapping[str, str]) -> None:
        """Store host keys that the user confirmed.

        Args:
            fleet: Name of the fleet.
            keys: Host keys (``ssh-ed25519 AAAA…``) by the name of the instance.
        """
        raise NotImplementedError  # a provider that returns unknown hosts overrides it

    def extend(self, instances: Sequence[Instance], seconds: float, progress: Progress) -> None:
        """Let the lifetime of `instances` end this many seconds from now: they stop, or the provider deletes them.

        Raises:
            ProviderError: the provider has no such deadline, or does not change it.
        """
        del instances, seconds, progress
        raise ProviderError(
            ErrorKind.USAGE,
            f"a fleet of provider {self.name!r} has no deletion time: it stays until `fleet down`",
            next_steps=[("fleet", "status")],
        )

    def extension_warning(self, instances: Sequence[Instance], seconds: float) -> str:
        """Return a warning about the effect of such an `extend` on running instances; empty: it has none.

        Raises:
            ProviderError: the provider does not allow this time.
        """
        del instances, seconds
        return ""

    def stop(self, instances: Sequence[Instance], progress: Progress) -> None:
        """Stop `instances`, and wait until they are stopped; `create` starts them again, with all their files.

        Raises:
            ProviderError: an instance does not stop.
        """
        raise NotImplementedError  # a provider whose options declare `keeps_disks` overrides it

    def stop_at(self, instances: Sequence[Instance], at: float) -> bool:
        """Let instances of one fleet stop by themselves at a time, even if this computer is off.

        A stopped instance costs no more than its disk, and `create` starts it again.

        Args:
            instances: Instances of one fleet.
            at: Seconds since the epoch; 0: only when their lifetime ends.

        Returns:
            True if every instance has confirmed it; False if not, or if this provider does not support it.

        Raises:
            ProviderError: it cannot be set.
        """
        del instances, at
        return False

    def update_scripts(self, spec: FleetSpec, instances: Sequence[Instance]) -> None:
        """Let root run the scripts of the options of `spec` on running instances, if they changed.

        Raises:
            ProviderError: they cannot be changed.
        """
        del spec, instances

    def termination_reasons(self, fleet: str, names: Sequence[str]) -> Mapping[str, str]:
        """Return the known reasons why instances are gone or stopped, as clauses (``was preempted at 12:03:10``)."""
        del fleet, names
        return {}

    def plan_image(self, spec: FleetSpec) -> Baking:
        """Return the image from which prepared hosts of `spec` would boot, and how it is made; change nothing.

        Raises:
            ProviderError: the provider has no images, or the image cannot be made.
        """
        del spec
        raise ProviderError(
            ErrorKind.USAGE,
            f"provider {self.name!r} has no images; fleet bake is for Compute Engine",
            next_steps=[("fleet", "bake", "--provider", "gce", "--dry-run")],
        )

    def bake(self, spec: FleetSpec, image: str, progress: Progress) -> Image:
        """Create an image of the only host of `spec`, without its keys; the host is stopped.

        Args:
            spec: Fleet of the host, as `plan_image` returned it.
            image: Name of the image.
            progress: Called for each step.

        Raises:
            ProviderError: the image could not be created; the host may still run.
        """
        raise NotImplementedError  # a provider that plans images overrides it

    def doctor(self, workers: int = 1) -> Sequence[Finding]:  # noqa: ARG002 - for providers with quotas
        """Check all prerequisites of a new fleet with a number of workers; change nothing."""
        return ()

    def silent_zones(self) -> Sequence[str]:
        """Return the zones that did not answer the last list of instances or orphans: they may have others."""
        return ()

    def orphans(self) -> Sequence[Orphan]:
        """Return the resources of every fleet and every user; the caller knows which fleets exist.

        Raises:
            ProviderError: the provider does not answer.
        """
        return [
            Orphan(
                fleet=instance.fleet,
                owner="",
                user="",
                kind="instance",
                name=f"{instance.fleet}-{instance.name}",
                zone=instance.zone,
                created_at=instance.created_at,
                price_usd_h=instance.price_usd_h,
            )
            for instance in self.list()
        ]

    def delete_orphans(self, orphans: Sequence[Orphan], progress: Progress) -> Sequence[str]:
        """Delete `orphans`, and list again.

        Returns:
            Names of those that could not be deleted.

        Raises:
            ProviderError: a resource could not be deleted.
        """
        left = []
        for fleet in dict.fromkeys(orphan.fleet for orphan in orphans):

            def report(name: str, step: str, fleet: str = fleet) -> None:
                progress(f"{fleet}-{name}", step)

            left += [f"{fleet}-{name}" for name in self.delete_fleet(fleet, report)]
        return left
