"""The patience with silent agents of an observer that may itself have been kept from running; pure."""

from __future__ import annotations

from typing import List, Tuple

LATE_S = 1.0
"""Delay of a periodic call from which on the observer counts as kept from running, in seconds."""


class Patience:
    """Decide which agents are lost, from the times at which something was received from them.

    If the observer did not run for a while, its computer was overloaded, or the process was stopped. The agents that
    share this computer did not run either, and what the others sent may not have been received yet: this time does
    not count as their silence.

    Args:
        timeout_s: Longest silence of an agent, in seconds.
        period_s: Time from one call of `tick` to the next, in seconds.
    """

    def __init__(self, timeout_s: float, period_s: float) -> None:
        self._timeout_s = timeout_s
        self._period_s = period_s
        self._ticked_at = -1.0
        self._pauses: List[Tuple[float, float]] = []  # begin and end, in order

    def tick(self, now: float) -> None:
        """Record that the observer runs; `now` is in seconds of a monotonic clock."""
        due = self._ticked_at + self._period_s
        if self._ticked_at >= 0 and now - due >= LATE_S:
            self._pauses.append((due, now))
        self._ticked_at = now
        limit = self.limit(now)
        self._pauses = [pause for pause in self._pauses if pause[1] > limit]

    def limit(self, now: float) -> float:
        """Return the time since which an agent must have been silent to be lost."""
        limit = now - self._timeout_s
        for begin, end in reversed(self._pauses):
            if end <= limit:
                break
            limit -= end - begin
        return limit
