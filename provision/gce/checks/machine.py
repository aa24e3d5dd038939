"""Checks that zones offer the machine, and that quotas and the reservation have room for it."""

from __future__ import annotations

from dataclasses import replace

from provision.gce.account import Account
from provision.gce.catalog.machines import describe
from provision.gce.diagnosis import Diagnosis, Scope, free_trial
from provision.gce.options import GceOptions
from provision.gce.quota import AS_STANDARD, Quotas
from provision.gce.zones import Region, candidates, check_locations, explain_no_offer, find_reserved, offered
from provision.model import Finding, FleetSpec
from provision.quantities import counted


def offering_regions(account: Account, cloud: GceOptions) -> list[Region]:
    """Return the regions and zones that offer the machine, in the order in which `fleet up` tries them.

    Raises:
        ApiError: a call failed.
        ProviderError: none does, or a requested zone does not exist.
    """
    zones = offered(account, FleetSpec("default", "gce", 1, options=cloud), cloud, is_baked=True)
    check_locations(cloud, account.api.regions(), zones, account.api.project)
    regions = candidates(replace(cloud, max_price_usd_h=0.0), zones, account.prices)
    if not regions:
        raise explain_no_offer(account.api, cloud, zones, account.silent)
    return regions


def check_machine(account: Account, cloud: GceOptions) -> str:
    """Return the number of zones that offer the machine."""
    regions = offering_regions(account, replace(cloud, anywhere=True))
    return f"{describe(cloud)} is offered in {counted(sum(len(region.zones) for region in regions), 'zone')}"


def check_image(account: Account, cloud: GceOptions) -> str:
    """Return that the boot image can be used."""
    return f"{account.api.image(cloud.image).name} can be used"


def check_trial(account: Account, cloud: GceOptions) -> str:
    """Return whether the billing account is in its free trial, as a message; only its quotas show it.

    Raises:
        ProviderError: it is, and the instances have GPUs.
    """
    quotas, _ = _quotas(account)
    if not quotas.is_trial():
        return "the quotas are not those of a free trial"
    if cloud.gpus:
        raise free_trial(account.api.project, "the quotas are those of a free trial")
    return "the quotas are those of a free trial, which has no GPUs"


def check_global_quota(account: Account, cloud: GceOptions, *, count: int) -> str:
    """Return the quotas that count all regions together, as a message.

    Raises:
        ProviderError: one has no room for the instances.
    """
    quotas, regions = _quotas(account)
    for problem in quotas.problems(cloud, count, regions[0] if regions else ""):
        if problem.scope is Scope.EVERYTHING:
            raise problem
    limits = {quota.metric: quota.limit for quota in account.api.get_project().quotas}
    names = [name for name in ("GPUS_ALL_REGIONS", "CPUS_ALL_REGIONS") if name in limits]
    return ", ".join(f"{name} is {limits[name]:g}" for name in names) or "none is listed"


def check_regional_quota(account: Account, cloud: GceOptions, *, count: int) -> str | Finding:
    """Return the number of regions whose quotas have room for the instances, as a message, or a doubt about it.

    Raises:
        ProviderError: no region that `fleet up` would try has room.
    """
    quotas, _ = _quotas(account)
    names = list(dict.fromkeys(region.name for region in offering_regions(account, cloud)))
    problems = {name: _of_region(quotas, cloud, count, name) for name in names}
    room = [name for name, short in problems.items() if not short]
    if not room:
        raise problems[names[0]][0]
    text = f"room for {_instances(cloud, count)} in {len(room)} of {counted(len(names), 'region')}"
    doubts = [_of_region(quotas, cloud, count, name, strict=True) for name in room]
    if not all(doubts):
        return text
    doubt = doubts[0][0].finding("regional quota")
    message = f"{text}; but Google may count them as preemptible: {doubt.message}"
    return replace(doubt, ok=None, message=message, hint=f"{doubt.hint}; or use {AS_STANDARD}")


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


def _of_region(
    quotas: Quotas, cloud: GceOptions, count: int, region: str, *, strict: bool = False
) -> list[Diagnosis]:
    problems = quotas.problems(cloud, count, region, strict=strict)
    return [problem for problem in problems if problem.scope is Scope.REGION]


def _instances(cloud: GceOptions, count: int) -> str:
    return f"{counted(count, 'instance')} ({describe(cloud)})"


def _quotas(account: Account) -> tuple[Quotas, list[str]]:
    project, regions = account.api.together(account.api.get_project, account.api.regions)
    return Quotas(account.api.project, project, regions), [region.name for region in regions]
