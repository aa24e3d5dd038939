"""Queue of Flex-start requests that wait for capacity."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.emulator.failures import Failure


@dataclass
class Ticket:
    """A request that waits for capacity.

    Attributes:
        instance: ID of its instance, which is PENDING.
        admit: Provisions the instance, and returns True, if there is capacity.
        end: Ends the request with a failure.
    """

    instance: str
    admit: Callable[[], bool]
    end: Callable[[Failure | None], None]


@dataclass
class Queue:
    """The waiting requests, oldest first."""

    tickets: list[Ticket] = field(default_factory=list)

    def add(self, ticket: Ticket) -> None:
        """Let a request wait, unless there is capacity now."""
        self.tickets.append(ticket)
        self.recheck()

    def recheck(self) -> None:
        """Provision the instances for which there is capacity."""
        for ticket in list(self.tickets):
            if ticket in self.tickets and ticket.admit():
                self.tickets.remove(ticket)

    def take(self, instance: str) -> Ticket | None:
        """Remove and return the request of an instance, if it waits."""
        ticket = next((ticket for ticket in self.tickets if ticket.instance == instance), None)
        if ticket is not None:
            self.tickets.remove(ticket)
        return ticket
