"""The quotas that are checked, and the messages about exceeded ones."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from google.cloud import compute_v1

from provision.gce.catalog.machines import resolved
from provision.gce.diagnosis import Diagnosis, Scope
from provision.gce.options import GceOptions
from provision.gce.quota import Quotas

DAY_S = 86400
Amounts = Mapping[str, tuple[float, float]]
PLENTY: Amounts = {
    **dict.fromkeys(("NVIDIA_T4_GPUS", "PREEMPTIBLE_NVIDIA_T4_GPUS"), (16.0, 0.0)),
    "CPUS": (72.0, 0.0),
    "INSTANCES": (100.0, 0.0),
    "IN_USE_ADDRESSES": (69.0, 0.0),
    "SSD_TOTAL_GB": (500.0, 0.0),
    "DISKS_TOTAL_GB": (4096.0, 0.0),
}
PROJECT: Amounts = {"GPUS_ALL_REGIONS": (16.0, 0.0), "CPUS_ALL_REGIONS": (100.0, 0.0)}


def problems_of(
    cloud: GceOptions, count: int, changed: Amounts, project: Amounts = PROJECT, *, usual: Amounts = PLENTY
) -> list[Diagnosis]:
    region = compute_v1.Region(name="us-central1", quotas=listed({**usual, **changed}))
    quotas = Quotas("proj-1", compute_v1.Project(quotas=listed(project)), [region])
    return quotas.problems(resolved(cloud), count, "us-central1")


def listed(quotas: Amounts) -> list[compute_v1.Quota]:
    return [compute_v1.Quota(metric=metric, limit=limit, usage=usage) for metric, (limit, usage) in quotas.items()]


def test_sufficient_quotas_and_those_that_are_not_listed_have_room() -> None:
    assert problems_of(GceOptions(gpu="t4"), 4, {}) == []
    assert problems_of(GceOptions(gpu="t4"), 1000, {}, {}, usual={}) == []
    assert problems_of(GceOptions(external=False), 2, {"IN_USE_ADDRESSES": (0, 0)}) == []


@pytest.mark.parametrize(
    ("metric", "cloud", "limit", "words"),
    [
        ("NVIDIA_T4_GPUS", GceOptions(gpu="t4", max_duration_s=0), (1, 0), "1 in us-central1, 0 in use; 2 more"),
        ("CPUS", GceOptions(gpu="t4"), (24, 20), "24 in us-central1, 20 in use; 8 more needed"),
        ("CPUS", GceOptions(machine_type="e2-standard-4"), (7, 0), "8 more"),
        ("N2_CPUS", GceOptions(machine_type="n2-standard-4"), (7, 0), "8 more"),
        ("IN_USE_ADDRESSES", GceOptions(), (8, 7), "8 in us-central1, 7 in use; 2 more"),
        ("LOCAL_SSD_TOTAL_GB", GceOptions(local_ssds=4), (2900, 0), "3000 more needed"),
        ("SSD_TOTAL_GB", GceOptions(disk_gb=300, disk_type="pd-ssd"), (500, 0), "600 more needed"),
    ],
)
def test_a_quota_of_the_region(metric: str, cloud: GceOptions, limit: tuple[float, float], words: str) -> None:
    [problem] = problems_of(cloud, 2, {metric: limit})
    assert (problem.kind.value, problem.scope) == ("quota", Scope.REGION)
    assert problem.message.startswith(f"the quota {metric} of project proj-1 allows ")
    assert words in problem.message
    assert f"{metric} in us-central1 at https://" in problem.hint


@pytest.mark.parametrize(
    ("spot", "duration_s", "usual", "preemptible", "ok"),
    [
        (False, 7 * DAY_S, 0, 2, True),  # deleted within a week: either quota is used
        (False, 7 * DAY_S, 1, 1, False),
        (False, 7 * DAY_S + 1, 0, 2, False),
        (True, DAY_S, 0, 2, True),
        (True, DAY_S, 2, 0, True),  # preemptible quota was never granted
        (True, DAY_S, 2, 1, False),  # once it was, the other one does not count
    ],
)
def test_which_gpu_quota_counts(spot: bool, duration_s: int, usual: int, preemptible: int, ok: bool) -> None:
    quotas = {"NVIDIA_T4_GPUS": (usual, 0.0), "PREEMPTIBLE_NVIDIA_T4_GPUS": (preemptible, 0.0)}
    problem = problems_of(GceOptions(gpu="t4", spot=spot, max_duration_s=duration_s), 2, quotas)
    assert (problem == []) is ok
