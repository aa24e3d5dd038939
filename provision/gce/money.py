"""Quote a fleet before it is paid, and keep the limits of its cost and of the price of an instance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from google.cloud import compute_v1

from provision.budget import CREATED, USEFUL_S, Budget, budget_of
from provision.gce import images
from provision.gce.access import buckets, iap, os_login, service_account
from provision.gce.access.buckets import Access, is_far
from provision.gce.access.firewall import open_sources
from provision.gce.access.networks import check_subnetwork
from provision.gce.access.service_account import Restarting
from provision.gce.account import Account
from provision.gce.api.resources import our_name, zone_of
from provision.gce.catalog.machines import describe, image_refusal
from provision.gce.catalog.prices import Prices, dollars
from provision.gce.options import LOCAL_SSD_PATH, MAX_DURATION_MAX_S, GceOptions
from provision.gce.quota import Quotas
from provision.gce.zones import Region, check_locations, offered, regions_to_try, split_path
from provision.ledger import entry
from provision.model import Command, FleetSpec, Instance, InstanceState, Offer, Price, Quote
from provision.provider import ErrorKind, ProviderError
from provision.quantities import counted, format_money, format_span

_TYPING_S = 300.0
"""Time in which a suggested command still works: what it costs meanwhile is taken into account."""


def current_budget(account: Account, fleet: str, cloud: GceOptions, *, ending: bool = False) -> Budget:
    """List the instances of a fleet, and return what it costs at most; `ending` is that of `budget_of`."""
    account.observe(fleet)
    return budget_of(cloud.max_cost_usd, account.journal.intents(fleet), account.clock(), ending=ending)


def quoted_budget(account: Account, fleet: str, cloud: GceOptions, existing: Sequence[compute_v1.Instance]) -> Budget:
    """Return what a fleet costs at most, given its existing instances, without queued ones; write nothing."""
    now = account.clock()
    entries = account.journal.intents(fleet)
    queued = {resource.name for resource in existing if resource.status == "PENDING"}
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
        hint = "--max-cost 0 removes the limit" + ("; then fleet extend sets the time" if cloud.is_extendable else "")
        return ProviderError(
            ErrorKind.USAGE, message, hint=hint, again={"--max-cost": "0"}, next_steps=[("fleet", "down")]
        )
    hint = "select another machine or zone; or limit the time with --max-duration, and remove --max-cost"
    return ProviderError(ErrorKind.USAGE, message, hint=hint, again={"--max-cost": None, "--max-duration": "4h"})


def check_ends(cloud: GceOptions, resources: Iterable[compute_v1.Instance]) -> None:
    """Check that each start of instances leaves the end of their lifetime as it is, if the options require that.

    Raises:
        ProviderError: they were created without a limit of the cost.
    """
    movable = [our_name(each) for each in resources if not each.scheduling.termination_time]
    if cloud.has_fixed_end and movable:
        raise without_deadline(movable)


def without_deadline(names: Iterable[str]) -> ProviderError:
    """Return the error that instances run without a deadline."""
    message = f"the cost of {', '.join(names)} has no limit: no deletion time, or an unknown price"
    hint = "--max-cost 0 removes the limit; or delete the fleet and create it again with this limit"
    return ProviderError(
        ErrorKind.USAGE, message, hint=hint, again={"--max-cost": "0"}, next_steps=[("fleet", "down")]
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
        again={"--max-cost": dollars(budget.used_usd)},
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
    step: Command = ("fleet", "up", "--max-cost", dollars(needed_usd))
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
        again={"--max-cost": dollars(budget.used_usd + count * price.usd_h * 1.05)},
    )


def dearest(prices: Prices, cloud: GceOptions, zones: Sequence[str]) -> Price | None:
    """Return the highest price in some zones; None: one of them is unknown."""
    priced = [price for zone in zones if (price := prices.price(cloud, zone)) is not None]
    return max(priced, key=lambda price: price.usd_h) if len(priced) == len(zones) else None


@dataclass(frozen=True)
class Facts:
    """State of a project as far as a quote depends on it.

    Attributes:
        project: The project.
        regions: Its regions, with their quotas.
        existing: The instances of the fleet.
        network: Its network.
        sources: Ranges of addresses that can use SSH.
        image: The image of prepared hosts from which new instances boot, if there is one.
        login: Account that logs in; empty: OS Login is not used.
        tunnels: Account that opens tunnels, empty if it is unknown; None: there are none.
        storage: Access of the instances to the bucket; None: the fleet has no bucket.
        restarting: Permissions with which hosts start each other again; None: they do not.
    """

    project: compute_v1.Project
    regions: Sequence[compute_v1.Region]
    existing: Sequence[compute_v1.Instance]
    network: compute_v1.Network
    sources: Sequence[str] = ()
    image: images.Choice = field(default_factory=images.Choice)
    login: str = ""
    tunnels: str | None = None
    storage: Access | None = None
    restarting: Restarting | None = None


def read_facts(account: Account, spec: FleetSpec, cloud: GceOptions, count: int) -> Facts:
    """Read the state of the project, and the price list, for `count` new instances; 0: only of the existing ones.

    Raises:
        ApiError: a call failed; for example, the project, network, or image does not exist.
        ProviderError: there are no credentials, the image is unsuitable, or a permission is missing.
    """
    api = account.api
    calls: list[Callable[[], Any]] = [
        api.get_project,
        api.regions,
        lambda: account.resources(spec.name),
        lambda: api.image(cloud.image),
        lambda: images.listed(api) if images.is_prepared(spec) else [],
        lambda: open_sources(account, spec, cloud),
        lambda: iap.check(account) if count and not cloud.external else None,
        lambda: buckets.examine(account, cloud) if count and cloud.bucket else None,
        lambda: service_account.check_given(account, cloud) if count else None,
        lambda: _restarting(account, cloud) if count and cloud.unattended else None,
        lambda: api.network(cloud.network),
        lambda: account.update_prices(cloud),
    ]
    project, regions, existing, base, baked, sources, tunnels, storage, _, restarts, network, _ = api.together(*calls)
    if (refused := image_refusal(cloud, base)) is not None:
        raise refused
    if count == 0:
        return Facts(project, regions, existing, network)
    login = os_login.check(account) if os_login.is_required(cloud, project) else ""
    image = _image(account, spec, cloud, project, base, baked)
    return Facts(project, regions, existing, network, sources, image, login, tunnels, storage, restarts)


def _image(
    account: Account,
    spec: FleetSpec,
    cloud: GceOptions,
    project: compute_v1.Project,
    base: compute_v1.Image,
    baked: Sequence[compute_v1.Image],
) -> images.Choice:
    """Return the image that fleet created with the requested content, if there is one."""
    if not baked:
        return images.Choice()
    of = images.content(spec, cloud, os_login.login_of(account, cloud, project))
    return images.choose(baked, base, of, cloud)


def _restarting(account: Account, cloud: GceOptions) -> Restarting:
    """Return the permissions of the service account with which hosts start each other again.

    Raises:
        ProviderError: it does not have those that are required.
    """
    result = service_account.examine(account, cloud)
    if result.doubt:
        message = f"--unattended: {result.note}"
        hint = "create the role, and give it to the account"
        raise ProviderError(ErrorKind.USAGE, message, hint=hint, next_steps=service_account.grants(account, cloud))
    return result


_DISKS = "--max-cost does not limit the cost of disks of stopped hosts, which fleet down deletes"


def describe_options(cloud: GceOptions, zone: str, *, is_exact: bool) -> list[str]:
    """Return sentences about options that change the price or the end of instances.

    Args:
        cloud: Options of the instances, resolved.
        zone: The zone that is tried first.
        is_exact: The prices are those of the provisioning model.
    """
    idle = f"each powers off after {format_span(cloud.idle_timeout_s)} without an active job and without a login"
    wait = (
        f"without capacity, the request waits in {zone} for up to {format_span(cloud.wait_s)}; each instance is "
        "billed when it starts, while others may still wait"
    )
    reservation = f"reservation {split_path(cloud.reservation)[1]!r} is billed in place of these prices"
    ssds = f"Local SSDs are at {LOCAL_SSD_PATH} (FLEET_LOCAL_SSD); {cloud.lost_at_stop} is lost when a host stops"
    is_limited = cloud.max_cost_usd and not cloud.unattended
    rows = (
        (cloud.idle_timeout_s, f"{idle}; {_DISKS}" if is_limited else idle),
        (cloud.flex_start and not is_exact, "Flex-start VMs cost at most the price on demand that is shown"),
        (cloud.flex_start and cloud.wait_s, wait),
        (cloud.reservation, f"{reservation} until you delete it"),
        (cloud.has_local_ssds, ssds),
    )
    return [note for applies, note in rows if applies]


def describe_highest_price(prices: Prices, cloud: GceOptions, count: int, regions: Sequence[Region]) -> list[str]:
    """Return a sentence with the highest price of all instances in a zone that may be tried, if the zones differ."""
    zone_of = {prices.usd_h(cloud, zone): zone for region in regions for zone in region.zones}
    if len(zone_of) == 1:
        return []
    if None in zone_of:
        return ["the price in some of the zones is unknown; --max-price excludes them"]
    highest, zone = max((usd_h, zone) for usd_h, zone in zone_of.items() if usd_h is not None)
    return [f"highest price: {format_money(highest * count)}/h for all, in {zone}"]


def describe_hosts(facts: Facts, cloud: GceOptions, restarted: Sequence[str], region: str) -> list[str]:
    """Return sentences about what hosts boot from, who reaches them, and what they may do.

    Args:
        facts: State of the project.
        cloud: Options of the instances, resolved.
        restarted: Names of the stopped instances that are started again.
        region: The region that is tried first.
    """
    disks = "disk" if len(restarted) == 1 else "disks"
    rows = (
        (restarted, f"starts {', '.join(restarted)} again, with the same {disks}"),
        (facts.restarting, facts.restarting.note if facts.restarting else ""),
        (
            facts.restarting,
            "--unattended: in the end, hosts are stopped; only fleet down deletes them and their disks",
        ),
        (facts.restarting and cloud.max_cost_usd, _DISKS),
        (facts.image.note, facts.image.note),
        (facts.login, f"OS Login is used: the fleet's key is imported into the profile of {facts.login}"),
    )
    return [
        *(note for applies, note in rows if applies),
        *_storage(facts.storage, cloud, region),
        *_tunnels(facts.tunnels),
        *_access(cloud, facts.sources),
    ]


def _storage(access: Access | None, cloud: GceOptions, region: str) -> list[str]:
    """Return sentences about the bucket of the fleet, if it has one."""
    if access is None:
        return []
    notes = [f"{access.email} reads and writes {cloud.bucket}"]
    if access.doubt:
        doubt = f"it is not certain that {access.email} can read and write {cloud.bucket}: {access.doubt}"
        notes = [f"{doubt}; fleet doctor --bucket {cloud.bucket} shows the commands that grant them"]
    if is_far(access.location, region):
        notes.append(f"{cloud.bucket} is in {access.location}: its traffic with instances in {region} costs extra")
    return notes


def _tunnels(email: str | None) -> list[str]:
    """Return a sentence about the account that opens tunnels, if instances have no external address."""
    if email is None:
        return []
    return [f"SSH goes through Identity-Aware Proxy, with gcloud's account{f' {email}' if email else ''}"]


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


def _to_be_restarted(existing: Sequence[compute_v1.Instance], names: Sequence[str]) -> list[compute_v1.Instance]:
    """Return the stopped instances that are started again, in the order of their `names`."""
    stopped = {our_name(resource): resource for resource in existing if resource.status == "TERMINATED"}
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
