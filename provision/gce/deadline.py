"""Change the time at which Compute Engine deletes instances."""

from __future__ import annotations

from collections.abc import Sequence

from provision.gce.access.host_keys import await_keys
from provision.gce.account import Account
from provision.gce.catalog.machines import MAX_DURATION_MIN_S
from provision.gce.limit import current_budget, longer_than_paid, unknown_price
from provision.gce.options import GceOptions
from provision.gce.power import await_status, set_lifetime, start_for, stop
from provision.gce.rest.api import ApiError, Json
from provision.gce.rest.resources import zone_of
from provision.model import Price
from provision.provider import ErrorKind, Progress, ProviderError

_BAD_REQUEST = 400


def extend(account: Account, cloud: GceOptions, targets: Sequence[Json], seconds: int, progress: Progress) -> None:
    """Let Compute Engine delete the instances of a fleet `seconds` from now.

    According to the API reference, setScheduling requires a stopped instance. The instances are restarted only if the
    API rejects the call for running ones, or if the cost of the fleet is limited.

    Args:
        account: The owner of the fleet.
        cloud: Its options, resolved.
        targets: All of its instances.
        seconds: The new lifetime.
        progress: Called for each instance.

    Raises:
        ApiError: a call failed; the instances may be stopped then.
        ProviderError: the limit of the cost does not pay for this time, and nothing was changed; or an instance does
            not start again.
    """
    if cloud.flex_start:
        raise ProviderError(
            ErrorKind.USAGE,
            "the deletion time of Flex-start VMs cannot be changed: a stop gives up their capacity",
            hint="set --max-duration, up to 7 days, when the fleet is created",
        )
    if cloud.max_cost_usd:
        price = _price(account, cloud, targets)
        _paid_s(account, cloud, targets, seconds, price, ending=True)
        stop(account, targets, progress)
        seconds = _paid_s(account, cloud, targets, seconds, price)
        _start(account, targets, seconds, price, progress)
        return
    try:
        calls = [set_lifetime(account, resource, seconds) for resource in targets]
        account.change(calls, "changing the deadline")
    except ApiError as error:
        if error.status != _BAD_REQUEST:
            raise
        stop(account, targets, progress)
        _start(account, targets, seconds, None, progress)


def _price(account: Account, cloud: GceOptions, targets: Sequence[Json]) -> Price:
    price = account.prices.price(cloud, zone_of(targets[0]))
    if price is None:
        raise unknown_price(cloud)
    return price


def _paid_s(
    account: Account, cloud: GceOptions, targets: Sequence[Json], seconds: int, price: Price, *, ending: bool = False
) -> int:
    """Return the lifetime, at most `seconds`, that the limit of the cost pays for.

    Before the instances are stopped (`ending`), it must pay for all of it. The stop may take longer than expected.

    Raises:
        ProviderError: it does not pay for this time.
    """
    fleet = str(targets[0]["labels"]["fleet"])
    budget = current_budget(account, fleet, cloud, ending=ending)
    paid_s = int(budget.lifetime_s(price, len(targets), account.clock()))
    if paid_s < (seconds if ending else MAX_DURATION_MIN_S):
        raise longer_than_paid(budget, seconds, paid_s)
    return min(seconds, paid_s)


def _start(account: Account, targets: Sequence[Json], seconds: int, price: Price | None, progress: Progress) -> None:
    start_for(account, targets, seconds, price, progress)
    await_keys(account, await_status(account, targets, "RUNNING", "starting the instances"), progress)
