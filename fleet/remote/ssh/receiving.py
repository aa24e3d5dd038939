"""The amount of data that hosts may send before it is read."""

from __future__ import annotations

WINDOW = 16 * 1024 * 1024
"""Largest receive window in bytes: 16 MiB fill 1 Gb/s at a round-trip time of 100 ms."""

PACKET = 128 * 1024
"""Largest packet in bytes that hosts may send: four times the usual size, because each one takes time."""

_WINDOWS = 8 * 1024 * 1024  # of all hosts that a command reads at the same time
_LEAST_WINDOW = 64 * 1024


def share_window(hosts: int) -> int:
    """Return the receive window of each of several hosts, so that what waits for a slow reader stays bounded."""
    return WINDOW if hosts <= 1 else max(_LEAST_WINDOW, _WINDOWS // hosts)
