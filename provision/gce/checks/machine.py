"""Checks that zones offer the machine, and that quotas and the reservation have room for it."""

from __future__ import annotations

from dataclasses import replace

from google.cloud import compute_v1

from provision.gce.account import Account
from provision.gce.catalog.machines import describe
from provision.gce.catalog.names import region_of
from provision.gce.diagnosis import TRIAL, Failure, Scope
from provision.gce.options import GceOptions
from provision.gce.quota import Quotas
from provision.gce.zones import candidates, check_locations, explain_no_offer, find_reserved, offered
from provision.model import Finding, FleetSpec
from provision.quantities import counted


def offering_zones(account: Account, cloud: GceOptions) -> list[str]:
    """Return the zones that offer the machine, in the order in which `fleet up` tries them.

    Raises:
        ApiError: a call failed.
        ProviderError: none does, or a requested zone does not exist.
    """
    zones = offered(account, account.fleet(FleetSpec("default", "gce", 1, options=cloud)), is_baked=True)
    check_locations(cloud, account.api.regions(), zones, account.api.project)
    chosen = candidates(replace(cloud, max_price_usd_h=0.0), zones, account.prices)
    if not chosen:
        raise explain_no_offer(account.api, cloud, zones, account.silent)
    return chosen


def check_machine(account: Account, cloud: GceOptions) -> str:
    """Return the number of zones that offer the machine."""
    zones = offering_zones(account, replace(cloud, anywhere=True))
    return f"{describe(cloud)} is offered in {counted(len(zones), 'zone')}"


def check_image(account: Account, cloud: GceOptions) -> str:
    """Return that the boot image can be used."""
    return f"{account.api.image(cloud.image).name} can be used"


def check_global_quota(account: Account, cloud: GceOptions, *, count: int) -> str:
    """Return the quotas that count all regions together, as a message.

    Raises:
        ProviderError: one has no room for the instances, or the quotas are those of a free trial, without GPUs.
    """
    quotas, project, regions = _quotas(account)
    if cloud.gpus and quotas.is_trial():
        failure = Failure(TRIAL, "the quotas are those of a free trial")
        raise account.diagnosis([failure], "create instances")
    for problem in quotas.problems(cloud, count, regions[0] if regions else ""):
        if problem.scope is Scope.EVERYTHING:
            raise problem
    limits = {quota.metric: quota.limit for quota in project.quotas}
    names = [name for name in ("GPUS_ALL_REGIONS", "CPUS_ALL_REGIONS") if name in limits]
    return ", ".join(f"{name} is {limits[name]:g}" for name in names) or "none is listed"


def check_regional_quota(account: Account, cloud: GceOptions, *, count: int) -> str:
    """Return the number of regions whose quotas have room for the instances, as a message.

    Raises:
        ProviderError: no region that `fleet up` would try has room.
    """
    quotas, _, _ = _quotas(account)
    names = list(dict.fromkeys(map(region_of, offering_zones(account, cloud))))

    all_short = [quotas.problems(cloud, count, name) for name in names]
    short = [[problem for problem in problems if problem.scope is Scope.REGION] for problems in all_short]
    if all(short):
        raise short[0][0]
    return f"room for {_instances(cloud, count)} in {short.count([])} of {counted(len(names), 'region')}"


def _quotas(account: Account) -> tuple[Quotas, compute_v1.Project, list[str]]:
    """Return the quotas of the project, the project, and the names of its regions."""
    project, regions = account.api.together(account.api.get_project, account.api.regions)
    return Quotas(account.api.project, project, regions), project, [region.name for region in regions]


def check_reservation(account: Account, cloud: GceOptions, *, count: int) -> str | Finding:
    """Return where the reservation has room for the instances, as a message, or that it cannot be read.

    Raises:
        ProviderError: it cannot be used.
    """
    if not cloud.reservation:
        return "none: instances use one only with --reservation"
    zones = find_reserved(account, cloud, count)
    if zones is None:
        return Finding("reservation", None, f"{cloud.reservation} cannot be read in its project")
    return f"{cloud.reservation} has room for {_instances(cloud, count)} in {', '.join(zones)}"


def _instances(cloud: GceOptions, count: int) -> str:
    return f"{counted(count, 'instance')} ({describe(cloud)})"
