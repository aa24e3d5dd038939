"""Test the patience of an observer that does not always run."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from train.agent.gang.patience import LATE_S, Patience

TIMEOUT_S, PERIOD_S = 8.0, 2.0


def _ticked(*times: float) -> Patience:
    patience = Patience(TIMEOUT_S, PERIOD_S)
    for at in times:
        patience.tick(at)
    return patience


def test_the_time_in_which_the_observer_did_not_run_does_not_count() -> None:
    assert _ticked(100.0, 132.0).limit(132.0) == 100.0 + PERIOD_S - TIMEOUT_S
    assert _ticked(100.0, 132.0, 134.0).limit(134.0) == 100.0 + 2 * PERIOD_S - TIMEOUT_S


@given(st.lists(st.floats(0.0, 60.0), min_size=1, max_size=40), st.integers(0, 39))
def test_an_agent_that_sends_when_the_observer_runs_is_never_lost(delays: list[float], heard: int) -> None:
    """The agent sends with each tick up to one, and is awaited for the timeout of running time after it."""
    patience = Patience(TIMEOUT_S, PERIOD_S)
    now = received_at = 1000.0
    running_s = 0.0
    for number, delay_s in enumerate(delays):
        patience.tick(now)
        if number <= heard:
            received_at, running_s = now, 0.0
        if running_s < TIMEOUT_S - 1e-6:
            assert received_at >= patience.limit(now) - 1e-6
        now += PERIOD_S + delay_s
        running_s += PERIOD_S + (delay_s if delay_s < LATE_S else 0.0)
