"""Quote a fleet: the zones in which it fits the quotas and limits, in order, and their prices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from provision.budget import Budget
from provision.gce.access.subnetworks import check_subnetwork
from provision.gce.account import Account
from provision.gce.catalog.machines import describe
from provision.gce.catalog.prices import Prices
from provision.gce.creation import offered, regions_to_try
from provision.gce.limit import check_ends, dearest, limited, quoted_budget
from provision.gce.options import GceOptions
from provision.gce.quota import Quotas
from provision.gce.quoting.facts import Facts, read_facts
from provision.gce.quoting.notes import describe_highest_price, describe_hosts, describe_options
from provision.gce.rest.api import Json
from provision.gce.rest.offers import check_locations
from provision.gce.rest.resources import our_name, zone_of
from provision.gce.zones import Region
from provision.model import FleetSpec, Offer, Quote
from provision.provider import ProviderError

Paid = tuple[Region, GceOptions]
"""A region, and the options of instances there, with the lifetime that the limit of the cost pays for."""


def quote_fleet(account: Account, spec: FleetSpec, cloud: GceOptions, names: Sequence[str]) -> Quote:
    """Return zones in the order in which they will be tried, with prices, without regions whose quota is too small.

    Raises:
        ApiError: a call failed; for example, the project, network, or image does not exist.
        ProviderError: there are no credentials, or no zone is left.
    """
    facts, count = read_facts(account, spec, cloud, len(names)), len(names)
    if not names:
        return _quote(account.prices, cloud, 0)
    stopped = _to_be_restarted(facts.existing, names)
    check_ends(cloud, stopped)
    restarted = [our_name(resource) for resource in stopped]
    regions = _regions(account, spec, cloud, facts, count, len(restarted))
    left, short = _within_quota(cloud, count, regions, Quotas(account.api.project, facts.project, facts.regions))
    budget = quoted_budget(account, spec.name, cloud, facts.existing)
    paid, unpaid = _within_budget(account.prices, budget, cloud, count, left, account.clock())
    first, options = paid[0]
    zones = [zone for region, _ in paid for zone in region.zones]
    is_exact = all(account.prices.is_exact(cloud, zone) for zone in zones)
    return replace(
        _quote(account.prices, options, count),
        offers=tuple(_offer(account.prices, cloud, zone) for zone in zones),
        flex_start=cloud.flex_start and is_exact,
        notes=(
            *describe_options(cloud, zones[0], is_exact=is_exact),
            *describe_highest_price(account.prices, cloud, count, regions),
            *dict.fromkeys(problem.message for problem in (*short, *unpaid)),
            *describe_hosts(facts, cloud, restarted, first.name),
        ),
        max_cost_usd=cloud.max_cost_usd,
        used_usd=budget.used_usd,
    )


def _quote(prices: Prices, cloud: GceOptions, count: int) -> Quote:
    """Return a quote without zones."""
    return Quote(
        count,
        spot=cloud.spot,
        priced_at=prices.priced_at,
        price_source=prices.source,
        delete_after_s=cloud.delete_after_s,
        stop_after_s=cloud.stop_after_s,
    )


def _offer(prices: Prices, cloud: GceOptions, zone: str) -> Offer:
    price = prices.price(cloud, zone)
    return Offer(zone, describe(cloud), price.usd_h if price else None, price)


def _to_be_restarted(existing: Sequence[Json], names: Sequence[str]) -> list[Json]:
    """Return the stopped instances that are started again, in the order of their `names`."""
    stopped = {our_name(resource): resource for resource in existing if resource.get("status") == "TERMINATED"}
    return [stopped[name] for name in names if name in stopped]


def _regions(
    account: Account, spec: FleetSpec, cloud: GceOptions, facts: Facts, count: int, restarted: int
) -> list[Region]:
    """Return the regions and zones that are tried; if all instances are only started again, at any price.

    Raises:
        ApiError: a call failed.
        ProviderError: there are none.
    """
    pinned = sorted({zone_of(resource) for resource in facts.existing})
    zones_by_region = offered(account, spec, cloud, pinned, is_baked=bool(facts.image.path))
    if not pinned:
        check_locations(cloud, facts.regions, zones_by_region, account.api.project)
        check_subnetwork(facts.network, cloud, account.api.project)
    priced = cloud if restarted < count else replace(cloud, max_price_usd_h=0.0)  # disks are not left for a price
    return regions_to_try(account, priced, zones_by_region, pinned, count)


def _within_quota(
    cloud: GceOptions, count: int, regions: Sequence[Region], quotas: Quotas
) -> tuple[list[Region], list[ProviderError]]:
    """Return the regions whose quotas are large enough, and the problems of the others.

    Raises:
        ProviderError: there are none.
    """
    problems_of = {region: quotas.problems(cloud, count, region.name) for region in regions}
    left = [region for region, shortages in problems_of.items() if not shortages]
    problems: list[ProviderError] = [shortage for shortages in problems_of.values() for shortage in shortages]
    if not left:
        raise problems[0]
    return left, problems


def _within_budget(
    prices: Prices, budget: Budget, cloud: GceOptions, count: int, regions: Sequence[Region], now: float
) -> tuple[list[Paid], list[ProviderError]]:
    """Return the regions in which the limit of the cost pays for the instances, and the problems of the others.

    Raises:
        ProviderError: there are none.
    """
    answers = [
        (region, limited(budget, cloud, dearest(prices, cloud, region.zones), count, now)) for region in regions
    ]
    paid = [(region, answer) for region, answer in answers if isinstance(answer, GceOptions)]
    problems = [answer for _, answer in answers if isinstance(answer, ProviderError)]
    if not paid:
        raise problems[0]
    return paid, problems
