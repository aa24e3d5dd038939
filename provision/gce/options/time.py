"""Options of the lifetime of instances."""

from __future__ import annotations

from dataclasses import dataclass

from provision.gce.options.groups import MONEY_AND_TIME
from provision.options import DURATION, MONEY, option

STOP_AT = "fleet-stop-at"
"""Metadata item with the time at which an instance powers off by itself, in seconds since the epoch; 0: never."""

END_AT = "fleet-end-at"
"""Metadata item with the time by which all jobs must have ended, in seconds since the epoch; 0: never."""

BACKSTOP_S = 7 * 24 * 3600
"""Time after which Compute Engine deletes instances that did not power off. With a longer one, GPUs may not use the
quota for preemptible instances: https://cloud.google.com/compute/docs/instances/limit-vm-runtime."""

MAX_DURATION_MAX_S = 120 * 24 * 3600
"""Longest such time: https://cloud.google.com/compute/docs/instances/limit-vm-runtime."""

IDLE_TIMEOUT = "fleet-idle-timeout"
"""Metadata item with the time in seconds without a job and a login after which an instance powers off."""

IDLE_TIMEOUT_MIN_S = 300

POWER_OFF_S = 600
"""Shortest time between the power-off of instances, or the end of their jobs, and their deletion."""


@dataclass(frozen=True)
class TimeOptions:
    """Options of the lifetime of instances.

    Attributes:
        max_duration_s: Time from the start of an instance until it powers off, or is deleted; 0: never.
        max_cost_usd: Limit of the cost of the fleet, which shortens this time; 0: none.
        idle_timeout_s: Time without a job and without a login after which an instance powers off, and time without
            activity after which a job is ended; 0: never.
        is_temporary: The instances are deleted after this time and do not power off; not an option.
    """

    max_duration_s: int = option(
        8 * 3600,
        DURATION,
        "max-duration",
        metavar="TIME",
        help="Maximum lifetime: after that, jobs end with a checkpoint, and the instances power off; 0 disables it.",
        label="maximum lifetime",
        group=MONEY_AND_TIME,
    )
    max_cost_usd: float = option(
        0.0,
        MONEY,
        "max-cost",
        metavar="USD",
        help="Limit of the fleet's cost: Compute Engine deletes the instances before it is reached; 0 disables it.",
        default="no limit",
        label="limit of the cost",
        group=MONEY_AND_TIME,
        fixed=False,
    )
    idle_timeout_s: int = option(
        0,
        DURATION,
        "idle-timeout",
        metavar="TIME",
        help="Power instances off after this time without an active job and without a login; 0 disables it.",
        default="disabled",
        label="idle timeout",
        group=MONEY_AND_TIME,
    )
    is_temporary: bool = False
