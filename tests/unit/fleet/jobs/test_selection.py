"""References to jobs on the command line."""

from __future__ import annotations

import pytest

from fleet.errors import NotFoundError, UsageError
from fleet.jobs.selection import NamedJob, name_jobs, select_job

OLD, MIDDLE, NEW = "20261120-080000-aaaa", "20261121-090000-bbbb", "20261121-100000-cccc"
JOBS = (NamedJob(NEW, "wide"), NamedJob(MIDDLE, "baseline"), NamedJob(OLD))


@pytest.mark.parametrize(
    ("reference", "message", "hint"),
    [
        ("bse", "fleet 'demo' has no job 'bse'", "did you mean baseline?"),
        ("20261122", "fleet 'demo' has no job '20261122'", ""),
        ("bbbb", "fleet 'demo' has no job 'bbbb'", f"did you mean {MIDDLE}?"),
        ("-4", "fleet 'demo' has no job -4: it has 3 jobs", ""),
    ],
)
def test_an_unknown_job_names_the_nearest_one(reference: str, message: str, hint: str) -> None:
    with pytest.raises(NotFoundError) as caught:
        select_job(reference, JOBS, "demo")
    assert (caught.value.message, caught.value.hint) == (message, hint)
    assert [step.text() for step in caught.value.next_steps] == ["fleet jobs"]  # type: ignore[union-attr]


def test_a_reference_that_means_several_jobs_lists_them() -> None:
    with pytest.raises(UsageError) as caught:
        select_job("20261121", JOBS, "demo")
    assert caught.value.message == "the IDs of 2 jobs begin with '20261121'"
    assert caught.value.cause == f"they are {NEW}, {MIDDLE}"
    same = [NamedJob(f"20261121-10000{at}-aaaa", "wide") for at in range(7)]
    with pytest.raises(UsageError, match="7 jobs have the name 'wide'") as caught:
        select_job("wide", same, "demo")
    assert caught.value.cause.endswith("20261121-100004-aaaa, and 2 more")
    assert select_job("-7", same, "demo") == "20261121-100006-aaaa"


def test_a_job_of_a_minority_of_the_hosts_does_not_count_for_numbers() -> None:
    hosts = [(f"worker-{at}", OLD, "base") for at in range(3)]
    jobs = name_jobs([("worker-2", "99999999-999999-evil", ""), *hosts])
    assert jobs == (NamedJob("99999999-999999-evil", "", False), NamedJob(OLD, "base"))
    assert select_job("-1", jobs, "demo") == OLD
    assert select_job("9", jobs, "demo") == "99999999-999999-evil"
