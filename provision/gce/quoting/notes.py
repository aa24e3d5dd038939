"""Sentences that the user should read before paying, without side effects."""

from __future__ import annotations

from collections.abc import Sequence

from provision.gce.access.bucket import Access
from provision.gce.catalog.buckets import is_far
from provision.gce.catalog.prices import Prices
from provision.gce.catalog.reservations import split_path
from provision.gce.options import GceOptions
from provision.gce.options.machines import LOCAL_SSD_PATH
from provision.gce.quoting.facts import Facts
from provision.gce.zones import Region
from provision.quantities import format_money, format_span

_DISKS = "--max-cost does not limit the cost of disks of stopped hosts, which fleet down deletes"


def describe_options(cloud: GceOptions, zone: str, *, is_exact: bool) -> list[str]:
    """Return sentences about options that change the price or the end of instances.

    Args:
        cloud: Options of the instances, resolved.
        zone: The zone that is tried first.
        is_exact: The prices are those of the provisioning model.
    """
    return [*_idle(cloud), *_flex_start(cloud, zone, is_exact=is_exact), *_reservation(cloud), *_local_ssds(cloud)]


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
    return [
        *_restarted(restarted),
        *_unattended(facts, cloud),
        *filter(None, [facts.image.note]),
        *_login(facts.login),
        *_storage(facts.storage, cloud, region),
        *_tunnels(facts.tunnels),
        *_access(cloud, facts.sources),
    ]


def _idle(cloud: GceOptions) -> list[str]:
    """Return a sentence about the idle timeout, if there is one."""
    if not cloud.idle_timeout_s:
        return []
    note = f"each powers off after {format_span(cloud.idle_timeout_s)} without an active job and without a login"
    return [f"{note}; {_DISKS}" if cloud.max_cost_usd and not cloud.unattended else note]


def _flex_start(cloud: GceOptions, zone: str, *, is_exact: bool) -> list[str]:
    """Return sentences about the price of Flex-start VMs, and their queue in the first zone."""
    if not cloud.flex_start:
        return []
    notes = [] if is_exact else ["Flex-start VMs cost at most the price on demand that is shown"]
    if cloud.wait_s:
        notes.append(
            f"without capacity, the request waits in {zone} for up to {format_span(cloud.wait_s)}; each instance is "
            "billed when it starts, while others may still wait"
        )
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


def _restarted(names: Sequence[str]) -> list[str]:
    """Return a sentence about the stopped instances that are started again."""
    disks = "disk" if len(names) == 1 else "disks"
    return [f"starts {', '.join(names)} again, with the same {disks}"] if names else []


def _unattended(facts: Facts, cloud: GceOptions) -> list[str]:
    """Return sentences about the effects of ``--unattended``."""
    if facts.restarting is None:
        return []
    return [
        facts.restarting.note,
        "--unattended: in the end, hosts are stopped; only fleet down deletes them and their disks",
        *([_DISKS] if cloud.max_cost_usd else []),
    ]


def _login(email: str) -> list[str]:
    """Return a sentence about the account that logs in, if OS Login is used."""
    return [f"OS Login is used: the fleet's key is imported into the profile of {email}"] if email else []


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
