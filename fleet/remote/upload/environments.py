"""Decide which host installs an environment, and from which host each other host copies it. No input or output."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from train.agent.protocol.records import EnvironmentSource, Refusal, Refused

COPIES_AT_ONCE = 2
"""Number of hosts to which one host sends its environment at the same time."""


class UselessError(Exception):
    """An environment cannot be installed on any host, as the errors of other hosts explain."""


class CopyPlan:
    """Sources of the copies of one environment; each host that has copied it can become another source.

    If the installer fails, another host takes its place, unless the packages are the cause: they are if pip reports
    it, or if two hosts fail for the same reason. If that host fails, too, or if a copy fails, no host waits for
    another one any more: all of them install the environment at the same time. The methods are called in the threads
    of the hosts; each host that gets None from `assign` must end with `offer`, `separate`, or `fail`.

    Args:
        missing: Hosts that lack the environment.
        installer: The host of them that installs it; empty: other hosts have it, and at least one will call `offer`
            or `separate`.
    """

    def __init__(self, missing: Sequence[str], installer: str) -> None:
        self.installer = installer
        self._waiting = len(missing)
        self._free: list[EnvironmentSource] = []  # a source once for each copy that it can send now
        self._dropped: set[EnvironmentSource] = set()
        self._failed: list[Refused | None] = []
        self._repairable: set[str] = set()
        self._is_vacant = False  # the next host becomes the installer
        self._is_separate = False
        self._has_ended = False
        self._changed = threading.Condition()

    def assign(self, host: str) -> EnvironmentSource | None:
        """Wait for a source for a host that lacks the environment; return None if the host installs it by itself.

        Raises:
            UselessError: it cannot be installed.
        """
        with self._changed:
            if host != self.installer:
                self._changed.wait_for(self._is_decided)
            self._waiting -= 1
            if self._free:
                return self._free.pop(0)
            if self._has_ended:
                raise UselessError
            self._is_vacant = False
            return None

    def _is_decided(self) -> bool:
        return bool(self._free) or self._is_vacant or self._is_separate or self._has_ended

    @property
    def needs_source(self) -> bool:
        """Return True if hosts wait, so that another source is useful."""
        return self._waiting > 0 and not self._is_separate

    def can_repair(self, host: str) -> bool:
        """Return True if pip failed on a host, which can copy the environment now."""
        return host in self._repairable and bool(self._free)

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
        self.separate()

    def separate(self) -> None:
        """Let all hosts that wait install the environment by themselves: a host does not become a source."""
        with self._changed:
            self._is_separate = True
            self._changed.notify_all()

    def fail(self, host: str, refused: Refused | None) -> bool:
        """Report that a host could not install the environment; return True if another host takes its place.

        Args:
            host: The host. If its pip failed, it counts as waiting: it can copy the environment later.
            refused: Its answer; None: it did not answer.
        """
        with self._changed:
            if _is_of_packages(refused, self._failed):
                self._has_ended = True
            elif self._failed:
                self._is_separate = True
            else:
                self._is_vacant = self.needs_source
            self._failed.append(refused)
            if self._is_vacant and refused is not None and refused.kind is Refusal.INSTALLATION:
                self._repairable.add(host)
                self._waiting += 1
            self._changed.notify_all()
            return self._is_vacant


def _is_of_packages(refused: Refused | None, earlier: Sequence[Refused | None]) -> bool:
    """Return True if other hosts would fail as well."""
    if refused is None or refused.kind is not Refusal.INSTALLATION:
        return refused is not None and refused.kind is Refusal.PACKAGES
    return any(other is not None and other.reason == refused.reason for other in earlier)
