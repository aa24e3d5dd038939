"""Options of the lifetime of instances."""

from __future__ import annotations

from provision.deferred import dataclass
from provision.gce.options.groups import GENERAL
from provision.options import DURATION, MONEY, option


@dataclass(frozen=True)
class TimeOptions:
    """Options of the lifetime of instances.

    Attributes:
        max_duration_s: Time from the start of an instance until Compute Engine deletes it; 0: never.
        max_cost_usd: Limit of the cost of the fleet, which shortens this time; 0: none.
    """

    max_duration_s: int = option(
        8 * 3600,
        DURATION,
        "max-duration",
        metavar="TIME",
        help="Maximum lifetime, enforced by Compute Engine; 0 disables it.",
        label="maximum lifetime",
        group=GENERAL,
    )
    max_cost_usd: float = option(
        0.0,
        MONEY,
        "max-cost",
        metavar="USD",
        help="Limit of the fleet's cost: Compute Engine deletes the instances before it is reached; 0 disables it.",
        label="limit of the cost",
        group=GENERAL,
        fixed=False,
    )
