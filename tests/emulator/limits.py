"""Limits: the capacity of zones and the quotas of the project."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.emulator.blueprint import LONGEST_PREEMPTIBLE_S, Blueprint
from tests.emulator.catalog import ACCELERATORS, QUOTAS, REGIONS, ZONES
from tests.emulator.messages import Failure, quota

Json = dict[str, Any]
Usage = dict[tuple[str, str], float]


class Limits:
    """Capacity by zone and quotas by region (empty: of the project), both adjustable; the defaults are generous."""

    def __init__(self) -> None:
        self._capacity: dict[tuple[str, str], float] = {}
        self._quotas = {(region, metric): limit for region in REGIONS for metric, limit in QUOTAS["region"].items()}
        self._quotas.update({("", metric): limit for metric, limit in QUOTAS["project"].items()})

    def set_capacity(self, zone: str, resource: str, limit: float) -> None:
        """Set the capacity of `zone` for `resource`: ``instances``, ``spot`` (instances) or a GPU type.

        Raises:
            ValueError: the zone or the resource is unknown.
        """
        if zone not in ZONES or resource not in ("instances", "spot", *ACCELERATORS):
            raise ValueError(f"no capacity {resource!r} in zone {zone!r}")
        self._capacity[zone, resource] = limit

    def set_quota(self, metric: str, limit: float, region: str = "") -> None:
        """Set a quota of a region; of every region that has it, or of the project, where none is given.

        Raises:
            ValueError: the quota is unknown.
        """
        keys = [key for key in self._quotas if key[1] == metric and region in ("", key[0])]
        if not keys:
            raise ValueError(f"no quota {metric!r} in region {region!r}")
        for key in keys:
            self._quotas[key] = limit

    def quotas(self, region: str, usage: Usage) -> list[Json]:
        """Return the quotas of `region` (empty: of the project) as the API shows them."""
        return [
            {"metric": metric, "limit": limit, "usage": usage.get((where, metric), 0.0)}
            for (where, metric), limit in self._quotas.items()
            if where == region
        ]

    def shortage(self, blueprint: Blueprint, held: Iterable[Blueprint], usage: Usage) -> Failure | None:
        """Return why one more instance is refused, given those `held` and used; if it is not, set its GPUs' quota.

        A zone without capacity is reported before any quota is checked.
        """
        others = list(held)
        if not self.has_room(blueprint, others, blueprint.zone):
            zones = REGIONS[blueprint.region]
            elsewhere = [
                zone for zone in zones if zone != blueprint.zone and self._is_known_room(blueprint, others, zone)
            ]
            return blueprint.stockout(",".join(elsewhere))
        blueprint.gpu_metric = self._gpu_metric(blueprint)
        for (region, metric), amount in self.consumption(blueprint).items():
            limit = self._quotas.get((region, metric))
            if limit is not None and usage.get((region, metric), 0.0) + amount > limit:
                return quota(metric, limit, region)
        return None

    def has_room(self, blueprint: Blueprint, held: Iterable[Blueprint], zone: str, count: int = 1) -> bool:
        """Return whether `zone` has capacity for `count` more of its kind."""
        here = [other for other in held if other.zone == zone]
        for resource, amount in _needs(blueprint).items():
            limit = self._capacity.get((zone, resource))
            used = sum(_needs(other).get(resource, 0) for other in here)
            if limit is not None and used + count * amount > limit:
                return False
        return True

    def consumption(self, blueprint: Blueprint) -> Usage:
        """Return the quota usage of a running instance; its disks are counted separately."""
        region, cpus = blueprint.region, float(blueprint.machine_type.cpus)
        cpu_metric = blueprint.machine_type.series.cpu_quota
        if (blueprint.spot or blueprint.is_flex_start) and self._quotas[region, "PREEMPTIBLE_CPUS"] > 0:
            cpu_metric = "PREEMPTIBLE_CPUS"
        used: Usage = {("", "CPUS_ALL_REGIONS"): cpus, (region, cpu_metric): cpus, (region, "INSTANCES"): 1.0}
        if blueprint.external:
            used[region, "IN_USE_ADDRESSES"] = 1.0
        if blueprint.local_ssds and not blueprint.machine_type.local_ssds:
            used[region, self._local_ssd_metric(blueprint)] = 375.0 * blueprint.local_ssds
        if blueprint.gpus:
            used["", "GPUS_ALL_REGIONS"] = float(blueprint.gpus)
            used[region, blueprint.gpu_metric] = float(blueprint.gpus)
        return used

    def disk_shortage(self, blueprint: Blueprint, usage: Usage) -> Failure | None:
        """Return why its disks are refused."""
        for disk in blueprint.disks:
            metric = disk_quota(disk["type"])
            limit = self._quotas[blueprint.region, metric]
            if usage.get((blueprint.region, metric), 0.0) + float(disk["sizeGb"]) > limit:
                return quota(metric, limit, blueprint.region)
        return None

    def project_shortage(self, metric: str, usage: Usage) -> Failure | None:
        """Why one more of what a quota of the project counts cannot be had."""
        limit = self._quotas["", metric]
        return quota(metric, limit, "") if usage.get(("", metric), 0.0) + 1 > limit else None

    def _is_known_room(self, blueprint: Blueprint, held: list[Blueprint], zone: str) -> bool:
        """Return whether `zone` has a limit that is not reached."""
        limited = any((zone, resource) in self._capacity for resource in _needs(blueprint))
        return limited and blueprint.machine_type.is_in(zone) and self.has_room(blueprint, held, zone)

    def _local_ssd_metric(self, blueprint: Blueprint) -> str:
        """Return the quota of its Local SSDs; that for Spot VMs is used if the project has it."""
        preemptible = "PREEMPTIBLE_LOCAL_SSD_GB"
        is_preemptible = blueprint.spot or blueprint.is_flex_start
        has_quota = is_preemptible and self._quotas[blueprint.region, preemptible] > 0
        return preemptible if has_quota else "LOCAL_SSD_TOTAL_GB"

    def _gpu_metric(self, blueprint: Blueprint) -> str:
        """Return the quota of its GPUs: only that for preemptible instances, once the project has it, if it applies.

        It applies to Spot and Flex-start VMs. Google does not document whether those that are deleted within a week
        use it first or the other one first; this is the harder variant.
        """
        if not blueprint.gpus:
            return ""
        plain = ACCELERATORS[blueprint.gpu].quota
        if not plain:
            return ""
        preemptible = f"PREEMPTIBLE_{plain}"
        short = 0 < blueprint.run_s <= LONGEST_PREEMPTIBLE_S
        is_temporary = short and blueprint.scheduling["instanceTerminationAction"] == "DELETE"
        applies = blueprint.spot or blueprint.is_flex_start or is_temporary
        return preemptible if applies and self._quotas[blueprint.region, preemptible] > 0 else plain


def disk_quota(kind: str) -> str:
    """Return the quota that a disk of that type counts against."""
    return {"pd-standard": "DISKS_TOTAL_GB", "hyperdisk-balanced": "HDB_TOTAL_GB"}.get(kind, "SSD_TOTAL_GB")


def _needs(blueprint: Blueprint) -> dict[str, int]:
    """Return the capacity that an instance takes; that of a reservation is not available to others anyway."""
    if blueprint.reservation:
        return {}
    needs = {"instances": 1}
    if blueprint.gpus:
        needs[blueprint.gpu] = blueprint.gpus
    if blueprint.spot:
        needs["spot"] = 1
    return needs
