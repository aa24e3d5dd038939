"""Decide which host installs an environment, and from which host each other host copies it. No input or output."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from train.agent.protocol.records import EnvironmentSource

COPIES_AT_ONCE = 2
"""Number of hosts to which one host sends its environment at the same time."""


class CopyPlan:
    """Sources of the copies of one environment; each host that has copied it can become another source.

    After the first failure, no host waits for another one any more: if the hosts cannot reach each other, or if none
    of them can install the environment, all of them install it at the same time. The methods are called in the
    threads of the hosts; each host that gets None from `assign` must end with `offer` or `fail`.

    Args:
        missing: Hosts that lack the environment.
        installer: The host of them that installs it; empty: other hosts have it, and at least one will call `offer`
            or `fail`.
    """

    def __init__(self, missing: Sequence[str], installer: str) -> None:
        self.installer = installer
        self._waiting = len(missing)
        self._free: list[EnvironmentSource] = []  # a source once for each copy that it can send now
        self._dropped: set[EnvironmentSource] = set()
        self._has_failed = False
        self._changed = threading.Condition()

    def assign(self, host: str) -> EnvironmentSource | None:
        """Wait for a source for a host that lacks the environment; return None if the host installs it by itself."""
        with self._changed:
            if host != self.installer:
                self._changed.wait_for(lambda: self._free or self._has_failed)
            self._waiting -= 1
            return self._free.pop(0) if self._free else None

    @property
    def needs_source(self) -> bool:
        """Return True if hosts wait, so that another source is useful."""
        return self._waiting > 0 and not self._has_failed

    def offer(self, source: EnvironmentSource) -> None:
        """Add a source."""
        with self._changed:
            self._free += [source] * COPIES_AT_ONCE
            self._changed.notify_all()

    def release(self, source: EnvironmentSource) -> None:
        """End a copy from a source."""
        with self._changed:
            if source not in self._dropped:
                self._free.append(source)
            self._changed.notify_all()

    def drop(self, source: EnvironmentSource) -> None:
        """End a copy from a source that did not send the environment, or sent it damaged; do not use it again."""
        with self._changed:
            self._dropped.add(source)
            self._free = [other for other in self._free if other != source]
            self._has_failed = True
            self._changed.notify_all()

    def fail(self) -> None:
        """Let all hosts that wait install the environment by themselves: a host does not become a source."""
        with self._changed:
            self._has_failed = True
            self._changed.notify_all()
