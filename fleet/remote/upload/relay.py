"""Decide which host receives large contents from which other host, so that they leave this computer once."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Sequence

from train.agent.protocol.records import Relay

_CHILDREN = 2
_LAST_PORT = 65_535


class RelayTree:
    """Trees of hosts that lack the same contents: the first receives them from here, each other one from its parent.

    A host is added when it reports what it lacks, so that no host waits for another one to report.
    """

    def __init__(self) -> None:
        self._secret = secrets.token_hex(32)
        self._hosts: dict[tuple[str, ...], list[tuple[str, int]]] = {}
        self._lock = threading.Lock()

    def join(self, objects: Sequence[str], address: str, port: int) -> Relay | None:
        """Add a host; return the request that makes it a part of the tree, or None if it cannot be one.

        Args:
            objects: Hashes of the contents that it lacks.
            address: Address at which the other hosts reach it.
            port: Port on which it passes contents on; 0: it does not.
        """
        if not address or not 0 < port <= _LAST_PORT:
            return None
        with self._lock:
            hosts = self._hosts.setdefault(tuple(objects), [])
            hosts.append((address, port))
            number = len(hosts) - 1
            return Relay(self._secret, *(hosts[(number - 1) // _CHILDREN] if number else ()))
