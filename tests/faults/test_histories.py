"""Play random histories of faults in simulated time, each from a seed; `./scripts/soak standins` plays others."""

from __future__ import annotations

import random

import pytest

from tests.faults.simulation import BrokenPropertyError, Host, World
from train.agent.gang.election import StopRequested
from train.agent.protocol.records import Exit, OnHang, Outcome, Policy, ReasonKind, RestartPolicy, SuccessPolicy

GROUP = 50


def policy_of(chance: random.Random, count: int) -> Policy:
    return Policy(
        restart=chance.choice([*[RestartPolicy.ON_FAILURE] * 4, RestartPolicy.EXIT_CODE, RestartPolicy.NEVER]),
        restarts=chance.choice([0, 1, 3, 8]),
        success=chance.choice([*[SuccessPolicy.ALL_WORKERS] * 3, SuccessPolicy.CHIEF]),
        min_workers=chance.choice([0, 0, max(1, count - 1), count // 2 + 1]),
        host_timeout_s=chance.choice([5.0, 40.0]),
        timeout_s=chance.choice([0.0, 0.0, 0.0, 45.0]),
        hang_timeout_s=20.0,
        on_hang=chance.choice([OnHang.RESTART, OnHang.RESTART, OnHang.REPORT]),
        preemptions=chance.choice([0, 0, 0, 1, -1]),
    )


def inject(world: World, chance: random.Random) -> None:
    host = chance.choice(list(world.hosts.values()))
    kind = chance.randrange(14)
    if kind in (7, 8, 9, 10):
        cut(world, host, chance)
    elif kind in (0, 1):
        world.kill_task(host, chance.choice([Exit(signal=9), Exit(code=1), Exit(signal=11), Exit(code=137)]))
    elif kind == 2:
        world.freeze_task(host)
    elif kind in (3, 4):
        world.kill_supervisor(host)
    elif kind == 5:
        world.freeze_supervisor(host)
    elif kind == 6 and sum(peer.up for peer in world.hosts.values()) > 1:
        world.kill_host(host)
    elif kind == 12 or (kind == 13 and not host.up):
        world.preempt(host, chance.choice([5.0, 40.0])) if host.up else world.replace(host)
    elif kind == 11 and chance.random() < 0.3:
        world.feed(host, StopRequested(5.0))


def cut(world: World, host: Host, chance: random.Random) -> None:
    """Drop all packets between two hosts, or between one host and all others, for a random time."""
    others = [other for other in world.hosts.values() if other is not host]
    if others and chance.random() < 0.5:
        others = [chance.choice(others)]
    seconds = chance.choice([0.5, 2.0, 5.0, 12.0, 15.0, 30.0, 60.0, 90.0])
    for other in others:
        world.block(host.name, other.name, seconds)


ROLES = [
    ("chief-0", "worker-0", "ps-0"),
    ("chief-0", "worker-0", "worker-1", "ps-0", "ps-1"),
    ("chief-0", "worker-0", "worker-1", "ps-0", ""),
    ("chief-0", "worker-0", "evaluator-0"),
    ("worker-0", "worker-1", "evaluator-0", ""),
    ("chief-0", "worker-0", "ps-0", "evaluator-0"),
]


KINDS = {"faults": 3, "roles": 2, "queued": 1}
"""Kinds of histories, and the groups of each that the test command plays."""


def play(seed: int, kind: str = "faults") -> World:
    """Play a job of workers (`faults`), of several task types (`roles`), or one that waits for another (`queued`)."""
    chance = random.Random(f"{kind} {seed}")
    count = chance.choice([1, 2, 2, 3, 3, 4, 5])
    roles = chance.choice(ROLES) if kind == "roles" else ()
    spares = roles.count("") if roles else int(count > 2 and chance.random() < 0.3)
    workers = sum(role.startswith("worker") for role in roles) or count - spares
    policy = policy_of(chance, workers)
    if any(role.startswith("ps") for role in roles):
        policy = policy._replace(success=SuccessPolicy.CHIEF)
    queued_s = chance.choice([0.1, 5.0, 100.0, 1000.0]) if kind == "queued" else 0.0
    world = World(seed, len(roles) or count, policy, spares, roles, queued_s=queued_s)
    pauses_s = [1.0, 5.0, queued_s] if queued_s else [0.05, 0.3, 1.0, 5.0, 20.0]  # faults around its turn, too
    for _ in range(chance.choice([0, 1, 1, 2, 3, 6])):
        world.run(chance.choice(pauses_s) * chance.random())
        inject(world, chance)
    world.run(7200.0)
    world.check_end()
    return world


@pytest.mark.parametrize(
    ("kind", "group"), [*(("faults", n) for n in range(3)), ("roles", 0), ("roles", 1), ("queued", 0)]
)
def test_every_history_keeps_the_promises_of_the_gang(kind: str, group: int) -> None:
    outcomes = set()
    for seed in range(group * GROUP, (group + 1) * GROUP):
        try:
            world = play(seed, kind)
        except BrokenPropertyError as broken:
            raise AssertionError(f"seed {seed}: {broken}") from broken
        outcomes |= {host.result.outcome for host in world.hosts.values() if host.result is not None}
    assert {Outcome.SUCCEEDED, Outcome.FAILED} <= outcomes


@pytest.mark.parametrize("seed", range(20))
def test_a_lost_evaluator_costs_nothing(seed: int) -> None:
    chance = random.Random(seed)
    roles = ("chief-0", "worker-0", "evaluator-0")
    world = World(seed, 3, Policy(), tasks=roles)
    world.ports_taken = 0.0
    world.run(chance.uniform(2.0, 4.0))
    evaluator = world.hosts["worker-2"]
    if evaluator.task is None or not evaluator.task.gone or world.over:
        return
    (world.kill_host if chance.random() < 0.5 else world.freeze_task)(evaluator)
    world.run(600.0)
    world.check_end()
    results = [host.result for host in world.hosts.values() if host.up]
    assert all(
        result is not None and (result.outcome, result.attempt) == (Outcome.SUCCEEDED, 1) for result in results
    )


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("fault", ["supervisor", "stopped", "task", "short cut"])
def test_a_single_fault_that_passes_costs_one_attempt_at_most(fault: str, seed: int) -> None:
    chance = random.Random(seed)
    world = World(seed, 3, Policy(restarts=5))
    world.run(chance.uniform(0.0, 5.0))
    host = chance.choice(list(world.hosts.values()))
    if fault == "supervisor":
        world.kill_supervisor(host)
    elif fault == "stopped":
        world.freeze_supervisor(host)
    elif fault == "task":
        world.kill_task(host, Exit(signal=9))
    else:
        for peer in world.hosts.values():
            if peer is not host:
                world.block(host.name, peer.name, 5.0)
    world.run(600.0)
    world.check_end()
    results = [peer.result for peer in world.hosts.values()]
    begun = any(peer.ends for peer in world.hosts.values())
    assert all(result is not None and result.outcome is Outcome.SUCCEEDED for result in results) or not begun


@pytest.mark.parametrize("seed", range(60))
def test_a_spot_job_survives_what_the_cloud_takes_and_gives_back(seed: int) -> None:
    """The job does not use its restarts, whichever hosts are taken, with or without notice, if one host is left."""
    chance = random.Random(seed)
    restart = chance.choice(list(RestartPolicy))
    world = World(seed, chance.choice([2, 3, 4]), Policy(restart=restart, preemptions=-1, host_timeout_s=600.0))
    world.ports_taken = 0.0
    world.run(5.0)
    for _ in range(chance.choice([1, 2, 3])):
        host = chance.choice(list(world.hosts.values()))
        if chance.random() < 0.5:
            world.preempt(host, back_s := chance.choice([5.0, 60.0]))
            world.run(30.0 + back_s + 1.0)
        else:
            world.kill_host(host)
            world.run(chance.choice([5.0, 60.0]))
            world.replace(host)
        world.run(chance.choice([20.0, 60.0]))
    world.run(3600.0)
    world.check_end()
    results = [peer.result for peer in world.hosts.values() if peer.up]
    assert results
    story = "\n".join(world.trace)
    assert all(result is not None and result.outcome is Outcome.SUCCEEDED for result in results), story


@pytest.mark.parametrize("seed", range(50))
def test_no_task_outlives_the_lifetime_of_its_host_whatever_fails(seed: int) -> None:
    chance = random.Random(f"lifetime {seed}")
    count = chance.choice([1, 2, 3, 4])
    world = World(seed, count, policy_of(chance, count)._replace(restarts=8))
    world.work_s = 3600.0
    world.run(chance.choice([0.1, 5.0, 30.0]))
    world.end_lifetime(chance.choice([20.0, 100.0, 300.0, 900.0]))
    for _ in range(chance.choice([0, 1, 2, 4])):
        world.run(chance.choice([1.0, 20.0, 60.0]) * chance.random())
        inject(world, chance)
    world.run(7200.0)
    world.check_end()


@pytest.mark.parametrize("seed", range(25))
def test_the_newest_checkpoint_is_on_all_hosts_when_their_lifetime_ends(seed: int) -> None:
    chance = random.Random(f"saved {seed}")
    world = World(seed, chance.choice([2, 3, 4]), Policy(restarts=3))
    world.ports_taken, world.work_s = 0.0, 7200.0
    world.end_lifetime(chance.uniform(300.0, 900.0))
    if is_extended := chance.random() < 0.5:
        world.run(chance.uniform(1.0, 200.0))
        world.end_lifetime(chance.uniform(900.0, 1800.0))
    world.run(7200.0)
    world.check_end()
    results = {host.result and host.result.reason_kind for host in world.hosts.values()}
    assert results == {ReasonKind.LIFETIME}
    [held] = {host.held_snapshot for host in world.hosts.values()}
    assert held is not None
    assert world.lifetime_end is not None
    assert world.now < world.lifetime_end
    assert world.now > world.lifetime_end - 75.0
    assert held.number > (100 if is_extended else 10)


@pytest.mark.parametrize("seed", range(10))
def test_a_queued_job_survives_an_interruption_of_the_network(seed: int) -> None:
    chance = random.Random(seed)
    world = World(seed, 3, Policy(), queued_s=200.0)
    world.ports_taken = 0.0
    world.run(chance.uniform(5.0, 60.0))
    cut(world, chance.choice(list(world.hosts.values())), chance)
    world.run(3600.0)
    world.check_end()
    results = [host.result for host in world.hosts.values()]
    assert all(result is not None and result.outcome is Outcome.SUCCEEDED for result in results)


def test_a_history_is_the_same_each_time_from_its_seed() -> None:
    assert play(7).trace == play(7).trace
