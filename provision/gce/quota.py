"""Check that a project's quotas have room for requested instances, without a call.

Source of the quotas and what they count: https://cloud.google.com/compute/resource-usage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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


_TRIAL = MappingProxyType({"GPUS_ALL_REGIONS": 0, "CPUS_ALL_REGIONS": 12, "SSD_TOTAL_GB": 250, "IN_USE_ADDRESSES": 4})


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


def amount_of(metric: str, cloud: GceOptions, count: int) -> float:
    """Return the amount of a quota that `count` instances need; 0: unknown."""
    return next((need.amount for need in _needs(cloud, count) if metric in need.metrics), 0.0)


def _needs(cloud: GceOptions, count: int) -> Iterator[_Need]:
    """Yield the needs of `count` instances, starting with the quota that is missing most often."""
    preemptible = cloud.spot or cloud.flex_start

    def either(of_preemptible: str, usual: str, amount: float) -> _Need:
        return _Need((of_preemptible, usual) if preemptible else (usual,), amount, is_preemptible=preemptible)

    if cloud.gpus:
        yield _Need(("GPUS_ALL_REGIONS",), cloud.gpus * count, everywhere=True)
        gpu = gpu_of(cloud)
        if gpu is not None:
            amount, special = cloud.gpus * count, f"PREEMPTIBLE_{gpu.quota}"
            yield (_Need((gpu.quota, special), amount) if is_temporary(cloud) else either(special, gpu.quota, amount))
    machine_type = cloud.machine_type or DEFAULT_MACHINE_TYPE
    processors = cpus(machine_type)
    if processors:
        yield _Need(("CPUS_ALL_REGIONS",), processors * count, everywhere=True)
        family = machine_type.partition("-")[0]
        metric = "CPUS" if family in _SHARED_QUOTA else f"{family.upper()}_CPUS"
        yield either("PREEMPTIBLE_CPUS", metric, processors * count)
    yield _Need(("INSTANCES",), count)
    if cloud.external:
        yield _Need(("IN_USE_ADDRESSES",), count)
    if cloud.disk_type in _DISK_QUOTAS:
        yield _Need((_DISK_QUOTAS[cloud.disk_type],), cloud.disk_gb * count)
    if cloud.local_ssds:
        size_gb = cloud.local_ssds * LOCAL_SSD_GB * count
        yield either("PREEMPTIBLE_LOCAL_SSD_GB", "LOCAL_SSD_TOTAL_GB", size_gb)


def is_temporary(cloud: GceOptions) -> bool:
    """Return whether the GPUs of instances on demand may use the quota for preemptible instances."""
    is_deleted = 0 < cloud.delete_after_s <= BACKSTOP_S
    return is_deleted and not (cloud.spot or cloud.flex_start)


class Quotas:
    """Quotas of a project, as Compute Engine reports them.

    Args:
        name: The project.
        project: The project.
        regions: Its regions.
    """

    def __init__(self, name: str, project: compute_v1.Project, regions: Sequence[compute_v1.Region]) -> None:
        self._name = name
        self._project = _by_metric(project.quotas)
        self._regions = {region.name: _by_metric(region.quotas) for region in regions}

    def is_trial(self) -> bool:
        """Return whether the quotas are those of a free trial: no GPUs, few CPUs and addresses, 250 GB of SSD.

        Source: https://cloud.google.com/free/docs/free-cloud-features#free-trial and messages of trial projects,
        https://github.com/kubeflow/pipelines/issues/10907.
        """
        of_regions = [{**self._project, **region} for region in self._regions.values()]
        return any(all(name in has and has[name][0] <= most for name, most in _TRIAL.items()) for has in of_regions)

    def check(self, cloud: GceOptions, count: int, region: str) -> None:
        """Check that the quotas have room for `count` instances in a region.

        Raises:
            Diagnosis: one has not.
        """
        for problem in self.problems(cloud, count, region):
            raise problem

    def problems(self, cloud: GceOptions, count: int, region: str) -> list[Diagnosis]:
        """Return the quotas that have no room for `count` more instances in a region.

        A quota that Compute Engine does not list is assumed to have room; if it has none, the creation fails later.

        Args:
            cloud: Options of the instances, resolved.
            count: Number of instances to create.
            region: Name of the region.
        """
        problems = [problem for need in _needs(cloud, count) if (problem := self._problem(need, region)) is not None]
        for problem in problems:
            if problem.metric == "SSD_TOTAL_GB" and PD_STANDARD in series_of(cloud.machine_type).disks:
                problem.again = {"--disk-type": PD_STANDARD}
        return problems

    def _problem(self, need: _Need, region: str) -> Diagnosis | None:
        """Return why no quota has room for a need; None if one has, or is not listed."""
        quotas = self._project if need.everywhere else self._regions.get(region, {})
        # Once a quota for preemptible instances was granted, only that one counts:
        # https://cloud.google.com/compute/resource-usage#preemptible-quotas.
        is_granted = need.is_preemptible and quotas.get(need.metrics[0], (0.0, 0.0))[0] > 0
        metrics = need.metrics[:1] if is_granted else need.metrics
        free = {metric: quotas[metric][0] - quotas[metric][1] for metric in metrics if metric in quotas}
        if len(free) < len(metrics) or not need.amount or max(free.values()) >= need.amount:
            return None
        metric = max(free, key=lambda name: free[name]) if max(free.values()) > 0 else metrics[0]
        limit, usage = quotas[metric]
        where = "in all regions together" if need.everywhere else f"in {region}"
        allows = f"allows {limit:g} {where}, {usage:g} in use" if limit else f"is 0 {where}"
        scope_region = "" if need.everywhere else region
        also = [other for other in metrics if other != metric]
        both = [metric, *(other for other in also if quotas[other][0] and not need.is_preemptible)]
        return Diagnosis(
            ErrorKind.QUOTA,
            f"the quota {metric} of project {self._name} {allows}; {need.amount:g} more needed",
            scope=Scope.EVERYTHING if need.everywhere else Scope.REGION,
            cause="".join(f"{other} is too small as well (limit {quotas[other][0]:g})" for other in also),
            hint=quota_hint(metric, self._name, scope_region),
            next_steps=[
                quota_request(name, self._name, scope_region, quotas[name][1] + need.amount) for name in both
            ],
            metric=metric,
        )


def _by_metric(quotas: Sequence[compute_v1.Quota]) -> dict[str, tuple[float, float]]:
    """Return limit and usage by the quota's name."""
    return {quota.metric: (quota.limit, quota.usage) for quota in quotas if quota.metric}
