"""Check that quotas and the reservation have room for an instance: in all regions together, and in one region."""

from __future__ import annotations

from provision.gce.account import Account
from provision.gce.catalog.machines import describe
from provision.gce.checks.check import Check
from provision.gce.creation import find_reserved
from provision.gce.diagnosis.cases import Diagnosis, Scope
from provision.gce.diagnosis.projects import free_trial
from provision.gce.options import GceOptions
from provision.gce.quota import Quotas
from provision.model import Finding
from provision.quantities import counted


def _trial(account: Account, cloud: GceOptions) -> str:
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


def _global(account: Account, cloud: GceOptions) -> str:
    """Return the quotas that count all regions together, as a message.

    Raises:
        ProviderError: one has no room for an instance.
    """
    quotas, regions = _quotas(account)
    for problem in quotas.problems(cloud, 1, regions[0] if regions else ""):
        if problem.scope is Scope.EVERYTHING:
            raise problem
    listed = account.api.get_project().get("quotas", ())
    limits = {str(quota.get("metric")): float(quota.get("limit", 0)) for quota in listed}
    names = [name for name in ("GPUS_ALL_REGIONS", "CPUS_ALL_REGIONS") if name in limits]
    return ", ".join(f"{name} is {limits[name]:g}" for name in names) or "none is listed"


def _regional(account: Account, cloud: GceOptions) -> str:
    """Return the number of regions whose quotas have room for one instance, as a message.

    Raises:
        ProviderError: no region has room.
    """
    quotas, names = _quotas(account)
    problems = {name: _of_region(quotas, cloud, name) for name in names}
    room = [name for name, short in problems.items() if not short]
    if not room and names:
        raise problems[names[0]][0]
    return f"room for {describe(cloud)} in {len(room)} of {counted(len(names), 'region')}"


def _reservation(account: Account, cloud: GceOptions) -> str | Finding:
    """Return where the reservation has room for an instance, as a message, or that it cannot be read.

    Raises:
        ProviderError: it cannot be used.
    """
    if not cloud.reservation:
        return "none: instances use one only with --reservation"
    zones = find_reserved(account, cloud, 1)
    if zones is None:
        return Finding("reservation", None, f"{cloud.reservation} cannot be read in its project")
    return f"{cloud.reservation} has room for {describe(cloud)} in {', '.join(zones)}"


def _of_region(quotas: Quotas, cloud: GceOptions, region: str) -> list[Diagnosis]:
    return [problem for problem in quotas.problems(cloud, 1, region) if problem.scope is Scope.REGION]


def _quotas(account: Account) -> tuple[Quotas, list[str]]:
    project, regions = account.api.together(account.api.get_project, account.api.regions)
    return Quotas(account.api.project, project, regions), [str(region["name"]) for region in regions]


TRIAL = Check("free trial", _trial)
GLOBAL_QUOTA = Check("global quota", _global)
REGIONAL_QUOTA = Check("regional quota", _regional)
RESERVATION = Check("reservation", _reservation)
