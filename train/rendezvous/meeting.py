"""The contract of a meeting: processes with ranks from 0 on, each of which tells all others something, in rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from train.errors import MeetingError

Value = dict[str, Any]
"""What a process tells in a round: an object of JSON."""

SLACK_S = 5.0
"""So much longer than rank 0 the others wait, so that it is the one who tells what is missing."""


FAILED_CODE = 14
"""Exit code of all where they do not come together."""


class AbandonedError(MeetingError):
    """Another process gave up, and has told its user why.

    Args:
        who: That process.
        message: What it says.
        code: Exit code with which it ends.
    """

    def __init__(self, who: str, message: str, code: int) -> None:
        super().__init__(f"{who} gave up: {message}")
        self.code = code


@dataclass(frozen=True)
class Party:
    """Who is expected.

    Attributes:
        rank: Of this process.
        size: How many there are; 0: only rank 0 knows.
        nodes: Node of each rank, where that is known; else empty.
    """

    rank: int
    size: int
    nodes: tuple[str, ...] = ()

    def name(self, rank: int) -> str:
        """What a process is called in messages: ``node2 (rank 1)``."""
        node = self.nodes[rank] if rank < len(self.nodes) else ""
        return f"{node} (rank {rank})" if node else f"rank {rank}"

    def names(self, ranks: Sequence[int]) -> str:
        """Some processes, the first few of many."""
        shown = [self.name(rank) for rank in ranks[:8]]
        if len(ranks) > len(shown):
            return f"{', '.join(shown)} and {len(ranks) - len(shown)} more"
        return ", ".join(shown)


def other_size(party: Party, size: int) -> MeetingError:
    """The error of a process that was told another number of processes than rank 0, which expects `size`."""
    return MeetingError(
        f"{party.name(0)} expects {size} processes, and {party.name(party.rank)} {party.size}",
        hint="start all of them with the same options",
    )


class Meeting(Protocol):
    """A meeting that this process has joined; all others have, too.

    Attributes:
        size: How many processes there are.
        secret: Known to all of them and to nobody else, hexadecimal; another one for each meeting.
        address: Own address by which another process was reached; empty: not known.
    """

    size: int
    secret: str
    address: str

    def gather(self, about: str, mine: Value, deadline_s: float) -> list[Value]:
        """Tell all others `mine`; what all told, in the order of their ranks.

        Args:
            about: Name of the round, another one for each.
            mine: What this process tells.
            deadline_s: Longest time for the last of them, in seconds.

        Raises:
            MeetingError: not all told something in time.
            AbandonedError: one gave up.
        """

    def give(self, about: str, mine: Value) -> None:
        """Tell rank 0 `mine`, and wait for nobody; what cannot be told is dropped."""

    def collect(self, about: str, deadline_s: float) -> dict[int, Value]:
        """As rank 0, what the others gave within `deadline_s` seconds, by rank."""

    def abandon(self, message: str, code: int) -> None:
        """Tell all others that this process gives up, and why."""

    def close(self) -> None:
        """Leave, with nothing left behind."""
