"""Which host plays which task, and under which names people meet the tasks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import UsageError
from fleet.fleets.gpu_shares import gpu_share, moved_share
from fleet.jobs.tasks import Names, Roles, assigned, check_roles, names_of, success
from fleet.state import slots
from fleet.steps import Again, Change
from provision.model import Host
from tests.next_steps import repetition
from train.agent.protocol.cluster import cluster_spec
from train.agent.protocol.records import (
    Gpu,
    JobReport,
    JobResult,
    Log,
    Member,
    Outcome,
    Phase,
    Progress,
    SuccessPolicy,
    TaskState,
)

ALL = Roles(chief=True, ps=2, evaluator=True)
MEMBERS = [Member(f"worker-{n}", f"10.0.0.{n}", 2222 + n, 4000 + n) for n in range(4)]
ROLES = ["chief-0", "worker-0", "ps-0", ""]


def test_roles_go_by_the_order_of_the_hosts_spares_last() -> None:
    assert assigned(Roles(), 3, 1) == []
    assert assigned(Roles(tasks_per_host=2), 4, 0) == []
    assert assigned(ALL, 7, 1) == ["chief-0", "worker-0", "worker-1", "ps-0", "ps-1", "evaluator-0", ""]
    assert assigned(Roles(chief=True), 1, 0) == ["chief-0"]
    assert assigned(Roles(evaluator=True), 3, 0) == ["worker-0", "worker-1", "evaluator-0"]


@given(st.booleans(), st.integers(0, 4), st.booleans(), st.integers(1, 3), st.integers(1, 6), st.integers(0, 4))
def test_what_is_not_refused_is_a_cluster_with_a_chief_or_a_first_worker(
    chief: bool, ps: int, evaluator: bool, each: int, hosts: int, spares: int
) -> None:
    roles = Roles(chief, ps, evaluator, each)
    try:
        check_roles(roles, hosts=hosts, spares=spares)
    except UsageError:
        return
    names = assigned(roles, hosts * each, spares)
    if not names:
        return
    assert len(names) == hosts * each
    assert names.count("") == spares
    spec = cluster_spec([Member(name, "10.0.0.1", port, 0) for port, name in enumerate(names) if name])
    assert ("chief" in spec) is chief
    assert len(spec.get("ps", [])) == ps
    assert "chief" in spec or "worker" in spec
    assert not ps or {"chief", "worker"} <= set(spec)


@pytest.mark.parametrize(
    ("roles", "hosts", "says", "change"),
    [
        (Roles(ps=2), 4, "--ps 2 needs --chief", {"--chief": True}),
        (ALL, 3, "--chief --ps 2 --evaluator with a worker need 5 tasks, but there is room for 3 on 3 hosts",
         {"--tasks-per-host": "2"}),
        (Roles(evaluator=True), 1, "--evaluator with a worker needs 2 tasks, but there is room for 1 on 1 host",
         {"--tasks-per-host": "2"}),
        (Roles(chief=True, ps=4, tasks_per_host=2), 2, "room for 4 on 2 hosts with 2 tasks each",
         {"--tasks-per-host": "3"}),
    ],
)  # fmt: skip
def test_what_cannot_be_played_is_refused_with_the_way_out(
    roles: Roles, hosts: int, says: str, change: Change
) -> None:
    with pytest.raises(UsageError) as raised:
        check_roles(roles, hosts=hosts, spares=0)
    assert says in raised.value.message
    assert repetition(raised.value) == Again(change)


def test_success_where_not_said_is_that_of_whoever_ends() -> None:
    assert success(None, 0) is SuccessPolicy.ALL_WORKERS
    assert success(None, 1) is SuccessPolicy.CHIEF
    assert success("all-workers", 1) is SuccessPolicy.ALL_WORKERS
    assert success("chief", 0) is SuccessPolicy.CHIEF


# --- several tasks a host -------------------------------------------------------------------------------------------

HOST = Host("worker-0", "10.0.0.1", 22, "me", "key", "alias-0", "10.0.0.1")
GPUS = [Gpu(number, "Tesla T4", 15360, "535") for number in range(4)]


def test_the_slots_of_a_host_stand_side_by_side_in_directories_of_their_own() -> None:
    other = Host("worker-1", "10.0.0.2", 22, "me", "key", "alias-1", "10.0.0.2", root="/srv/fleet")
    assert slots([HOST, other], 1) == (HOST, other)
    placed = slots([HOST, other], 2)
    assert [(one.name, one.root, one.address, one.key_alias) for one in placed] == [
        ("worker-0", ".fleet/slot-0", "10.0.0.1", "alias-0"),
        ("worker-1", ".fleet/slot-1", "10.0.0.1", "alias-0"),
        ("worker-2", "/srv/fleet/slot-0", "10.0.0.2", "alias-1"),
        ("worker-3", "/srv/fleet/slot-1", "10.0.0.2", "alias-1"),
    ]


def test_gpus_are_split_evenly_or_not_at_all() -> None:
    shares = [gpu_share(GPUS, slot, 2, ())["CUDA_VISIBLE_DEVICES"] for slot in range(2)]
    assert shares == ["0,1", "2,3"]
    assert gpu_share(GPUS, 0, 1, ()) == {}
    assert gpu_share([], 0, 2, ()) == {}
    assert gpu_share(GPUS, 0, 3, ["CUDA_VISIBLE_DEVICES"]) == {}
    with pytest.raises(UsageError, match="4 GPUs cannot be split evenly among 3 tasks"):
        gpu_share(GPUS, 0, 3, ())
    with pytest.raises(UsageError, match="1 GPU cannot be split"):
        gpu_share(GPUS[:1], 0, 2, ())


def test_who_takes_a_place_gets_its_own_part_of_the_gpus_and_what_the_user_said_stays() -> None:
    told = {"A": "1", "CUDA_VISIBLE_DEVICES": "0,1"}
    assert moved_share(told, GPUS, ("worker-0", "worker-3"), 2) == {"A": "1", "CUDA_VISIBLE_DEVICES": "2,3"}
    users = {"CUDA_VISIBLE_DEVICES": "3"}
    assert moved_share(users, GPUS, ("worker-0", "worker-3"), 2) == users
    assert moved_share({"A": "1"}, GPUS, ("worker-0", "worker-1"), 1) == {"A": "1"}


# --- names ----------------------------------------------------------------------------------------------------------


def test_without_roles_everything_has_the_name_of_its_host() -> None:
    names = names_of(MEMBERS, [], {})
    state = TaskState("worker-2", 2, Phase.RUNNING, 1.0, role="worker-1")
    assert names.renamed("worker-2", state) is state
    assert names.members(MEMBERS) == tuple(MEMBERS)
    assert names.hosts() == {}
    assert (names.of("worker-1"), names.host_of("worker-1")) == ("worker-1", "worker-1")


def test_what_hosts_tell_has_the_name_of_its_role() -> None:
    names = names_of(MEMBERS, ROLES, {})
    assert [member.task for member in names.members(MEMBERS)] == ["chief-0", "worker-0", "ps-0", "worker-3"]
    assert names.hosts() == {
        "chief-0": "worker-0",
        "worker-0": "worker-1",
        "ps-0": "worker-2",
        "worker-3": "worker-3",
    }
    assert names.renamed("worker-1", Log("worker-1", 1, 0, 3)) == Log("worker-0", 1, 0, 3)
    assert names.renamed("worker-0", Progress("worker-0", 1, 1.0)) == Progress("chief-0", 1, 1.0)
    state = TaskState("worker-2", 1, Phase.RUNNING, 1.0, role="ps-0")
    assert names.renamed("worker-2", state) == TaskState("ps-0", 1, Phase.RUNNING, 1.0, host="worker-2")
    word = JobResult("j", 1, Outcome.LOST, 0.0, "worker-2", "the agent that looked after worker-2 is gone")
    renamed = names.renamed("worker-2", word)
    assert isinstance(renamed, JobResult)
    assert renamed.first_failed_task == "ps-0"
    agreed = word._replace(outcome=Outcome.FAILED, first_failed_task="worker-0")
    assert names.renamed("worker-0", agreed) is agreed, "the gang told it under the names of the roles"


def test_a_role_that_another_host_took_over_is_found_there_whatever_is_told_late() -> None:
    names = names_of(MEMBERS, ROLES, {})
    names.renamed("worker-3", TaskState("worker-3", 2, Phase.WAITING, 1.0, role="ps-0"))
    names.renamed("worker-2", TaskState("worker-2", 1, Phase.EXITED, 1.0, role="ps-0"))
    assert names.host_of("ps-0") == "worker-3"
    names.renamed("worker-1", TaskState("worker-1", 2, Phase.WAITING, 1.0))
    assert names.of("worker-1") == "worker-1", "a role may be that of the name"


def test_names_begin_with_what_reports_tell() -> None:
    def report(task: str, attempt: int, role: str) -> JobReport:
        return JobReport("j", "f", task, attempt, Phase.RUNNING, True, 0.0, [], MEMBERS, 0, role=role, roles=ROLES)

    reports = {
        "worker-2": report("worker-2", 1, "ps-0"),
        "worker-3": report("worker-3", 2, "ps-0"),
    }
    names = names_of(MEMBERS, ROLES, reports)
    assert names.host_of("ps-0") == "worker-3"
    assert names.of("worker-0") == "chief-0"
    assert Names().of("worker-7") == "worker-7"
