"""Stop instances, start them again, and change the lifetime of stopped instances."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from provision.gce.account import Account, separate_id
from provision.gce.expiry import set_deadlines, set_items
from provision.gce.options import GceOptions
from provision.gce.rest.api import ApiError, Json
from provision.gce.rest.batch import Call
from provision.gce.rest.bodies.metadata import RESTARTS, items_of
from provision.gce.rest.bodies.scheduling import DISCARD_LOCAL_SSDS, FIXED_END, run_limit
from provision.gce.rest.resources import SCRATCH, our_name, zone_of
from provision.model import Price
from provision.provider import Progress


def stop(account: Account, resources: Sequence[Json], progress: Progress) -> list[Json]:
    """Stop instances, and wait until they are stopped; they keep their disks, and cost only these.

    Those that have stopped are stopped, too: an operation of an interrupted command may be about to start them. Other
    hosts do not start them either.

    Returns:
        The instances as they are then.

    Raises:
        ApiError: an instance does not stop.
    """
    resources = prevent_restarts(account, resources)  # by a host that stops later
    for resource in resources:
        if resource.get("status") != "TERMINATED":
            progress(our_name(resource), "stopping")
    account.change([stop_call(account, resource) for resource in resources], "stopping the instances")
    stopped = await_status(account, resources, "TERMINATED", "stopping the instances")
    for resource in stopped:
        progress(our_name(resource), "stopped")
    return stopped


def prevent_restarts(account: Account, resources: Sequence[Json]) -> Sequence[Json]:
    """Let no host start these instances again until a command does; return them as they are then.

    Raises:
        ApiError: a call failed.
    """
    unattended = [resource for resource in resources if RESTARTS in items_of(resource)]
    if not unattended:
        return resources
    set_items(account, unattended, {RESTARTS: ""}, "preventing restarts")
    return _listed(account, resources)


def stop_call(account: Account, resource: Json) -> Call:
    """Return the call that stops an instance; it must discard the content of Local SSDs, which a stop ends.

    Source: ``discardLocalSsd`` of instances.stop in the discovery document of the Compute Engine API.
    """
    discards = _has_local_ssds(resource)
    return account.call(resource, "stop", discardLocalSsd="true") if discards else account.call(resource, "stop")


def start_for(
    account: Account, cloud: GceOptions, resources: Sequence[Json], price: Price | None, progress: Progress
) -> None:
    """Start stopped instances of one fleet for a lifetime, with its intent on disk before the call.

    The time of ``maxRunDuration`` counts from each start, and a fixed end may be over, so the lifetime is set before.

    Args:
        account: The owner of the instances.
        cloud: Options with their new lifetime.
        resources: The instances; they are stopped.
        price: Price of each instance, which counts against ``--max-cost``; None if no limit is set.
        progress: Called for each instance.

    Raises:
        ApiError: the lifetime cannot be set, or an instance does not start.
    """
    if not resources:
        return
    lifetime_s = cloud.delete_after_s
    others = [resource for resource in resources if lifetime_s and _lifetime_s(resource) != lifetime_s]
    account.change([set_lifetime(account, resource, lifetime_s) for resource in others], "changing the deadline")
    for resource in resources:
        progress(our_name(resource), "starting again")
    set_deadlines(account, cloud, resources)  # otherwise an instance that stopped by itself would stop again
    fleet, intent = str(resources[0]["labels"]["fleet"]), _intent(resources, lifetime_s, price)
    with account.request(fleet, "start", **intent) as request:
        ids = [separate_id(request.id, name) for name in intent["names"]]
        calls = [account.call(each, "start", requestId=id_) for each, id_ in zip(resources, ids, strict=True)]
        account.change(calls, "starting the instances")
    for resource in resources:
        account.keys.pop(str(resource["id"]), None)


def _intent(resources: Sequence[Json], lifetime_s: int, price: Price | None) -> dict[str, Any]:
    """Return the description of a start for the journal, with what the instances cost if the cost is limited."""
    intent = {
        "zones": sorted({zone_of(resource) for resource in resources}),
        "names": [str(resource["name"]) for resource in resources],
        "separate": True,
        "workers": [our_name(resource) for resource in resources],
    }
    if price is None:
        return intent
    return {**intent, "lifetime_s": lifetime_s, "usd_h": price.usd_h, "stopped_usd_h": price.stopped_usd_h}


def stop_started(account: Account, resources: Sequence[Json], progress: Progress) -> None:
    """Stop those of some instances that run, after not all of them could be started; ignore errors of the API."""
    with contextlib.suppress(ApiError):
        stop(account, _listed(account, resources), progress)


def set_lifetime(account: Account, resource: Json, seconds: int) -> Call:
    """Return the call that lets Compute Engine delete an instance this many seconds after its next start.

    With ``--unattended``, the instance is stopped instead, which discards the content of Local SSDs; if its end is
    fixed, the time counts from now.
    """
    before: Json = resource.get("scheduling", {})
    limit = run_limit(seconds, account.cloud_time(), is_fixed=FIXED_END in before)
    body = {"instanceTerminationAction": "DELETE", **before, **limit}
    if body["instanceTerminationAction"] == "STOP" and _has_local_ssds(resource):
        body |= DISCARD_LOCAL_SSDS
    return account.call(resource, "setScheduling", body)


def await_status(account: Account, targets: Sequence[Json], status: str, activity: str) -> list[Json]:
    """Wait until all of `targets` have a status, and return them as they are then.

    Raises:
        ApiError: it takes too long, or the API does not answer; `activity` is in the message.
    """
    current: list[Json] = []

    def have_status() -> bool:
        current[:] = _listed(account, targets)
        return all(each.get("status") == status for each in current)

    account.api.until(have_status, activity)
    return current


def _listed(account: Account, targets: Sequence[Json]) -> list[Json]:
    """Return those of `targets` that exist, as the API lists them now.

    Raises:
        ApiError: the API does not answer.
    """
    ids = {str(resource["id"]) for resource in targets}
    fleets = sorted({str(resource["labels"]["fleet"]) for resource in targets})
    return [each for fleet in fleets for each in account.resources(fleet) if str(each["id"]) in ids]


def _has_local_ssds(resource: Json) -> bool:
    return any(disk.get("type") == SCRATCH for disk in resource.get("disks", ()))


def _lifetime_s(resource: Json) -> int:
    """Return the lifetime of an instance after each start, in seconds; 0: it has none, or a fixed end."""
    return int(resource.get("scheduling", {}).get("maxRunDuration", {}).get("seconds", 0))
