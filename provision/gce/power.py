"""Start stopped instances again, and change the lifetime of stopped instances."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from provision.budget import START
from provision.gce.account import Account
from provision.gce.expiry import stop_at
from provision.gce.rest.api import Json
from provision.gce.rest.batch import Call
from provision.gce.rest.resources import our_name
from provision.model import Price
from provision.provider import Progress


def start(account: Account, resources: Sequence[Json], progress: Progress) -> None:
    """Start stopped instances again; they keep their disks.

    Raises:
        ApiError: an instance does not start.
    """
    for resource in resources:
        progress(our_name(resource), "starting again")
    stop_at(account, resources, 0)  # otherwise an instance that stopped by itself would stop again
    account.change([account.call(resource, "start") for resource in resources], "starting the instances")
    for resource in resources:
        account.keys.pop(str(resource["id"]), None)


def start_for(
    account: Account, resources: Sequence[Json], lifetime_s: int, price: Price | None, progress: Progress
) -> None:
    """Start stopped instances of one fleet for a lifetime, with its intent on disk before the call.

    The time of ``maxRunDuration`` counts from each start, so the lifetime is set before.

    Args:
        account: The owner of the instances.
        resources: The instances; they are stopped.
        lifetime_s: Seconds until Compute Engine deletes them.
        price: Price of each instance, which counts against ``--max-cost``; None if no limit is set.
        progress: Called for each instance.

    Raises:
        ApiError: the lifetime cannot be set, or an instance does not start.
    """
    account.change([set_lifetime(account, resource, lifetime_s) for resource in resources], "changing the deadline")
    if price is not None and resources:
        account.journal.intend(
            str(resources[0]["labels"]["fleet"]),
            START,
            at=account.clock(),
            request_id=str(uuid.uuid4()),
            workers=[our_name(resource) for resource in resources],
            lifetime_s=lifetime_s,
            usd_h=price.usd_h,
            stopped_usd_h=price.stopped_usd_h,
        )
    start(account, resources, progress)


def set_lifetime(account: Account, resource: Json, seconds: int) -> Call:
    """Return the call that lets Compute Engine delete an instance this many seconds after its next start."""
    scheduling: dict[str, Any] = {
        **resource.get("scheduling", {}),
        "maxRunDuration": {"seconds": str(seconds)},
        "instanceTerminationAction": "DELETE",
    }
    return account.call(resource, "setScheduling", scheduling)
