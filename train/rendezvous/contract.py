"""Contract of a rendezvous: processes with ranks from 0 that exchange values in rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from train.errors import RendezvousError

Value = dict[str, Any]
"""The value of a process in a round: a JSON object."""

SLACK_S = 5.0
"""Extra time that other ranks wait, so that rank 0 reports first who is missing."""


FAILED_CODE = 14
"""Exit code of all processes if the rendezvous fails."""


class AbandonedError(RendezvousError):
    """Another process gave up, and has reported the reason to its user.

    Args:
        process: That process.
        message: Its message.
        code: Exit code with which it ends.
    """

    def __init__(self, process: str, message: str, code: int) -> None:
        super().__init__(f"{process} gave up: {message}")
        self.code = code


class UnansweredError(RendezvousError):
    """No process at an address answers that knows the secret."""


@dataclass(frozen=True)
class Participants:
    """The expected processes.

    Attributes:
        rank: Rank of this process.
        size: Number of processes; 0: known only to rank 0.
        nodes: Node of each rank; empty if unknown.
    """

    rank: int
    size: int
    nodes: tuple[str, ...] = ()

    def name(self, rank: int) -> str:
        """Return the name of a process in messages: ``node2 (rank 1)``."""
        node = self.nodes[rank] if rank < len(self.nodes) else ""
        return f"{node} (rank {rank})" if node else f"rank {rank}"

    def names(self, ranks: Sequence[int]) -> str:
        """Return the names of some processes, at most the first eight."""
        shown = [self.name(rank) for rank in ranks[:8]]
        if len(ranks) > len(shown):
            return f"{', '.join(shown)} and {len(ranks) - len(shown)} more"
        return ", ".join(shown)


def other_size(participants: Participants, size: int) -> RendezvousError:
    """Return the error of a process whose number of processes differs from `size`, the number of rank 0."""
    return RendezvousError(
        f"{participants.name(0)} expects {size} processes, and {participants.name(participants.rank)} "
        f"{participants.size}",
        hint="start all of them with the same options",
    )
