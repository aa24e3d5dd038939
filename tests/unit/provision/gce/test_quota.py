"""The quotas that are checked, and the messages about exceeded ones."""

from __future__ import annotations

import pytest
from google.cloud import compute_v1
from hypothesis import given
from hypothesis import strategies as st

from provision.gce.catalog.machines import resolved
from provision.gce.diagnosis import Diagnosis, Scope
from provision.gce.options import GceOptions
from provision.gce.quota import problems
from provision.provider import ErrorKind
from tests.next_steps import command_lines

DAY_S = 86400


def problems_of(
    cloud: GceOptions, count: int, region: dict[str, tuple[float, float]], project: dict[str, tuple[float, float]]
) -> list[Diagnosis]:
    return problems(resolved(cloud), count, listed(region), listed(project), "us-central1", "proj-1")


def listed(quotas: dict[str, tuple[float, float]]) -> list[compute_v1.Quota]:
    return [compute_v1.Quota(metric=metric, limit=limit, usage=usage) for metric, (limit, usage) in quotas.items()]


PLENTY = {
    "NVIDIA_T4_GPUS": (16.0, 0.0),
    "PREEMPTIBLE_NVIDIA_T4_GPUS": (16.0, 0.0),
    "CPUS": (72.0, 0.0),
    "INSTANCES": (100.0, 0.0),
    "IN_USE_ADDRESSES": (69.0, 0.0),
    "SSD_TOTAL_GB": (500.0, 0.0),
    "DISKS_TOTAL_GB": (4096.0, 0.0),
}
PROJECT = {"GPUS_ALL_REGIONS": (16.0, 0.0), "CPUS_ALL_REGIONS": (100.0, 0.0)}


def test_sufficient_quota_is_no_problem() -> None:
    assert problems_of(GceOptions(gpu="t4"), 4, PLENTY, PROJECT) == []
    assert problems_of(GceOptions(gpu="t4"), 0, dict.fromkeys(PLENTY, (0.0, 5.0)), PROJECT) == []


def test_quotas_that_are_not_listed_have_room() -> None:
    assert problems_of(GceOptions(gpu="t4"), 1000, {}, {}) == []


def test_a_new_project_has_no_gpus_in_any_region() -> None:
    [problem] = problems_of(GceOptions(gpu="t4"), 2, PLENTY, {"GPUS_ALL_REGIONS": (0.0, 0.0)})
    assert (problem.kind.value, problem.scope) == ("quota", Scope.EVERYTHING)
    assert problem.message == (
        "the quota GPUS_ALL_REGIONS of project proj-1 is 0 in all regions together; 2 more needed"
    )
    assert problem.hint.startswith(
        "request more GPUS_ALL_REGIONS at https://console.cloud.google.com/iam-admin/quotas?project=proj-1; "
    )
    assert "free trial" in problem.hint


@pytest.mark.parametrize(
    ("metric", "cloud", "limit", "usage", "words"),
    [
        (
            "NVIDIA_T4_GPUS",
            GceOptions(gpu="t4", max_duration_s=0),
            1,
            0,
            "allows 1 in us-central1, 0 in use; 2 more needed",
        ),
        ("CPUS", GceOptions(gpu="t4"), 24, 20, "allows 24 in us-central1, 20 in use; 8 more needed"),
        ("CPUS", GceOptions(machine_type="e2-standard-4"), 7, 0, "CPUS"),
        ("N2_CPUS", GceOptions(machine_type="n2-standard-4"), 7, 0, "N2_CPUS"),
        (
            "IN_USE_ADDRESSES",
            GceOptions(),
            8,
            7,
            "allows 8 in us-central1, 7 in use; 2 more",
        ),
        ("INSTANCES", GceOptions(), 24, 23, "allows 24"),
        (
            "SSD_TOTAL_GB",
            GceOptions(disk_gb=300),
            500,
            0,
            "allows 500 in us-central1, 0 in use; 600 more",
        ),
        ("LOCAL_SSD_TOTAL_GB", GceOptions(local_ssds=4), 2900, 0, "3000 more needed"),
        ("SSD_TOTAL_GB", GceOptions(disk_gb=300, disk_type="pd-ssd"), 500, 0, "600 more needed"),
        ("DISKS_TOTAL_GB", GceOptions(disk_gb=300, disk_type="pd-standard"), 500, 0, "600 more needed"),
    ],
)
def test_a_quota_of_the_region(metric: str, cloud: GceOptions, limit: float, usage: float, words: str) -> None:
    [problem] = problems_of(cloud, 2, {**PLENTY, metric: (limit, usage)}, PROJECT)
    assert (problem.kind.value, problem.scope) == ("quota", Scope.REGION)
    assert problem.message.startswith(f"the quota {metric} of project proj-1 allows ")
    assert words in problem.message
    assert f"{metric} in us-central1 at https://" in problem.hint


def test_gpus_are_counted_by_instance() -> None:
    assert problems_of(GceOptions(gpu="t4", gpus=4), 4, PLENTY, PROJECT) == []
    [problem] = problems_of(GceOptions(gpu="t4", gpus=4), 4, PLENTY, {"GPUS_ALL_REGIONS": (15, 0)})
    assert "16 more needed" in problem.message


def test_without_external_addresses_none_are_needed() -> None:
    assert problems_of(GceOptions(external=False), 2, {**PLENTY, "IN_USE_ADDRESSES": (0, 0)}, PROJECT) == []


@pytest.mark.parametrize(
    ("spot", "duration_s", "usual", "preemptible", "ok"),
    [
        (False, 7 * DAY_S, 0, 2, True),  # deleted within a week: either quota is used
        (False, 7 * DAY_S, 2, 0, True),
        (False, 7 * DAY_S, 1, 1, False),
        (False, 7 * DAY_S + 1, 0, 2, False),
        (False, 0, 0, 2, False),
        (False, 0, 2, 0, True),
        (True, DAY_S, 0, 2, True),
        (True, DAY_S, 2, 0, True),  # preemptible quota was never granted
        (True, DAY_S, 2, 1, False),  # once it was, the other one does not count
        (True, DAY_S, 8, 1, False),
        (True, 0, 1, 1, False),
    ],
)
def test_which_gpu_quota_counts(spot: bool, duration_s: int, usual: int, preemptible: int, ok: bool) -> None:
    quotas = {**PLENTY, "NVIDIA_T4_GPUS": (usual, 0.0), "PREEMPTIBLE_NVIDIA_T4_GPUS": (preemptible, 0.0)}
    problem = problems_of(GceOptions(gpu="t4", spot=spot, max_duration_s=duration_s), 2, quotas, PROJECT)
    assert (problem == []) is ok


def test_both_gpu_quotas_are_reported_if_both_are_too_small() -> None:
    quotas = {**PLENTY, "NVIDIA_T4_GPUS": (1.0, 1.0), "PREEMPTIBLE_NVIDIA_T4_GPUS": (0.0, 0.0)}
    [problem] = problems_of(GceOptions(gpu="t4", max_duration_s=DAY_S), 2, quotas, PROJECT)
    assert "the quota NVIDIA_T4_GPUS of" in problem.message
    assert problem.cause == "PREEMPTIBLE_NVIDIA_T4_GPUS is too small as well (limit 0)"
    [problem] = problems_of(GceOptions(gpu="t4", spot=True), 2, quotas, PROJECT)
    assert "the quota PREEMPTIBLE_NVIDIA_T4_GPUS of" in problem.message


def test_spot_uses_the_vcpus_for_spot_where_there_are_any() -> None:
    cloud = GceOptions(spot=True, machine_type="n1-standard-8")
    assert problems_of(cloud, 2, {**PLENTY, "CPUS": (0, 0), "PREEMPTIBLE_CPUS": (16, 0)}, PROJECT) == []
    assert problems_of(cloud, 2, {**PLENTY, "CPUS": (16, 0), "PREEMPTIBLE_CPUS": (0, 0)}, PROJECT) == []
    assert len(problems_of(cloud, 2, {**PLENTY, "CPUS": (15, 0), "PREEMPTIBLE_CPUS": (0, 0)}, PROJECT)) == 1
    [problem] = problems_of(cloud, 2, {**PLENTY, "CPUS": (72, 0), "PREEMPTIBLE_CPUS": (8, 0)}, PROJECT)
    assert "the quota PREEMPTIBLE_CPUS of project proj-1 allows 8" in problem.message


@pytest.mark.parametrize(("preemptible", "ok"), [(0, True), (375, False), (750, True)])
def test_local_ssds_of_spot_vms_use_their_quota_once_there_is_one(preemptible: int, ok: bool) -> None:
    quotas = {**PLENTY, "LOCAL_SSD_TOTAL_GB": (7500.0, 0.0), "PREEMPTIBLE_LOCAL_SSD_GB": (preemptible, 0.0)}
    assert (problems_of(GceOptions(spot=True, local_ssds=1), 2, quotas, PROJECT) == []) is ok
    assert problems_of(GceOptions(local_ssds=1), 2, quotas, PROJECT) == []


def test_both_quotas_are_requested_if_it_is_unknown_which_one_counts() -> None:
    quotas = {**PLENTY, "NVIDIA_T4_GPUS": (1.0, 0.0), "PREEMPTIBLE_NVIDIA_T4_GPUS": (1.0, 0.0)}
    [problem] = problems_of(GceOptions(gpu="t4"), 2, quotas, PROJECT)
    lines = command_lines(problem).splitlines()
    assert [line.split("--quota-id ")[1].split()[0] for line in lines] == [
        "NVIDIA-T4-GPUS-per-project-region",
        "PREEMPTIBLE-NVIDIA-T4-GPUS-per-project-region",
    ]
    assert all("--preferred-value 2 " in line for line in lines)
    for cloud in (GceOptions(gpu="t4", spot=True), GceOptions(gpu="t4", max_duration_s=8 * DAY_S)):
        [problem] = problems_of(cloud, 2, quotas, PROJECT)
        assert len(command_lines(problem).splitlines()) == 1


def test_vcpus_of_all_regions() -> None:
    [problem] = problems_of(GceOptions(), 4, PLENTY, {"CPUS_ALL_REGIONS": (12, 4)})
    assert problem.scope is Scope.EVERYTHING
    assert "CPUS_ALL_REGIONS" in problem.message


@given(
    st.integers(1, 50),
    st.sampled_from(
        [GceOptions(), GceOptions(gpu="t4"), GceOptions(gpu="l4", spot=True), GceOptions(gpu="v100", gpus=8)]
    ),
    st.dictionaries(st.sampled_from([*PLENTY, "G2_CPUS"]), st.tuples(st.integers(0, 60), st.integers(0, 60))),
)
def test_what_is_enough_stays_enough(count: int, cloud: GceOptions, quotas: dict[str, tuple[float, float]]) -> None:
    for problem in problems_of(cloud, count, quotas, PROJECT):
        assert problem.kind is ErrorKind.QUOTA
    smaller = {problem.message.split()[2] for problem in problems_of(cloud, count, quotas, PROJECT)}
    raised = {metric: (limit + 1000 * count, usage) for metric, (limit, usage) in quotas.items()}
    assert problems_of(cloud, count, raised, {}) == []
    assert smaller <= set(quotas) | set(PROJECT)
