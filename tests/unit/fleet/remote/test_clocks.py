from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.remote.clocks import Reading, correction_s, corrections, most_exact, read_round_trip


@given(
    ahead=st.floats(-1e6, 1e6),
    legs=st.lists(st.tuples(st.floats(0, 5), st.floats(0, 5)), min_size=1, max_size=5),
)
def test_a_reading_differs_from_the_truth_by_at_most_half_of_the_round_trip(
    ahead: float, legs: list[tuple[float, float]]
) -> None:
    readings = [read_round_trip(1e9, 1e9 + forth + ahead, 1e9 + forth + back) for forth, back in legs]
    best = most_exact(readings)
    assert best.uncertainty_s == pytest.approx(min(forth + back for forth, back in legs) / 2, abs=1e-6)
    assert abs(best.ahead_s - ahead) <= best.uncertainty_s + 1e-5


@pytest.mark.parametrize(
    ("ahead", "expected"),
    [
        ({}, {}),
        ({"a": 7.0}, {"a": 0.0}),
        ({"a": 0.0, "b": 0.09}, {"a": 0.0, "b": 0.0}),  # as exact as NTP
        ({"a": 0.0, "b": 10.0}, {"a": 0.0, "b": -10.0}),
        ({"a": -3.0, "b": 0.5}, {"a": 3.5, "b": 0.0}),
        ({"a": 60.0, "b": 60.01, "c": 2.0}, {"a": 0.0, "b": 0.0, "c": 58.0}),  # this computer's clock is wrong
        ({"a": 1e12, "b": 0.0}, {"a": 0.0, "b": 0.0}),
    ],
)
def test_clocks_get_the_time_of_the_one_in_the_middle(ahead: dict[str, float], expected: dict[str, float]) -> None:
    assert corrections({host: Reading(ahead_s, 0.001) for host, ahead_s in ahead.items()}) == expected
    assert correction_s(Reading(0.0, 0.2), Reading(0.3, 0.1)) == 0.0  # within the uncertainty
    assert correction_s(Reading(0.0, 0.2), Reading(0.5, 0.1)) == 0.5
