"""Options of the lifetime of instances."""

from __future__ import annotations

from provision.deferred import dataclass
from provision.gce.options.groups import GENERAL
from provision.options import DURATION, option


@dataclass(frozen=True)
class TimeOptions:
    """Options of the lifetime of instances.

    Attributes:
        max_duration_s: Time from the start of an instance until Compute Engine deletes it; 0: never.
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
