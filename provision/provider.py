"""The contract of every provider, in the words that tests/contract checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Protocol

from provision.model import Finding, FleetSpec, Host, Instance, Quote, SshAccess

Progress = Callable[[str, str], None]
"""Called with an instance's name and what is being done with it, ``("worker-0", "starting sshd")``; with the name of
a place for what concerns all that is made there, ``("us-central1-a", "has no capacity for 2 instances")``."""


class Journal(Protocol):
    """Where a provider writes what it is about to do, so that nothing is lost with the program."""

    def intend(self, fleet: str, intent: str, **details: Any) -> None:
        """Write an intent; on disk when this returns. One of a fleet that is not known here is not written."""

    def intents(self, fleet: str) -> list[dict[str, Any]]:
        """All intents of a fleet, oldest first, each as it was given; under ``intent`` its name."""


class ErrorKind(Enum):
    """Kinds of provider errors; each has an exit code of the program."""

    USAGE = "usage"
    MISSING = "missing"  # a program, a file, or a setting
    CREDENTIALS = "credentials"
    QUOTA = "quota"
    CAPACITY = "capacity"
    UNREACHABLE = "unreachable"


class ProviderError(Exception):
    """A provider could not do what it was asked.

    Attributes:
        kind: Kind of the error.
        message: What happened, for the user.
        cause: Why, when known.
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


class Provider(Protocol):
    """Makes, lists and deletes the instances of fleets.

    Every method may be repeated after any crash, of this program or of the provider, and then repairs.

    - ``check`` looks at the spec and at this computer alone. It raises ProviderError while nothing has been started
      or paid for.
    - ``quote`` asks the provider, and starts nothing: it raises ProviderError for what would fail later (credentials,
      quota, a machine that is not to be had anywhere).
    - ``create`` is idempotent: names are deterministic, so instances already there under the fleet's name are
      left alone and only the missing ones are made. One that is STOPPED is
      started again, with its id, its host key and all that it holds; one that is STARTING was half made by a program
      that died, and is made anew. When it returns, ``list`` shows every name as RUNNING.
      When it raises (KeyboardInterrupt included), whatever it made is still shown by ``list``.
    - ``list`` is one call for all instances of a fleet; of all fleets where no name is given. An instance that
      was only half made, or whose process has died, is listed too (STARTING, STOPPED), so that ``delete``
      finds it.
    - ``hosts`` tells how SSH reaches RUNNING instances, their host keys from a source other than the connection.
    - ``delete`` returns when the instances, and every process and file that belongs to them, are gone. One that
      is already gone is success. ``list`` no longer shows what it deleted.
    - ``delete_fleet`` deletes the instances of a fleet and all that was made for it besides, and looks again.

    A provider of hosts that exist already makes and ends nothing. ``create`` takes them into the fleet and ``delete``
    gives them back; they are RUNNING as long as they are in it, and keep their id for ever. What lies on them is
    removed before that, through SSH.
    """

    name: str

    def check(self, spec: FleetSpec) -> None:
        """Raise ProviderError if `spec` cannot be made here, before anything is touched."""

    def completed(self, spec: FleetSpec) -> FleetSpec:
        """Return `spec` with what only the provider knows of it, such as the GPUs of a machine type.

        Raises:
            ProviderError: it cannot be asked.
        """

    def quote(self, spec: FleetSpec, names: Sequence[str]) -> Quote:
        """What making the instances `names` of fleet `spec` would cost, and where they would stand.

        Raises:
            ProviderError: they cannot be made; nothing was touched.
        """

    def create(self, spec: FleetSpec, names: Sequence[str], progress: Progress) -> None:
        """Make the instances `names` of fleet `spec`, all in one place or none.

        Raises:
            ProviderError: an instance could not be made.
        """

    def hosts(self, spec: FleetSpec, instances: Sequence[Instance]) -> Sequence[Host]:
        """How SSH reaches `instances`, in their order.

        Raises:
            ProviderError: one does not run, or has not published its host key.
        """

    def open_ssh(self, spec: FleetSpec, *, make: bool = False) -> SshAccess:
        """Let this computer reach the instances of `spec` by SSH, if a firewall of the fleet's own decides that.

        Ranges of addresses that the user named are never widened.

        Args:
            spec: The fleet.
            make: Create what is missing and apply what `spec` says; only while the lock of the fleet is held.

        Returns:
            Who can reach the instances now; empty if nothing of the fleet's own decides that.

        Raises:
            ProviderError: the address of this computer is not known, or the rule cannot be changed.
        """

    def delete(self, instances: Sequence[Instance], progress: Progress) -> None:
        """Delete `instances` and all that belongs to them; a missing one is success."""

    def delete_fleet(self, fleet: str, progress: Progress) -> Sequence[str]:
        """Delete all that was ever made for `fleet`, and list again.

        Returns:
            Names of what is still there.
        """

    def extend(self, instances: Sequence[Instance], seconds: float, progress: Progress) -> None:
        """Let the provider delete `instances` so many seconds from now, and not before.

        Raises:
            ProviderError: it has no such deadline, or does not change it.
        """

    def stop_at(self, instances: Sequence[Instance], at: float) -> bool:
        """Let rented instances stop by themselves at a time, whatever becomes of this computer.

        A stopped instance costs no more than its disk, and ``create`` starts it again.

        Args:
            instances: Instances of one fleet.
            at: Seconds since the epoch; 0: never.

        Returns:
            Whether every instance will do so; False if this provider cannot.

        Raises:
            ProviderError: it cannot be set.
        """

    def fates(self, fleet: str, names: Sequence[str]) -> Mapping[str, str]:
        """Why instances are gone or stopped, each as a clause (``was preempted at 12:03:10``); those it knows."""

    def doctor(self) -> Sequence[Finding]:
        """All that this provider needs, and whether it is there; touches nothing."""

    def list(self, fleet: str | None = None) -> list[Instance]:
        """All instances of `fleet` (of every fleet, where it is None), ordered by fleet and index."""
