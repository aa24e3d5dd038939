"""Play histories in simulated time in which a running job takes in new hosts; see test_histories."""

from __future__ import annotations

import random

import pytest

from tests.faults.simulation import BrokenPropertyError, World
from tests.faults.test_histories import inject, policy_of
from train.agent.protocol.records import Outcome, Policy, SuccessPolicy

FOREVER_S = 1e6


def results(world: World) -> set[tuple[Outcome, int]]:
    return {(host.result.outcome, host.result.attempt) for host in world.hosts.values() if host.result is not None}


def workers_of(world: World, attempt: int) -> list[str]:
    return sorted(world.attempts.get(attempt, {}))


def quiet(seed: int, count: int, most: int, later: int, **options: object) -> World:
    """Return a job of 60 s without restarts and without faults, which has just begun."""
    world = World(seed, count, Policy(max_workers=most), later=later, **options)  # type: ignore[arg-type]
    world.ports_taken, world.work_s = 0.0, 60.0
    world.run(3.0)
    return world


@pytest.mark.parametrize("seed", range(10))
def test_a_job_takes_in_new_hosts_at_a_checkpoint_without_using_a_restart(seed: int) -> None:
    count = 1 + seed % 3
    world = quiet(seed, count, count + 2, 2)
    for name in world.terms.joinable:
        world.replace(world.hosts[name])
        world.run(0.1)
    world.run(3600.0)
    world.check_end()
    assert results(world) == {(Outcome.SUCCEEDED, 2)}
    assert len(workers_of(world, 2)) == count + 2
    began = set(world.attempts[2].values())
    assert len(began) == 1
    assert None not in began


def test_a_job_grows_again_and_never_beyond_its_limit() -> None:
    world = quiet(1, 2, 3, 2)
    first, second = (world.hosts[name] for name in world.terms.joinable)
    world.replace(first)
    world.replace(second)
    world.run(3600.0)
    assert results(world) == {(Outcome.SUCCEEDED, 2)}
    assert workers_of(world, 2) == ["worker-0", "worker-1", "worker-2"]

    world = quiet(2, 2, 4, 2)
    world.replace(world.hosts["worker-2"])
    world.run(20.0)
    world.replace(world.hosts["worker-3"])
    world.run(3600.0)
    assert results(world) == {(Outcome.SUCCEEDED, 3)}
    assert [len(workers_of(world, attempt)) for attempt in (1, 2, 3)] == [2, 3, 4]


def test_a_host_that_the_others_cannot_reach_does_not_harm_the_job() -> None:
    world = quiet(3, 3, 4, 1)
    world.block("worker-1", "worker-3", FOREVER_S)
    world.replace(world.hosts["worker-3"])
    world.run(3600.0)
    assert results(world) == {(Outcome.SUCCEEDED, 3)}
    assert workers_of(world, 3) == ["worker-0", "worker-1", "worker-2"]


def test_a_new_host_that_disappears_before_the_checkpoint_changes_nothing() -> None:
    world = quiet(4, 2, 3, 1)
    world.random.random = lambda: 0.9  # type: ignore[method-assign]  # no checkpoint
    world.replace(world.hosts["worker-2"])
    world.run(5.0)
    world.kill_host(world.hosts["worker-2"])
    world.run(3600.0)
    assert results(world) == {(Outcome.SUCCEEDED, 1)}


def test_new_hosts_without_a_task_end_if_all_other_hosts_are_gone() -> None:
    world = World(3, 2, Policy(restarts=1, max_workers=4), later=2)
    world.ports_taken, world.work_s = 0.0, 60.0
    world.random.random = lambda: 0.9  # type: ignore[method-assign]  # no checkpoint, at which they would get a task
    world.run(3.0)
    for name in world.terms.joinable:
        world.replace(world.hosts[name])
    world.run(5.0)
    for name in ("worker-0", "worker-1"):
        world.kill_host(world.hosts[name])
    world.run(3600.0)
    world.check_end()
    assert results(world) == {(Outcome.LOST, 1)}


def play(seed: int) -> World:
    chance = random.Random(f"growth {seed}")
    roles = chance.choice([(), (), (), ("chief-0", "worker-0", "ps-0"), ("worker-0", "worker-1", "")])
    count = len(roles) or chance.choice([1, 2, 2, 3])
    workers = sum(role.startswith("worker") for role in roles) or count
    later = chance.choice([1, 2])
    most = workers + chance.choice([later, 1])
    policy = policy_of(chance, workers)._replace(max_workers=most)
    if policy.min_workers <= (count + later) // 2:  # else both parts of a divided network may continue
        policy = policy._replace(min_workers=0)
    if "ps-0" in roles:
        policy = policy._replace(success=SuccessPolicy.CHIEF)
    world = World(seed, count, policy, roles.count(""), roles, later=later)
    world.work_s = chance.choice([20.0, 60.0])
    for _ in range(chance.choice([0, 1, 1, 2, 3, 6])):
        world.run(chance.choice([0.3, 1.0, 5.0, 20.0]) * chance.random())
        for name in world.terms.joinable:
            if chance.random() < 0.6:
                world.replace(world.hosts[name])
        world.run(chance.choice([0.05, 1.0, 10.0]) * chance.random())
        inject(world, chance)
    world.run(3600.0)
    world.check_end()
    return world


@pytest.mark.parametrize("group", range(2))
def test_every_history_with_new_hosts_keeps_the_promises_of_the_gang(group: int) -> None:
    outcomes, grown = set(), 0
    for seed in range(group * 50, (group + 1) * 50):
        try:
            world = play(seed)
        except BrokenPropertyError as broken:
            raise AssertionError(f"seed {seed}: {broken}") from broken
        outcomes |= {outcome for outcome, _ in results(world)}
        grown += any(set(held) & set(world.terms.joinable) for held in world.attempts.values())
    assert {Outcome.SUCCEEDED, Outcome.FAILED} <= outcomes
    assert grown > 10


@pytest.mark.parametrize("seed", [547, 951, 100494])
def test_a_divided_network_never_continues_a_grown_job_twice(seed: int) -> None:
    play(seed)
