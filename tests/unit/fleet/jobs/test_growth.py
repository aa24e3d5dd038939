"""Slots that may join a running job, and slots that have joined it."""

from __future__ import annotations

import pytest

from fleet.errors import UsageError
from fleet.jobs.policy import allowed_tasks, check_growth
from fleet.jobs.tasks import all_members, joining_hosts
from provision.local.options import LocalOptions
from tests.next_steps import repetition
from train.agent.protocol.records import JobReport, Member, Phase, Replication


def member(index: int, task: str = "") -> Member:
    return Member(f"worker-{index}", task, f"10.0.0.{index}", 2222, 4000)


OLD = [member(0, "worker-0"), member(1, "worker-1")]


def report(slot: str, task: str, members: list[Member], *, alive: bool = True) -> JobReport:
    common = ("job", "fleet", slot, task, 1, Phase.RUNNING, alive, 0.0, ["python"], members, 0)
    return JobReport(*common, joinable=["worker-2", "worker-3"], max_workers=4)


REPORTS = {
    "worker-0": report("worker-0", "worker-0", OLD),
    "worker-1": report("worker-1", "worker-1", OLD),
    "worker-2": report("worker-2", "", [*OLD, member(2)]),
    "worker-3": report("worker-3", "", [*OLD, member(3)], alive=False),
}


def test_slots_that_joined_are_members_of_the_job() -> None:
    members = all_members(REPORTS["worker-0"], REPORTS)
    assert [entry.slot for entry in members] == ["worker-0", "worker-1", "worker-2", "worker-3"]
    assert [entry.task for entry in members] == ["worker-0", "worker-1", "", ""]
    assert joining_hosts(REPORTS["worker-0"], list(REPORTS.values())) == ("worker-2",)
    stranger = {"worker-9": report("worker-9", "", [*OLD, member(9)])}
    assert all_members(REPORTS["worker-0"], stranger) == tuple(OLD)


def test_hosts_may_report_on_workers_up_to_the_limit() -> None:
    assert allowed_tasks(OLD, 4) == {f"worker-{index}" for index in range(4)}
    assert allowed_tasks(OLD, None) == {"worker-0", "worker-1"}
    assert allowed_tasks([], 4) == set()


@pytest.mark.parametrize(
    ("replication", "says"),
    [(Replication("gs://bucket/ckpt", 0.0), "is a URL"), (Replication(mib_s=0.0), "--checkpoint-bandwidth 0")],
)
def test_growth_needs_checkpoints_that_the_hosts_replicate(replication: Replication, says: str) -> None:
    with pytest.raises(UsageError, match=says) as raised:
        check_growth(4, LocalOptions(), replication)
    assert repetition(raised.value)
    check_growth(0, LocalOptions(), replication)
    check_growth(4, LocalOptions(), Replication())
