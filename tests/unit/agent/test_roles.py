"""Who plays which role after a host is lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from train.agent.orders import Part
from train.agent.records import Member
from train.agent.roles import first_cast, is_needed, recast

ROLES = ["worker-0", "worker-1", "worker-2"]
CAST = [Part(role, role) for role in ROLES]


def test_at_first_each_plays_its_own_role_and_spares_play_none() -> None:
    members = [Member(f"worker-{n}", "10.0.0.1", 2222, 4000) for n in (2, 0, 1)]
    assert first_cast(members, ["worker-2"]) == CAST[:2]


def test_a_spare_takes_over_the_vacant_role() -> None:
    assert recast(ROLES, CAST, ["worker-0", "worker-2", "worker-3"], 3) == [
        Part("worker-0", "worker-0"),
        Part("worker-3", "worker-1"),
        Part("worker-2", "worker-2"),
    ]


def test_fewer_are_numbered_without_a_gap_and_grow_again_when_one_is_back() -> None:
    smaller = recast(ROLES, CAST, ["worker-1", "worker-2"], 2)
    assert smaller == [Part("worker-1", "worker-0"), Part("worker-2", "worker-1")]
    assert recast(ROLES, smaller, ROLES, 3) == [
        Part("worker-1", "worker-0"),
        Part("worker-2", "worker-1"),
        Part("worker-0", "worker-2"),
    ]


def test_too_few_or_without_a_role_that_cannot_be_given_up_there_is_no_cast() -> None:
    assert recast(ROLES, CAST, ["worker-0", "worker-2"], 3) is None
    roles = ["chief-0", "worker-0", "ps-0"]
    cast = [Part(role, role) for role in roles]
    assert recast(roles, cast, ["chief-0", "worker-0"], 1) is None
    assert recast(roles, cast, ["chief-0", "ps-0"], 1) == [Part("chief-0", "chief-0"), Part("ps-0", "ps-0")]


def test_parameter_servers_and_evaluators_are_not_waited_for() -> None:
    assert [role for role in ("chief-0", "worker-3", "ps-0", "evaluator-0") if is_needed(role)] == [
        "chief-0",
        "worker-3",
    ]


@given(st.sets(st.sampled_from([f"worker-{n}" for n in range(6)])), st.integers(0, 4))
def test_a_cast_is_one_seat_a_role_without_gaps(available: set[str], fewest: int) -> None:
    cast = recast(ROLES, CAST, sorted(available), fewest)
    if cast is None:
        assert len(available) < max(1, fewest)
        return
    seats, roles = [part.seat for part in cast], [part.role for part in cast]
    assert roles == ROLES[: len(cast)]
    assert len(set(seats)) == len(seats)
    assert set(seats) <= available
    assert len(cast) >= min(len(ROLES), max(1, fewest))
