"""Compare the clocks of hosts, so that times of different hosts can be put into one order; pure.

A clock is read in a round trip: the host read it between two times of this computer, most likely in the middle, and
at most half of the round trip away from it. The shortest round trip is the most exact one (RFC 5905, section 8).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

_TOLERANCE_S = 0.1  # clocks that NTP keeps are better than what is measured here
_MOST_S = 10 * 365 * 86400.0


class Reading(NamedTuple):
    """A clock compared to that of this computer."""

    ahead_s: float
    uncertainty_s: float  # half of the round trip


def read_round_trip(sent: float, at: float, received: float) -> Reading:
    """Return the reading of a round trip.

    Args:
        sent: Time at which the request was sent, by the clock of this computer.
        at: Time of the host.
        received: Time at which the answer was received, by the clock of this computer.
    """
    return Reading(at - (sent + received) / 2, max(0.0, received - sent) / 2)


def most_exact(readings: Iterable[Reading]) -> Reading:
    """Return the reading with the shortest round trip."""
    return min(readings, key=lambda reading: reading.uncertainty_s)


def correction_s(reading: Reading, reference: Reading) -> float:
    """Return the seconds to add to a clock to get the time of a reference; 0 if they may be equal."""
    apart_s = reference.ahead_s - reading.ahead_s
    least_s = _TOLERANCE_S + reading.uncertainty_s + reference.uncertainty_s
    return round(apart_s, 6) if least_s < abs(apart_s) < _MOST_S else 0.0


def corrections(readings: Mapping[str, Reading]) -> dict[str, float]:
    """Return the seconds to add to the clock of each host.

    The reference is the clock in the middle; of two in the middle, the one that is nearer to this computer's.

    Args:
        readings: Of the hosts, by name.
    """
    ranked = sorted(readings.values())
    middle = ranked[(len(ranked) - 1) // 2 : len(ranked) // 2 + 1]
    reference = min(middle, key=lambda reading: abs(reading.ahead_s), default=None)
    return {host: correction_s(reading, reference) for host, reading in readings.items() if reference is not None}
