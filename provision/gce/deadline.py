"""Change the end of the lifetime of instances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from provision.gce.access.host_keys import await_keys
from provision.gce.account import Account
from provision.gce.catalog.machines import MAX_DURATION_MIN_S, resolved
from provision.gce.expiry import set_deadlines
from provision.gce.limit import check_ends, current_budget, longer_than_paid, unknown_price
from provision.gce.options import GceOptions
from provision.gce.options.time import MAX_DURATION_MAX_S, POWER_OFF_S
from provision.gce.power import await_status, set_lifetime, start_for, stop
from provision.gce.rest.api import ApiError, Json
from provision.gce.rest.resources import zone_of
from provision.model import Instance, Price
from provision.provider import ErrorKind, Progress, ProviderError

_BAD_REQUEST = 400


def with_lifetime(cloud: GceOptions, seconds: float) -> GceOptions:
    """Return the options of a fleet with another lifetime.

    Raises:
        ProviderError: it is too short or too long, or cannot be changed.
    """
    if not cloud.is_extendable:
        raise ProviderError(
            ErrorKind.USAGE,
            "the deletion time of Flex-start VMs cannot be changed: a stop gives up their capacity",
            hint="set --max-duration, up to 7 days, when the fleet is created",
        )
    try:
        return resolved(replace(cloud, max_duration_s=max(1, round(seconds))))
    except ValueError as error:
        is_long = seconds > MAX_DURATION_MAX_S
        step = ("fleet", "extend", f"{MAX_DURATION_MAX_S // 86400}d") if is_long else ("fleet", "down")
        raise ProviderError(ErrorKind.USAGE, str(error), next_steps=[step]) from error


def check(account: Account, cloud: GceOptions, seconds: float, targets: Sequence[Json]) -> str:
    """Check whether instances can have a new lifetime, which begins now; return a warning about its effect, or "".

    If it is too long for Compute Engine, the limit of the cost is checked first for the longest one, which the
    error suggests.

    Args:
        account: The owner of the fleet.
        cloud: Its options.
        seconds: The new lifetime.
        targets: All of its instances.

    Raises:
        ProviderError: they cannot have it, or the limit of the cost does not pay for it.
    """
    if seconds > MAX_DURATION_MAX_S:
        _check(account, with_lifetime(cloud, MAX_DURATION_MAX_S), targets)
    return _check(account, with_lifetime(cloud, seconds), targets)


def _check(account: Account, cloud: GceOptions, targets: Sequence[Json]) -> str:
    """Check whether the limit of the cost pays for the lifetime of `cloud`, and return the result of `check`."""
    if not targets or not restarts(cloud, account.convert(targets), account.clock()):
        return ""
    if cloud.max_cost_usd:
        check_ends(cloud, targets)
        _paid_s(account, cloud, targets, _price(account, cloud, targets), ending=True)
    lost = f"; then {cloud.lost_at_stop} is lost" if cloud.lost_at_stop else ""
    return f"Compute Engine may have to restart the instances{lost}"


def restarts(cloud: GceOptions, instances: Sequence[Instance], now: float) -> bool:
    """Return whether instances may have to be restarted for a new lifetime, which begins now.

    They need not if they power off before Compute Engine deletes them.

    Args:
        cloud: Their options, with the new lifetime.
        instances: The instances.
        now: Seconds since the epoch.
    """
    latest = now + cloud.stop_after_s + POWER_OFF_S
    return not cloud.stop_after_s or any(instance.delete_at < latest for instance in instances)


def extend(account: Account, cloud: GceOptions, targets: Sequence[Json], progress: Progress) -> None:
    """Let a new lifetime of the instances of a fleet begin now.

    According to the API reference, the time at which Compute Engine deletes instances is set only while they are
    stopped. They are restarted only if this time is too early and the API rejects the call for running ones, or if
    the cost of the fleet is limited.

    Args:
        account: The owner of the fleet.
        cloud: Its options, resolved, with the new lifetime.
        targets: All of its instances.
        progress: Called for each instance.

    Raises:
        ApiError: a call failed; the instances may be stopped then.
        ProviderError: the limit of the cost does not pay for this time, and nothing was changed; or an instance does
            not start again.
    """
    if not _check(account, cloud, targets):
        set_deadlines(account, cloud, targets)
        return
    if cloud.max_cost_usd:
        price = _price(account, cloud, targets)
        targets = _stop(account, targets, progress)
        paid_s = _paid_s(account, cloud, targets, price)
        _start(account, replace(cloud, max_duration_s=paid_s), targets, price, progress)
        return
    try:
        calls = [set_lifetime(account, resource, cloud.delete_after_s) for resource in targets]
        account.change(calls, "changing the deadline")
        set_deadlines(account, cloud, targets)
    except ApiError as error:
        if error.status != _BAD_REQUEST:
            raise
        targets = _stop(account, targets, progress)
        _start(account, cloud, targets, None, progress)


def _stop(account: Account, targets: Sequence[Json], progress: Progress) -> Sequence[Json]:
    """Stop instances, and return those that exist then; a Spot VM may be preempted and deleted at the same time.

    Raises:
        ProviderError: none of them exists any more.
    """
    stopped = stop(account, targets, progress)
    if not stopped:
        message = "the instances were deleted while they were being stopped for their new lifetime"
        raise ProviderError(ErrorKind.UNREACHABLE, message, next_steps=[("fleet", "up")])
    return stopped


def _price(account: Account, cloud: GceOptions, targets: Sequence[Json]) -> Price:
    price = account.prices.price(cloud, zone_of(targets[0]))
    if price is None:
        raise unknown_price(cloud, is_new=False)
    return price


def _paid_s(
    account: Account, cloud: GceOptions, targets: Sequence[Json], price: Price, *, ending: bool = False
) -> int:
    """Return the lifetime, at most that of `cloud`, that the limit of the cost pays for.

    Before the instances are stopped (`ending`), it must pay for all of it. The stop may take longer than expected.

    Raises:
        ProviderError: it does not pay for this time.
    """
    fleet, seconds = str(targets[0]["labels"]["fleet"]), cloud.max_duration_s
    budget = current_budget(account, fleet, cloud, ending=ending)
    paid_s = int(budget.lifetime_s(price, len(targets), account.clock()))
    if paid_s < (seconds if ending else MAX_DURATION_MIN_S):
        raise longer_than_paid(budget, price, len(targets), seconds, paid_s)
    return min(seconds, paid_s)


def _start(
    account: Account, cloud: GceOptions, targets: Sequence[Json], price: Price | None, progress: Progress
) -> None:
    start_for(account, cloud, targets, price, progress)
    await_keys(account, await_status(account, targets, "RUNNING", "starting the instances"), progress)
