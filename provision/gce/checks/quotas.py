"""Check that the quotas have room for an instance."""

from __future__ import annotations

from provision.gce.account import Account
from provision.gce.catalog.machines import describe
from provision.gce.checks.check import Check
from provision.gce.diagnosis.quotas import quota_hint
from provision.gce.options import GceOptions
from provision.gce.quota import Quotas
from provision.provider import ErrorKind, ProviderError
from provision.quantities import counted


def _gpus(account: Account, _cloud: GceOptions) -> str:
    quotas = account.api.get_project().get("quotas", ())
    limits = {str(quota.get("metric")): float(quota.get("limit", 0)) for quota in quotas}
    limit = limits.get("GPUS_ALL_REGIONS")
    if limit is None:
        return "unknown"
    if limit < 1:
        hint = quota_hint("GPUs", account.api.project)
        raise ProviderError(ErrorKind.QUOTA, "GPUS_ALL_REGIONS is 0: GPUs cannot be created", hint=hint)
    return f"GPUS_ALL_REGIONS is {limit:g}"


def _regional(account: Account, cloud: GceOptions) -> str:
    """Return the number of regions whose quotas have room for one instance, as a message.

    Raises:
        ProviderError: no region has room.
    """
    project, regions = account.api.together(account.api.get_project, account.api.regions)
    quotas = Quotas(account.api.project, project, regions)
    names = [str(region["name"]) for region in regions]
    room = [name for name in names if not quotas.problems(cloud, 1, name)]
    if not room and names:
        raise quotas.problems(cloud, 1, names[0])[0]
    return f"room for {describe(cloud)} in {len(room)} of {counted(len(names), 'region')}"


GPU_QUOTA = Check("GPU quota", _gpus)
REGIONAL_QUOTA = Check("regional quota", _regional)
