"""Check that a project's quotas have room for requested instances, without a call.

Source of the quotas and what they count: https://cloud.google.com/compute/resource-usage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from google.cloud import compute_v1

from provision.gce.catalog.gpus import HYPERDISK, PD_BALANCED, PD_SSD, PD_STANDARD
from provision.gce.catalog.machines import DEFAULT_MACHINE_TYPE, cpus, gpu_of, series_of
from provision.gce.diagnosis import Diagnosis, Scope, quota_hint, quota_request
from provision.gce.options import BACKSTOP_S, LOCAL_SSD_GB, GceOptions
from provision.provider import ErrorKind

AS_STANDARD = "--max-duration 8d --idle-timeout 1h: with a lifetime above 7 days, they do not count as preemptible"
"""A way out if Google counts GPUs of temporary instances as preemptible."""

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
        is_preemptible: The first quota is the one for preemptible instances.
    """

    metrics: tuple[str, ...]
    amount: float
    everywhere: bool = False
    is_preemptible: bool = False

    def counted(self, quotas: Mapping[str, tuple[float, float]]) -> tuple[str, ...]:
        """Return the alternatives: once a quota for preemptible instances was granted, only that one.

        Source: https://cloud.google.com/compute/resource-usage#preemptible-quotas.
        """
        is_granted = self.is_preemptible and quotas.get(self.metrics[0], (0.0, 0.0))[0] > 0
        return self.metrics[:1] if is_granted else self.metrics


def problems(
    cloud: GceOptions,
    count: int,
    region_quotas: Sequence[compute_v1.Quota],
    project_quotas: Sequence[compute_v1.Quota],
    region: str,
    project: str,
    *,
    strict: bool = False,
) -> list[Diagnosis]:
    """Return the quotas that have no room for `count` more instances in `region`.

    A quota that Compute Engine does not list is assumed to have room; if it has none, the creation fails later.

    Args:
        cloud: Options of the instances, resolved.
        count: Number of instances to create.
        region_quotas: ``quotas`` of the region.
        project_quotas: ``quotas`` of the project.
        region: Name of the region.
        project: Name of the project.
        strict: GPUs of instances that are deleted within a week count as preemptible, which Google does not document.
    """
    of_region, of_project = _by_metric(region_quotas), _by_metric(project_quotas)
    diagnoses = []
    for need in _needs(cloud, count, strict=strict):
        problem = _problem(need, of_project if need.everywhere else of_region, region, project)
        if problem is not None:
            if "SSD_TOTAL_GB" in need.metrics and PD_STANDARD in series_of(cloud.machine_type).disks:
                problem.again = {"--disk-type": PD_STANDARD}
            diagnoses.append(problem)
    return diagnoses


def amount_of(metric: str, cloud: GceOptions, count: int) -> float:
    """Return the amount of a quota that `count` instances need; 0: unknown."""
    return next((need.amount for need in _needs(cloud, count) if metric in need.metrics), 0.0)


def _needs(cloud: GceOptions, count: int, *, strict: bool = False) -> Iterator[_Need]:
    """Yield the needs of `count` instances, starting with the quota that is missing most often."""
    is_preemptible = cloud.spot or cloud.flex_start
    if cloud.gpus:
        yield _Need(("GPUS_ALL_REGIONS",), cloud.gpus * count, everywhere=True)
        gpu = gpu_of(cloud)
        if gpu is not None:
            metrics = (
                (f"PREEMPTIBLE_{gpu.quota}", gpu.quota) if is_preemptible or is_temporary(cloud) else (gpu.quota,)
            )
            counts = is_preemptible or (strict and is_temporary(cloud))
            yield _Need(metrics if counts else metrics[::-1], cloud.gpus * count, is_preemptible=counts)
    machine_type = cloud.machine_type or DEFAULT_MACHINE_TYPE
    processors = cpus(machine_type)
    if processors:
        yield _Need(("CPUS_ALL_REGIONS",), processors * count, everywhere=True)
        family = machine_type.partition("-")[0]
        metric = "CPUS" if family in _SHARED_QUOTA else f"{family.upper()}_CPUS"
        yield _either("PREEMPTIBLE_CPUS", metric, processors * count, is_preemptible=is_preemptible)
    yield _Need(("INSTANCES",), count)
    if cloud.external:
        yield _Need(("IN_USE_ADDRESSES",), count)
    if cloud.disk_type in _DISK_QUOTAS:
        yield _Need((_DISK_QUOTAS[cloud.disk_type],), cloud.disk_gb * count)
    if cloud.local_ssds:
        size_gb = cloud.local_ssds * LOCAL_SSD_GB * count
        yield _either("PREEMPTIBLE_LOCAL_SSD_GB", "LOCAL_SSD_TOTAL_GB", size_gb, is_preemptible=is_preemptible)


def _either(preemptible: str, usual: str, amount: float, *, is_preemptible: bool) -> _Need:
    """Return a need of instances that are preemptible or not."""
    return _Need((preemptible, usual) if is_preemptible else (usual,), amount, is_preemptible=is_preemptible)


def is_temporary(cloud: GceOptions) -> bool:
    """Return whether the GPUs of instances on demand may use the quota for preemptible instances."""
    is_deleted = 0 < cloud.delete_after_s <= BACKSTOP_S and not cloud.unattended
    return is_deleted and not (cloud.spot or cloud.flex_start)


def _problem(need: _Need, quotas: Mapping[str, tuple[float, float]], region: str, project: str) -> Diagnosis | None:
    metrics = need.counted(quotas)
    listed = [metric for metric in metrics if metric in quotas]
    # A quota that is not listed, such as those of new machine families, has room.
    if (
        len(listed) < len(metrics)
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
    both = [metric, *(other for other in also if quotas[other][0] and not need.is_preemptible)]
    return Diagnosis(
        ErrorKind.QUOTA,
        f"the quota {metric} of project {project} {allows}; {need.amount:g} more needed",
        scope=Scope.EVERYTHING if need.everywhere else Scope.REGION,
        cause="".join(f"{other} is too small as well (limit {quotas[other][0]:g})" for other in also),
        hint=quota_hint(metric, project, scope_region),
        next_steps=[quota_request(name, project, scope_region, quotas[name][1] + need.amount) for name in both],
    )


def _free(quota: tuple[float, float]) -> float:
    return quota[0] - quota[1]


def _by_metric(quotas: Sequence[compute_v1.Quota]) -> dict[str, tuple[float, float]]:
    """Return limit and usage by the quota's name."""
    return {quota.metric: (quota.limit, quota.usage) for quota in quotas if quota.metric}


def look_like_trial(project_quotas: Sequence[compute_v1.Quota], region_quotas: Sequence[compute_v1.Quota]) -> bool:
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
        project: The project.
        regions: Its regions.
    """

    def __init__(self, name: str, project: compute_v1.Project, regions: Sequence[compute_v1.Region]) -> None:
        self._name = name
        self._project = project.quotas
        self._regions = {region.name: region.quotas for region in regions}

    def is_trial(self) -> bool:
        """Return whether the quotas are those of a free trial."""
        return any(look_like_trial(self._project, quotas) for quotas in self._regions.values())

    def problems(self, cloud: GceOptions, count: int, region: str, *, strict: bool = False) -> list[Diagnosis]:
        """Return the quotas that are too small for `count` instances in a region; `strict` is that of `problems`."""
        quotas = self._regions.get(region, ()), self._project
        return problems(cloud, count, *quotas, region, self._name, strict=strict)
