"""Words that messages of the agent and of the client share."""

from __future__ import annotations

import signal
from typing import Sequence


def join_names(names: Sequence[str]) -> str:
    """Join names: ``a``, ``a and b``, ``a, b and c``; empty if there are none."""
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def signal_name(number: int) -> str:
    """Return ``SIGKILL`` for 9; ``signal 99`` for a number that this system does not define."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def endpoint(address: str, port: int) -> str:
    """Return ``address:port``, with an IPv6 address in brackets."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
