"""Record of what is billed: the times in which instances ran, and in which disks existed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.emulator.blueprint import Blueprint

Json = dict[str, Any]


@dataclass
class Charge:
    """A time for which a resource is billed.

    Attributes:
        resource: ID of the instance or disk.
        start: Seconds since the epoch.
        blueprint: The instance; None for a disk.
        disk: The disk; None for an instance.
        end: Seconds since the epoch; 0: it is not over.
    """

    resource: str
    start: float
    blueprint: Blueprint | None = None
    disk: Json | None = None
    end: float = 0.0


@dataclass
class Charges:
    """Charges of a project, oldest first; none is removed before the emulator is reset."""

    all: list[Charge] = field(default_factory=list)

    def __iter__(self) -> Iterator[Charge]:
        return iter(self.all)

    def begin(self, charge: Charge) -> None:
        """Record that a resource is billed from now on."""
        self.all.append(charge)

    def end(self, resource: str, at: float) -> None:
        """Record that the billing of a resource ends."""
        for charge in self.all:
            if charge.resource == resource and not charge.end:
                charge.end = at
