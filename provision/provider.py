"""The contract of every provider, in the words that tests/contract checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from provision.model import FleetSpec, Host, Instance

Progress = Callable[[str, str], None]
"""Called with an instance's name and what is being done with it, ``("worker-0", "starting sshd")``."""


class ProviderError(Exception):
    """A provider could not do what it was asked.

    Attributes:
        kind: One of ``missing`` (a program or setting is not there), ``capacity``, ``quota``,
            ``credentials``, ``unreachable``, ``usage``.
        sentence: What happened, for the user.
        cause: Why, when known.
        next_step: What to type or change.
    """

    def __init__(self, kind: str, sentence: str, *, cause: str = "", next_step: str = "") -> None:
        super().__init__(sentence)
        self.kind = kind
        self.sentence = sentence
        self.cause = cause
        self.next_step = next_step


class Provider(Protocol):
    """Makes, lists and deletes the instances of fleets.

    Every method may be repeated after any crash, of this program or of the provider, and then repairs.

    - ``check`` touches nothing. It raises ProviderError while nothing has been started or paid for.
    - ``create`` is idempotent: names are deterministic, so instances already there under the fleet's name are
      left alone and only the missing ones are made. One that is STOPPED is
      started again, with its id, its host key and all that it holds; one that is STARTING was half made by a program
      that died, and is made anew. When it returns, ``list`` shows every name as RUNNING.
      When it raises (KeyboardInterrupt included), whatever it made is still shown by ``list``.
    - ``list`` is one call for all instances of a fleet; of all fleets where no name is given. An instance that
      was only half made, or whose process has died, is listed too (STARTING, STOPPED), so that ``delete``
      finds it.
    - ``host`` tells how SSH reaches a RUNNING instance, its host key from a source other than the connection.
    - ``delete`` returns when the instances, and every process and file that belongs to them, are gone. One that
      is already gone is success. ``list`` no longer shows what it deleted.
    """

    name: str

    def check(self, spec: FleetSpec) -> None:
        """Raise ProviderError if `spec` cannot be made here, before anything is touched."""

    def create(self, spec: FleetSpec, names: Sequence[str], progress: Progress) -> None:
        """Make the instances `names` of fleet `spec`.

        Raises:
            ProviderError: an instance could not be made.
        """

    def list(self, fleet: str | None = None) -> list[Instance]:
        """All instances of `fleet` (of every fleet, where it is None), ordered by fleet and index."""

    def host(self, instance: Instance) -> Host:
        """How SSH reaches `instance`.

        Raises:
            ProviderError: it does not run, or has not published its host key.
        """

    def delete(self, instances: Sequence[Instance], progress: Progress) -> None:
        """Delete `instances` and all that belongs to them; a missing one is success."""
