"""Keep the limits of the cost of a fleet, by the lifetime of its instances, and of the price of one instance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from provision.budget import CREATED, USEFUL_S, Budget, budget_of
from provision.gce.account import Account
from provision.gce.catalog.machines import describe
from provision.gce.catalog.prices import Prices
from provision.gce.options import GceOptions
from provision.gce.options.time import MAX_DURATION_MAX_S
from provision.gce.rest.api import Json
from provision.gce.rest.bodies.scheduling import FIXED_END
from provision.gce.rest.resources import our_name
from provision.ledger import entry
from provision.model import Command, Instance, InstanceState, Price
from provision.provider import ErrorKind, ProviderError
from provision.quantities import counted, format_money, format_span

_TYPING_S = 300.0
"""Time in which a suggested command still works: what it costs meanwhile is taken into account."""


def current_budget(account: Account, fleet: str, cloud: GceOptions, *, ending: bool = False) -> Budget:
    """List the instances of a fleet, and return what it costs at most; `ending` is that of `budget_of`."""
    account.observe(fleet)
    return budget_of(cloud.max_cost_usd, account.journal.intents(fleet), account.clock(), ending=ending)


def quoted_budget(account: Account, fleet: str, cloud: GceOptions, existing: Sequence[Json]) -> Budget:
    """Return what a fleet costs at most, given its existing instances, without queued ones; write nothing."""
    now = account.clock()
    entries = account.journal.intents(fleet)
    queued = {str(resource["name"]) for resource in existing if resource.get("status") == "PENDING"}
    listed = entry(map(_to_be_started, account.convert(existing)), now)
    return budget_of(cloud.max_cost_usd, [*entries, *_without(entries, queued), listed], now)


def _to_be_started(instance: Instance) -> Instance:
    """Return an instance as `fleet up` starts it again: until then, the other hosts do not."""
    is_stopped = instance.state is InstanceState.STOPPED and instance.restarts_until
    return replace(instance, restarts_until=None) if is_stopped else instance


def _without(entries: Sequence[Mapping[str, Any]], queued: set[str]) -> list[dict[str, Any]]:
    """Return the entries that end requests of queued instances, as if these had been deleted."""
    over = {each.get("request_id") for each in entries if each["intent"] == CREATED}
    requests = [each for each in entries if each.get("separate") and each["request_id"] not in over]
    return [
        {
            "intent": CREATED,
            "request_id": each["request_id"],
            "created": sum(name not in queued for name in each["names"]),
        }
        for each in requests
        if queued.intersection(each["names"])
    ]


def limited(
    budget: Budget, cloud: GceOptions, price: Price | None, count: int, now: float
) -> GceOptions | ProviderError:
    """Return `cloud` with the lifetime that the budget pays for, at most that of the options.

    Args:
        budget: What the fleet costs at most without the new instances.
        cloud: Options of the new instances, resolved.
        price: Price of one of them; None: unknown.
        count: Number of new instances.
        now: Seconds since the epoch.

    Returns:
        The options; or the reason why the limit of the cost does not allow the instances.
    """
    if not cloud.max_cost_usd:
        return cloud
    if price is None:
        return unknown_price(cloud, is_new=budget.is_new)
    if budget.unlimited:
        return without_deadline(budget.unlimited)
    longest_s = cloud.max_duration_s or MAX_DURATION_MAX_S
    paid_s = budget.lifetime_s(price, count, now)
    if paid_s < min(USEFUL_S, longest_s):
        return _too_little(budget, cloud, price, count, now, paid_s)
    return replace(cloud, max_duration_s=min(longest_s, int(paid_s)))


def unknown_price(cloud: GceOptions, *, is_new: bool) -> ProviderError:
    """Return the error that a price is unknown, so that the cost of a new or existing fleet cannot be limited."""
    message = f"the price of {describe(cloud)} is unknown, so --max-cost cannot limit it"
    if not is_new:
        return ProviderError(
            ErrorKind.USAGE,
            message,
            hint="--max-cost 0 removes the limit"
            + ("; then fleet extend sets the time" if cloud.is_extendable else ""),
            again={"--max-cost": "0"},
            next_steps=[("fleet", "down")],
        )
    return ProviderError(
        ErrorKind.USAGE,
        message,
        hint="select another machine or zone; or limit the time with --max-duration, and remove --max-cost",
        again={"--max-cost": None, "--max-duration": "4h"},
    )


def too_expensive(cloud: GceOptions, zones: Iterable[str], prices: Prices) -> ProviderError:
    """Return the error that each of `zones` has a price above the limit of the price, or an unknown one."""
    limit = f"--max-price {format_money(cloud.max_price_usd_h)}"
    priced = [(usd_h, zone) for zone in zones if (usd_h := prices.usd_h(cloud, zone)) is not None]
    if not priced:
        return ProviderError(
            ErrorKind.USAGE,
            f"the price of {describe(cloud)} is unknown, so {limit} excludes all zones",
            hint="select another machine or zone, or remove --max-price",
            again={"--max-price": None},
        )
    usd_h, zone = min(priced)
    return ProviderError(
        ErrorKind.USAGE,
        f"{describe(cloud)} costs {format_money(usd_h)}/h with its disk and address in the cheapest zone, {zone}; "
        f"the limit is {limit}",
        hint="raise the limit, or select a cheaper machine",
        again={"--max-price": _dollars(usd_h)},
    )


def check_ends(cloud: GceOptions, resources: Iterable[Json]) -> None:
    """Check that each start of instances leaves the end of their lifetime as it is, if the options require that.

    Raises:
        ProviderError: they were created without a limit of the cost.
    """
    movable = [our_name(each) for each in resources if FIXED_END not in each.get("scheduling", {})]
    if cloud.has_fixed_end and movable:
        raise without_deadline(movable)


def without_deadline(names: Iterable[str]) -> ProviderError:
    """Return the error that instances run without a deadline."""
    return ProviderError(
        ErrorKind.USAGE,
        f"the cost of {', '.join(names)} has no limit: no deletion time, or an unknown price",
        hint="--max-cost 0 removes the limit; or delete the fleet and create it again with this limit",
        again={"--max-cost": "0"},
        next_steps=[("fleet", "down")],
    )


def exceeded(account: Account, fleet: str, cloud: GceOptions) -> ProviderError | None:
    """Return the error that a fleet may cost more than its limit, according to its journal; None if not."""
    if not cloud.max_cost_usd:
        return None
    budget = budget_of(cloud.max_cost_usd, account.journal.intents(fleet), account.clock())
    if budget.unlimited:
        return without_deadline(budget.unlimited)
    if budget.left_usd >= 0:
        return None
    return ProviderError(
        ErrorKind.USAGE,
        f"the fleet costs up to {format_money(budget.used_usd)} until its instances are deleted, "
        f"more than --max-cost {format_money(budget.limit_usd)}",
        hint="fleet extend with a shorter time lowers it if the fleet was created with --max-cost",
        again={"--max-cost": _dollars(budget.used_usd)},
    )


def longer_than_paid(budget: Budget, price: Price, count: int, seconds: float, paid_s: float) -> ProviderError:
    """Return the error that the limit of the cost does not pay for an extension.

    Args:
        budget: What the fleet costs at most if its instances end now.
        price: Price of one of them.
        count: Number of instances.
        seconds: The lifetime that was requested, from now.
        paid_s: The lifetime that the limit pays for.
    """
    needed_usd = budget.used_usd + count * price.usd_h * (seconds + _TYPING_S) / 3600
    step: Command = ("fleet", "up", "--max-cost", _dollars(needed_usd))
    if paid_s > USEFUL_S + _TYPING_S:
        step = ("fleet", "extend", f"{int(paid_s - _TYPING_S) // 60}m")
    return ProviderError(
        ErrorKind.USAGE,
        f"--max-cost {format_money(budget.limit_usd)} does not pay for {format_span(seconds)} from now: "
        f"{format_money(budget.used_usd)} is used, and the rest pays for {format_span(max(0.0, paid_s))}",
        hint="extend it by less, or raise the limit with fleet up --max-cost",
        next_steps=[step],
    )


def _too_little(
    budget: Budget, cloud: GceOptions, price: Price, count: int, now: float, paid_s: float
) -> ProviderError:
    instances = f"{counted(count, 'instance')} ({describe(cloud)}) for {format_money(count * price.usd_h)}/h"
    if budget.end and budget.end - now < USEFUL_S:
        return ProviderError(
            ErrorKind.USAGE,
            f"the other instances are deleted in {format_span(budget.end - now)}: "
            "with --max-cost, new ones cannot live longer",
            hint="fleet extend moves the deletion time of all",
            next_steps=[("fleet", "extend", "4h")],
        )
    used = f", {format_money(budget.used_usd)} of which is used," if budget.used_usd else ""
    return ProviderError(
        ErrorKind.USAGE,
        f"--max-cost {format_money(budget.limit_usd)}{used} pays for {format_span(max(0.0, paid_s))} of {instances}",
        cause=f"at least {format_span(USEFUL_S)} are required",
        again={"--max-cost": _dollars(budget.used_usd + count * price.usd_h * 1.05)},
    )


def _dollars(usd: float) -> str:
    """Return an amount above `usd` as the value of an option, in whole cents."""
    return f"{int(usd * 100 + 1) / 100:.2f}"


def dearest(prices: Prices, cloud: GceOptions, zones: Sequence[str]) -> Price | None:
    """Return the highest price in some zones; None: one of them is unknown."""
    priced = [price for zone in zones if (price := prices.price(cloud, zone)) is not None]
    return max(priced, key=lambda price: price.usd_h) if len(priced) == len(zones) else None
