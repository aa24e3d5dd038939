"""Quote a fleet before anything is rented: zones in order, prices, and quotas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from provision.budget import Budget
from provision.gce.access import bucket, iap, os_login, restarting, service_account
from provision.gce.access.bucket import Access
from provision.gce.access.firewall import open_sources
from provision.gce.account import Account
from provision.gce.catalog.buckets import is_far
from provision.gce.catalog.machines import describe, image_refusal
from provision.gce.catalog.reservations import split_path
from provision.gce.creation import offered, regions_to_try
from provision.gce.diagnosis.cases import Diagnosis
from provision.gce.limit import dearest, limited, quoted_budget
from provision.gce.options import GceOptions
from provision.gce.options.machines import LOCAL_SSD_PATH
from provision.gce.quota import Quotas
from provision.gce.rest import images
from provision.gce.rest.api import Json
from provision.gce.rest.offers import check_locations
from provision.gce.rest.resources import our_name, zone_of
from provision.gce.zones import Region
from provision.model import FleetSpec, Offer, Quote
from provision.provider import ErrorKind, ProviderError
from provision.quantities import format_money, format_span


def quote(account: Account, spec: FleetSpec, cloud: GceOptions, names: Sequence[str]) -> Quote:
    """Return zones in the order in which they will be tried, with prices, without regions whose quota is too small.

    Raises:
        ApiError: a call failed; for example, the project, network, or image does not exist.
        ProviderError: there are no credentials, or no zone is left.
    """
    count, api = len(names), account.api
    calls: list[Callable[[], Any]] = [
        api.get_project,
        api.regions,
        lambda: account.resources(spec.name),
        lambda: api.network(cloud.network),
        lambda: api.image(cloud.image),
        lambda: images.listed(api) if images.is_prepared(spec) else [],
        lambda: open_sources(account, spec, cloud),
        lambda: _tunnels(account, cloud) if count else [],
        lambda: bucket.examine(account, cloud) if count and cloud.bucket else None,
        lambda: account.update_prices(cloud),
        lambda: service_account.check_given(account, cloud) if count else None,
    ]
    project, region_resources, existing, _, base, baked, sources, tunnels, storage, *_ = api.together(*calls)
    if (refused := image_refusal(cloud, base)) is not None:
        raise refused
    if count == 0:
        return Quote(
            0,
            spot=cloud.spot,
            priced_at=account.prices.priced_at,
            delete_after_s=cloud.delete_after_s,
            stop_after_s=cloud.stop_after_s,
        )
    login = _login(account, cloud, project)
    image = _image(account, spec, cloud, project, base, baked)
    pinned = sorted({zone_of(resource) for resource in existing})
    zones_by_region = offered(account, spec, cloud, pinned, is_baked=bool(image.path))
    if not pinned:
        check_locations(cloud, region_resources, zones_by_region, api.project)
    again = _restarted(existing, names)
    priced = cloud if len(again) < count else replace(cloud, max_price_usd_h=0.0)  # disks are not left for a price
    regions = regions_to_try(account, priced, zones_by_region, pinned, count)
    left, short = _within_quota(cloud, count, regions, Quotas(api.project, project, region_resources))
    if not left:
        raise short[0]
    budget = quoted_budget(account, spec.name, cloud, existing)
    paid, unpaid = _within_budget(account, budget, cloud, count, left)
    if not paid:
        raise unpaid[0]
    offers = [_offer(account, cloud, zone) for region, _ in paid for zone in region.zones]
    return Quote(
        count,
        tuple(offers),
        spot=cloud.spot,
        priced_at=account.prices.priced_at,
        price_source=account.prices.source,
        delete_after_s=paid[0][1].delete_after_s,
        stop_after_s=paid[0][1].stop_after_s,
        notes=(
            *_idle(cloud),
            *_flex_start(cloud, paid[0][0].zones[0]),
            *_reservation(cloud),
            *_local_ssds(cloud),
            *_highest_price(account, cloud, count, regions),
            *dict.fromkeys(problem.message for problem in (*short, *unpaid)),
            *_restarts(again),
            *_unattended(account, cloud),
            *filter(None, [image.note]),
            *login,
            *_storage(storage, cloud, paid[0][0].name),
            *tunnels,
            *_access(cloud, sources),
        ),
        max_cost_usd=cloud.max_cost_usd,
        used_usd=budget.used_usd,
    )


def _offer(account: Account, cloud: GceOptions, zone: str) -> Offer:
    price = account.prices.price(cloud, zone)
    return Offer(zone, describe(cloud), price.usd_h if price else None, price)


def _highest_price(account: Account, cloud: GceOptions, count: int, regions: Sequence[Region]) -> list[str]:
    """Return a sentence with the highest price of all instances in a zone that may be tried, if the zones differ."""
    zones = [zone for region in regions for zone in region.zones]
    prices = {account.prices.usd_h(cloud, zone): zone for zone in zones}
    if len(prices) == 1:
        return []
    if None in prices:
        return ["the price in some of the zones is unknown; --max-price excludes them"]
    highest, zone = max((usd_h, zone) for usd_h, zone in prices.items() if usd_h is not None)
    return [f"highest price: {format_money(highest * count)}/h for all, in {zone}"]


def _storage(access: Access | None, cloud: GceOptions, region: str) -> list[str]:
    """Return sentences about the bucket of the fleet, if it has one.

    Args:
        access: The access of the instances to it; None: no bucket.
        cloud: Options of the fleet.
        region: The region that is tried first.
    """
    if access is None:
        return []
    notes = [f"{access.email} reads and writes {cloud.bucket}"]
    if access.doubt:
        doubt = f"it is not certain that {access.email} can read and write {cloud.bucket}: {access.doubt}"
        notes = [f"{doubt}; fleet doctor --bucket {cloud.bucket} shows the commands that grant them"]
    if is_far(access.location, region):
        notes.append(f"{cloud.bucket} is in {access.location}: its traffic with instances in {region} costs extra")
    return notes


def _reservation(cloud: GceOptions) -> list[str]:
    """Return a sentence about the price of a reservation, if one is used."""
    if not cloud.reservation:
        return []
    return [
        f"reservation {split_path(cloud.reservation)[1]!r} is billed in place of these prices until you delete it"
    ]


def _local_ssds(cloud: GceOptions) -> list[str]:
    """Return a sentence about the use of Local SSDs, if there are some."""
    if not cloud.has_local_ssds:
        return []
    return [f"Local SSDs are at {LOCAL_SSD_PATH} (FLEET_LOCAL_SSD); {cloud.lost_at_stop} is lost when a host stops"]


def _tunnels(account: Account, cloud: GceOptions) -> list[str]:
    """Return a sentence about the account that opens tunnels, if instances have no external address.

    Raises:
        ProviderError: it cannot open tunnels.
    """
    if cloud.external:
        return []
    email = iap.check(account)
    return [f"SSH goes through Identity-Aware Proxy, with gcloud's account{f' {email}' if email else ''}"]


def _idle(cloud: GceOptions) -> list[str]:
    """Return a sentence about the idle timeout, if there is one."""
    if not cloud.idle_timeout_s:
        return []
    return [f"each powers off after {format_span(cloud.idle_timeout_s)} without an active job and without a login"]


def _flex_start(cloud: GceOptions, zone: str) -> list[str]:
    """Return sentences about the price of Flex-start VMs, and their queue in the first zone."""
    if not cloud.flex_start:
        return []
    notes = ["Flex-start VMs cost at most the price on demand that is shown"]
    if cloud.wait_s:
        notes.append(
            f"without capacity, the request waits in {zone} for up to {format_span(cloud.wait_s)}; each instance is "
            "billed when it starts, while others may still wait"
        )
    return notes


def _login(account: Account, cloud: GceOptions, project: Json) -> list[str]:
    """Return a sentence about the account that logs in, if OS Login is used.

    Raises:
        ApiError: the OS Login API does not answer, for example because it is disabled.
        ProviderError: the account is unknown, or cannot log in.
    """
    if not os_login.is_required(cloud, project):
        return []
    return [f"OS Login is used: the fleet's key is imported into the profile of {os_login.check(account)}"]


def _image(
    account: Account, spec: FleetSpec, cloud: GceOptions, project: Json, base: Json, baked: Sequence[Json]
) -> images.Choice:
    """Return the image that fleet created with the requested content, if there is one."""
    if not baked:
        return images.Choice()
    of = images.content(spec, cloud, os_login.login_of(account, cloud, project))
    return images.choose(baked, base, of, cloud)


def _restarted(existing: Sequence[Json], names: Sequence[str]) -> list[str]:
    """Return which of `names` are stopped instances, which are started again."""
    stopped = {our_name(resource) for resource in existing if resource.get("status") == "TERMINATED"}
    return [name for name in names if name in stopped]


def _restarts(again: Sequence[str]) -> list[str]:
    """Return a sentence about the stopped instances that are started again."""
    disks = "disk" if len(again) == 1 else "disks"
    return [f"starts {', '.join(again)} again, with the same {disks}"] if again else []


def _unattended(account: Account, cloud: GceOptions) -> list[str]:
    """Return sentences about what ``--unattended`` does.

    Raises:
        ProviderError: the service account does not have the permissions.
    """
    if not cloud.unattended:
        return []
    result = restarting.examine(account, cloud)
    if result.doubt:
        raise ProviderError(
            ErrorKind.USAGE,
            f"--unattended: {result.note}",
            hint="create the role, and give it to the account",
            next_steps=restarting.grants(account, cloud),
        )
    return [
        result.note,
        "--unattended: in the end, hosts are stopped; only fleet down deletes them and their disks",
    ]


def _access(cloud: GceOptions, sources: Sequence[str]) -> list[str]:
    """Return a sentence with the addresses that can use SSH."""
    if not cloud.firewall:
        return [
            "no firewall rules are created (--no-firewall): existing rules must allow SSH and the fleet's traffic"
        ]
    if not cloud.external:
        return []
    addresses = ", ".join(sources)
    if cloud.ssh_from:
        return [f"SSH is open to {addresses}"]
    if len(sources) > 1:
        return [f"SSH is open to {addresses}: this computer has several addresses; --ssh-from limits it to one"]
    return [f"SSH is open to {addresses}, the address of this computer"]


def _within_budget(
    account: Account, budget: Budget, cloud: GceOptions, count: int, regions: Sequence[Region]
) -> tuple[list[tuple[Region, GceOptions]], list[ProviderError]]:
    """Return the regions in which the limit of the cost pays for the instances, and the problems of the others.

    Each region is returned with the options of instances there, which have the lifetime that is paid for.
    """
    paid: list[tuple[Region, GceOptions]] = []
    problems: list[ProviderError] = []
    for region in regions:
        price = dearest(account.prices, cloud, region.zones)
        allowed = limited(budget, cloud, price, count, account.clock())
        if isinstance(allowed, ProviderError):
            problems.append(allowed)
        else:
            paid.append((region, allowed))
    return paid, problems


def _within_quota(
    cloud: GceOptions, count: int, regions: Sequence[Region], quotas: Quotas
) -> tuple[list[Region], list[Diagnosis]]:
    """Return the regions whose quotas are large enough, and the problems of the others."""
    problems_of = {region: quotas.problems(cloud, count, region.name) for region in regions}
    left = [region for region, shortages in problems_of.items() if not shortages]
    return left, [shortage for shortages in problems_of.values() for shortage in shortages]
