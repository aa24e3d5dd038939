"""Test when a copy of an environment is so slow that pip is used instead."""

from __future__ import annotations

from train.agent.requests.preparation.environments import PERIOD_S, SLOWEST, Pace


def test_a_copy_ends_after_a_period_that_was_too_slow() -> None:
    enough = int(SLOWEST * PERIOD_S)
    pace = Pace()
    assert pace.is_kept(0, 1000.0)
    assert pace.is_kept(1, 1000.0 + PERIOD_S - 1)
    assert pace.is_kept(enough, 1000.0 + PERIOD_S)
    assert not pace.is_kept(2 * enough - 1, 1000.0 + 2 * PERIOD_S)


def test_a_pause_counts_as_part_of_its_period() -> None:
    pace = Pace()
    assert pace.is_kept(1, 0.0)
    assert not pace.is_kept(1 + int(SLOWEST * PERIOD_S), 2 * PERIOD_S)
