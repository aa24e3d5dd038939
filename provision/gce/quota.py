"""Check that a project's quotas have room for requested instances, without a call.

Source of the quotas and what they count: https://cloud.google.com/compute/resource-usage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from provision.deferred import dataclass
from provision.gce.catalog.machines import DEFAULT_MACHINE_TYPE, cpus, gpu_of
from provision.gce.catalog.series import HYPERDISK, PD_BALANCED, PD_SSD, PD_STANDARD, series_of
from provision.gce.diagnosis.cases import Diagnosis, Scope
from provision.gce.diagnosis.quotas import quota_hint, quota_request
from provision.gce.options import GceOptions
from provision.gce.options.machines import LOCAL_SSD_GB
from provision.gce.options.time import BACKSTOP_S
from provision.provider import ErrorKind

_SHARED_QUOTA = frozenset({"n1", "e2", "f1", "g1", "custom"})
_DISK_QUOTAS = MappingProxyType(
    {
        PD_BALANCED: "SSD_TOTAL_GB",
        PD_SSD: "SSD_TOTAL_GB",
        PD_STANDARD: "DISKS_TOTAL_GB",
        HYPERDISK: "HDB_TOTAL_GB",
    }
)


@dataclass(frozen=True)
class _Need:
    """An amount that one of several quotas must have room for.

    Attributes:
        metrics: Alternative quotas, the usual one first.
        amount: Amount that all instances need together.
        everywhere: The quota counts all regions together.
    """

    metrics: tuple[str, ...]
    amount: float
    everywhere: bool = False


def problems(
    cloud: GceOptions,
    count: int,
    region_quotas: Sequence[Mapping[str, Any]],
    project_quotas: Sequence[Mapping[str, Any]],
    region: str,
    project: str,
) -> list[Diagnosis]:
    """Return the quotas that have no room for `count` more instances in `region`.

    A quota that Compute Engine does not list is assumed to have room; if it has none, the creation fails later.

    Args:
        cloud: Options of the instances, resolved.
        count: Number of instances to create.
        region_quotas: ``quotas`` of the region, in REST's JSON.
        project_quotas: ``quotas`` of the project.
        region: Name of the region.
        project: Name of the project.
    """
    of_region, of_project = _by_metric(region_quotas), _by_metric(project_quotas)
    diagnoses = []
    for need in _needs(cloud, count):
        problem = _problem(need, of_project if need.everywhere else of_region, region, project)
        if problem is not None:
            if "SSD_TOTAL_GB" in need.metrics and PD_STANDARD in series_of(cloud.machine_type).disks:
                problem.again = {"--disk-type": PD_STANDARD}
            diagnoses.append(problem)
    return diagnoses


def _needs(cloud: GceOptions, count: int) -> Iterator[_Need]:
    """Yield the needs of `count` instances, starting with the quota that is missing most often."""
    if cloud.gpus:
        yield _Need(("GPUS_ALL_REGIONS",), cloud.gpus * count, everywhere=True)
        yield from _gpus(cloud, count)
    machine_type = cloud.machine_type or DEFAULT_MACHINE_TYPE
    processors = cpus(machine_type)
    if processors:
        yield _Need(("CPUS_ALL_REGIONS",), processors * count, everywhere=True)
        yield _Need(_cpu_metrics(machine_type, preemptible=cloud.spot or cloud.flex_start), processors * count)
    yield _Need(("INSTANCES",), count)
    if cloud.external:
        yield _Need(("IN_USE_ADDRESSES",), count)
    if cloud.disk_type in _DISK_QUOTAS:
        yield _Need((_DISK_QUOTAS[cloud.disk_type],), cloud.disk_gb * count)
    if cloud.local_ssds:
        preemptible = ("PREEMPTIBLE_LOCAL_SSD_GB",) if cloud.spot or cloud.flex_start else ()
        yield _Need((*preemptible, "LOCAL_SSD_TOTAL_GB"), cloud.local_ssds * LOCAL_SSD_GB * count)


def _gpus(cloud: GceOptions, count: int) -> Iterator[_Need]:
    gpu = gpu_of(cloud)
    if gpu is None:
        return
    metrics: tuple[str, ...] = (gpu.quota,)
    if cloud.spot or cloud.flex_start:
        # A project that never requested preemptible quota has none; then the other quota is used.
        metrics = (gpu.spot_quota, gpu.quota)
    elif 0 < cloud.delete_after_s <= BACKSTOP_S:
        metrics = (gpu.quota, gpu.spot_quota)
    yield _Need(metrics, cloud.gpus * count)


def _cpu_metrics(machine_type: str, *, preemptible: bool) -> tuple[str, ...]:
    family = machine_type.partition("-")[0]
    metric = "CPUS" if family in _SHARED_QUOTA else f"{family.upper()}_CPUS"
    return ("PREEMPTIBLE_CPUS", metric) if preemptible else (metric,)


def _problem(need: _Need, quotas: Mapping[str, tuple[float, float]], region: str, project: str) -> Diagnosis | None:
    listed = [metric for metric in need.metrics if metric in quotas]
    # A quota that is not listed, such as those of new machine families, has room.
    if (
        len(listed) < len(need.metrics)
        or not need.amount
        or any(_free(quotas[metric]) >= need.amount for metric in listed)
    ):
        return None
    metric = max(listed, key=lambda name: _free(quotas[name]))
    if _free(quotas[metric]) <= 0:
        metric = listed[0]
    limit, usage = quotas[metric]
    where = "in all regions together" if need.everywhere else f"in {region}"
    allows = f"allows {limit:g} {where}, {usage:g} in use" if limit else f"is 0 {where}"
    scope_region = "" if need.everywhere else region
    also = [other for other in listed if other != metric]
    return Diagnosis(
        ErrorKind.QUOTA,
        f"the quota {metric} of project {project} {allows}; {need.amount:g} more needed",
        scope=Scope.EVERYTHING if need.everywhere else Scope.REGION,
        cause="".join(f"{other} is too small as well (limit {quotas[other][0]:g})" for other in also),
        hint=quota_hint(metric, project, scope_region),
        next_steps=[quota_request(metric, project, scope_region, usage + need.amount)],
    )


def _free(quota: tuple[float, float]) -> float:
    return quota[0] - quota[1]


def _by_metric(quotas: Sequence[Mapping[str, Any]]) -> dict[str, tuple[float, float]]:
    """Return limit and usage by the quota's name."""
    return {
        str(quota["metric"]): (float(quota.get("limit", 0)), float(quota.get("usage", 0)))
        for quota in quotas
        if quota.get("metric")
    }


def look_like_trial(project_quotas: Sequence[Mapping[str, Any]], region_quotas: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether quotas are those of a free trial: no GPUs, few CPUs and addresses, 250 GB of SSD.

    Source: https://cloud.google.com/free/docs/free-cloud-features#free-trial and error messages of trial projects,
    https://github.com/kubeflow/pipelines/issues/10907.
    """
    of_project, of_region = _by_metric(project_quotas), _by_metric(region_quotas)
    largest = {"GPUS_ALL_REGIONS": 0, "CPUS_ALL_REGIONS": 12}, {"SSD_TOTAL_GB": 250, "IN_USE_ADDRESSES": 4}
    pairs = zip((of_project, of_region), largest, strict=True)
    return all(name in has and has[name][0] <= limit for has, limits in pairs for name, limit in limits.items())


class Quotas:
    """Quotas of a project, as Compute Engine reports them.

    Args:
        name: The project.
        project: The project, in REST's JSON.
        regions: Its regions, in REST's JSON.
    """

    def __init__(self, name: str, project: Mapping[str, Any], regions: Sequence[Mapping[str, Any]]) -> None:
        self._name = name
        self._project = project.get("quotas", ())
        self._regions = {str(region["name"]): region.get("quotas", ()) for region in regions}

    def is_trial(self) -> bool:
        """Return whether the quotas are those of a free trial."""
        return any(look_like_trial(self._project, quotas) for quotas in self._regions.values())

    def problems(self, cloud: GceOptions, count: int, region: str) -> list[Diagnosis]:
        """Return the quotas that are too small for `count` instances in a region."""
        return problems(cloud, count, self._regions.get(region, ()), self._project, region, self._name)
