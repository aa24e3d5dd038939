"""Quote a fleet before it is paid, and keep the limits of its cost and of the price of an instance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from google.cloud import compute_v1

from provision.budget import CREATED, USEFUL_S, Budget, budget_of
from provision.gce import images
from provision.gce.access import accounts, hosts
from provision.gce.access.accounts import Access
from provision.gce.access.networks import check_subnetwork, open_sources
from provision.gce.account import Account
from provision.gce.api.prices import Prices, dollars
from provision.gce.api.resources import our_name, zone_of
from provision.gce.catalog.machines import describe
from provision.gce.catalog.names import Fleet, region_of
from provision.gce.options import LOCAL_SSD_PATH, MAX_DURATION_MAX_S, GceOptions
from provision.gce.quota import Quotas
from provision.gce.zones import check_locations, offered, split_path, zones_to_try
from provision.ledger import entry
from provision.model import Command, Offer, Price, Quote
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
    listed = entry(account.convert(existing), now)
    return budget_of(cloud.max_cost_usd, [*entries, *_without(entries, queued), listed], now)


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


def limited(budget: Budget, cloud: GceOptions, price: Price | None, count: int, now: float) -> GceOptions:
    """Return `cloud` with the lifetime that the budget pays for, at most that of the options.

    Args:
        budget: What the fleet costs at most without the new instances.
        cloud: Options of the new instances, resolved.
        price: Price of one of them; None: unknown.
        count: Number of new instances.
        now: Seconds since the epoch.

    Raises:
        ProviderError: the limit of the cost does not allow the instances.
    """
    if not cloud.max_cost_usd:
        return cloud
    if price is None:
        raise unknown_price(cloud, is_new=budget.is_new)
    if budget.unlimited:
        raise without_deadline(budget.unlimited)
    longest_s = cloud.max_duration_s or MAX_DURATION_MAX_S
    paid_s = budget.lifetime_s(price, count, now)
    if paid_s < min(USEFUL_S, longest_s):
        raise _too_little(budget, cloud, price, count, now, paid_s)
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


class Facts(NamedTuple):
    """State of a project as far as a quote depends on it.

    Attributes:
        project: The project.
        regions: Its regions, with their quotas.
        existing: The instances of the fleet.
        network: Its network.
        base: The boot image of the options.
        baked: The images of prepared hosts.
        sources: Ranges of addresses that can use SSH.
        tunnels: Account that opens tunnels, empty if it is unknown; None: there are none.
        storage: Access of the instances to the bucket; None: the fleet has no bucket.
    """

    project: compute_v1.Project
    regions: Sequence[compute_v1.Region]
    existing: Sequence[compute_v1.Instance]
    network: compute_v1.Network
    base: compute_v1.Image
    baked: Sequence[compute_v1.Image]
    sources: Sequence[str]
    tunnels: str | None
    storage: Access | None


def read_facts(account: Account, fleet: Fleet, count: int) -> Facts:
    """Read the state of the project, and the price list, for `count` new instances; 0: only of the existing ones.

    Raises:
        ApiError: a call failed; for example, the project, network, or image does not exist.
        ProviderError: credentials are missing, or a permission is missing.
    """
    api, cloud = account.api, fleet.cloud
    calls: list[Callable[[], Any]] = [
        lambda: accounts.check_given(account, cloud) if count else None,  # before what the account may do
        account.update_prices,
        api.get_project,
        api.regions,
        lambda: account.resources(fleet.name),
        lambda: api.network(cloud.network),
        lambda: api.image(cloud.image),
        lambda: images.listed(api) if images.is_prepared(fleet) else [],
        lambda: open_sources(account, fleet),
        lambda: hosts.check_tunnels(account) if count and not cloud.external else None,
        lambda: accounts.examine_bucket(account, cloud) if count and cloud.bucket else None,
    ]
    _, _, *values = api.together(*calls)
    return Facts(*values)


def quote_fleet(account: Account, fleet: Fleet, names: Sequence[str]) -> Quote:
    """Return zones in the order in which they will be tried, with prices, without those whose quota is too small.

    Raises:
        ApiError: a call failed; for example, the project, network, or image does not exist.
        ProviderError: credentials are missing, or no zone is left.
    """
    cloud, count = fleet.cloud, len(names)
    facts, prices = read_facts(account, fleet, count), account.prices
    if not names:
        return _quote(prices, cloud, 0)
    login = accounts.check_os_login(account) if accounts.uses_os_login(cloud, facts.project) else ""
    image = images.choose(fleet, facts.baked, facts.base, accounts.login_of(account, cloud, facts.project))
    named = {our_name(resource): resource for resource in facts.existing if resource.status == "TERMINATED"}
    stopped = [named[name] for name in names if name in named]
    zones = _zones(account, fleet, facts, count, len(stopped), is_baked=bool(image.path))
    quotas = Quotas(account.api.project, facts.project, facts.regions)
    left, short = _without_refused(zones, lambda zone: quotas.check(cloud, count, region_of(zone)))
    budget, now = quoted_budget(account, fleet.name, cloud, facts.existing), account.clock()
    paid, unpaid = _without_refused(left, lambda zone: limited(budget, cloud, prices.price(cloud, zone), count, now))
    is_exact = all(prices.is_exact(cloud, zone) for zone in paid)
    return replace(
        _quote(prices, limited(budget, cloud, prices.price(cloud, paid[0]), count, now), count),
        offers=tuple(_offer(prices, cloud, zone) for zone in paid),
        flex_start=cloud.flex_start and is_exact,
        notes=(
            *_of_options(cloud, paid[0], is_exact=is_exact),
            *_highest_price(prices, cloud, count, zones),
            *dict.fromkeys(problem.message for problem in (*short, *unpaid)),
            *_of_hosts(facts, cloud, image.note, login, [our_name(each) for each in stopped], region_of(paid[0])),
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


def _zones(account: Account, fleet: Fleet, facts: Facts, count: int, restarted: int, *, is_baked: bool) -> list[str]:
    """Return the zones that are tried; if all instances are only started again, at any price.

    Raises:
        ApiError: a call failed.
        ProviderError: there are none.
    """
    cloud, pinned = fleet.cloud, sorted({zone_of(resource) for resource in facts.existing})
    zones = offered(account, fleet, pinned, is_baked=is_baked)
    if not pinned:
        check_locations(cloud, facts.regions, zones, account.api.project)
        check_subnetwork(facts.network, cloud, account.api.project)
    priced = cloud if restarted < count else replace(cloud, max_price_usd_h=0.0)  # disks are not left for a price
    return zones_to_try(account, priced, zones, pinned, count)


def _without_refused(zones: Iterable[str], check: Callable[[str], object]) -> tuple[list[str], list[ProviderError]]:
    """Return the zones for which `check` raises no ProviderError, and the errors of the others.

    Raises:
        ProviderError: there are none.
    """
    left: list[str] = []
    errors: list[ProviderError] = []
    for zone in zones:
        try:
            check(zone)
            left.append(zone)
        except ProviderError as error:
            errors.append(error)
    if not left:
        raise errors[0]
    return left, errors


# --- the sentences below a price ----------------------------------------------------------------------------------

_DISKS = "--max-cost does not limit the cost of disks of stopped hosts, which fleet down deletes"


def _of_options(cloud: GceOptions, zone: str, *, is_exact: bool) -> list[str]:
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
    rows = (
        (cloud.idle_timeout_s, f"{idle}; {_DISKS}" if cloud.max_cost_usd else idle),
        (cloud.flex_start and not is_exact, "Flex-start VMs cost at most the price on demand that is shown"),
        (cloud.flex_start and cloud.wait_s, wait),
        (cloud.reservation, f"{reservation} until you delete it"),
        (cloud.has_local_ssds, ssds),
    )
    return [note for applies, note in rows if applies]


def _highest_price(prices: Prices, cloud: GceOptions, count: int, zones: Iterable[str]) -> list[str]:
    """Return a sentence with the highest price of all instances in a zone that may be tried, if the zones differ."""
    zone_by_price = {prices.usd_h(cloud, zone): zone for zone in zones}
    if len(zone_by_price) == 1:
        return []
    if None in zone_by_price:
        return ["the price in some of the zones is unknown; --max-price excludes them"]
    highest, zone = max((usd_h, zone) for usd_h, zone in zone_by_price.items() if usd_h is not None)
    return [f"highest price: {format_money(highest * count)}/h for all, in {zone}"]


def _of_hosts(
    facts: Facts, cloud: GceOptions, image: str, login: str, restarted: Sequence[str], region: str
) -> list[str]:
    """Return sentences about what hosts boot from, who reaches them, and what they may do.

    Args:
        facts: State of the project.
        cloud: Options of the instances, resolved.
        image: Sentence about the image of prepared hosts; empty: none.
        login: Account that logs in; empty: OS Login is not used.
        restarted: Names of the stopped instances that are started again.
        region: The region that is tried first.
    """
    disks = "disk" if len(restarted) == 1 else "disks"
    storage, tunnels = facts.storage, facts.tunnels
    rows = (
        (restarted, f"starts {', '.join(restarted)} again, with the same {disks}"),
        (image, image),
        (login, f"OS Login is used: the fleet's key is imported into the profile of {login}"),
        *((True, note) for note in (storage.notes(cloud, region) if storage else ())),
        (tunnels is not None, f"SSH goes through Identity-Aware Proxy, with gcloud's account {tunnels}".rstrip()),
        (True, _access(cloud, facts.sources)),
    )
    return [note for applies, note in rows if applies and note]


def _access(cloud: GceOptions, sources: Sequence[str]) -> str:
    """Return a sentence with the addresses that can use SSH; empty if no firewall rule of the fleet decides that."""
    if not cloud.firewall:
        return "no firewall rules are created (--no-firewall): existing rules must allow SSH and the fleet's traffic"
    if not cloud.external:
        return ""
    addresses = f"SSH is open to {', '.join(sources)}"
    if cloud.ssh_from:
        return addresses
    if len(sources) > 1:
        return f"{addresses}: this computer has several addresses; --ssh-from limits it to one"
    return f"{addresses}, the address of this computer"
