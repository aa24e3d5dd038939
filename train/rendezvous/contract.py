"""Contract of a rendezvous: processes with ranks from 0 that exchange values in rounds, and find their addresses."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from train.agent.host.ports import address_on_route
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


LOOPBACK = "127.0.0.1"
"""Address if all processes are on one computer."""


def address_of_node(node: str, nodes: Sequence[str]) -> str:
    """Return the address from which this node reaches the first of the other nodes; empty if none can be resolved.

    The node's own name does not give the address: many nodes resolve it to a loopback address.

    Args:
        node: Name of this node.
        nodes: Names or addresses of all nodes; those equal to `node` are this node.
    """
    for name in nodes:
        try:
            targets = socket.getaddrinfo(name, 9, type=socket.SOCK_DGRAM) if name != node else []
        except OSError:
            continue
        for family, _, _, _, target in targets:
            address = address_on_route(family, target)
            if address and not ipaddress.ip_address(address).is_loopback:
                return address
    return ""
