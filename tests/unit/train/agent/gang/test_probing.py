"""The pairs of tasks that are probed, and what a sample of the pairs still shows."""

from __future__ import annotations

import math

import pytest

from train.agent.gang.probing import ALL_PAIRS_MAX, probe_targets, probed_tasks
from train.agent.gang.readiness import TIMED_OUT, Readiness, ReadinessFacts, verdict
from train.agent.protocol.cluster import by_rank
from train.agent.protocol.records import Member

FACTS = ReadinessFacts({"python": "3.11.7", "tensorflow": "2.21.0"}, [], 1 << 40)


def gang(workers: int, servers: int = 0) -> list[Member]:
    tasks = [*(["chief-0"] if servers else []), *(f"worker-{index}" for index in range(workers))]
    tasks += [f"ps-{index}" for index in range(servers)]
    return by_rank(
        [Member(f"slot-{at}", task, f"10.0.{at >> 8}.{at & 255}", 2222, 4000) for at, task in enumerate(tasks)]
    )


def judged(members: list[Member], broken: set[tuple[str, str]]) -> Readiness:
    """Return the verdict on what the members probe, if some pairs are broken."""
    slots = {member.task: member.slot for member in members}
    pairs = {
        (member.task, target.task): TIMED_OUT if (member.task, target.task) in broken else ""
        for member in members
        for target in probe_targets(members, slots[member.task])
    }
    return verdict(members, dict.fromkeys(slots, FACTS), pairs)


@pytest.mark.parametrize("count", [1, 2, 8, ALL_PAIRS_MAX])
def test_all_pairs_of_a_small_gang_are_probed(count: int) -> None:
    members = gang(count)
    for member in members:
        assert probe_targets(members, member.slot) == tuple(other for other in members if other is not member)
    assert probe_targets(members, "spare") == ()


@pytest.mark.parametrize("count", [33, 48, 64, 100, 256, 1000])
def test_probes_of_a_large_gang_grow_with_the_logarithm_and_cover_the_ring(count: int) -> None:
    members = gang(count)
    probed = probed_tasks(members)
    bound = 2 * math.ceil(math.log2(count)) + 1
    probers: dict[str, int] = dict.fromkeys(probed, 0)
    for at, member in enumerate(members):
        targets = [target.task for target in probe_targets(members, member.slot)]
        assert probed[member.task] == targets
        assert member.task not in targets
        neighbours = {members[(at + 1) % count].task, members[at - 1].task, members[0].task} - {member.task}
        assert neighbours <= set(targets)
        assert len(targets) <= bound or at == 0
        for target in targets:
            probers[target] += 1
    assert min(probers.values()) >= math.floor(math.log2(count))


def test_parameter_servers_and_the_chief_are_probed_by_all_and_probe_all() -> None:
    members = gang(60, servers=3)
    probed = probed_tasks(members)
    for hub in ("chief-0", "ps-0", "ps-1", "ps-2"):
        assert len(probed[hub]) == len(members) - 1
        assert all(hub in targets for task, targets in probed.items() if task != hub)


def test_a_blocked_host_of_a_large_gang_is_named() -> None:
    members = gang(64)
    assert judged(members, set()) == Readiness((), (), "")
    to_it = {(member.task, "worker-40") for member in members}
    (text,), first = judged(members, to_it)[0], judged(members, to_it).first_failed_task
    assert first == "worker-40"
    assert text.startswith("none of the others that were tried (")
    assert "can reach worker-40 at 10.0.0.40:2222: timed out; open TCP port 2222" in text

    from_it = {("worker-40", member.task) for member in members}
    (text,), first = judged(members, from_it)[0], judged(members, from_it).first_failed_task
    assert first == "worker-40"
    assert text.startswith("worker-40 (10.0.0.40) can reach none of the others that were tried (")


def test_a_network_without_any_connection_is_one_problem() -> None:
    members = gang(64)
    every = {(a.task, b.task) for a in members for b in members}
    (text,) = judged(members, every).problems
    assert text.startswith("no host can reach another (worker-0 at 10.0.0.0:2222")
