"""Test the prediction of the speedup on more workers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.jobs.scaling.model import (
    WORKERS,
    Bottleneck,
    Measurements,
    Network,
    StepModel,
    communication_s,
    find_bottleneck,
    predict,
)

TIMES = st.lists(st.floats(1e-4, 100), min_size=1, max_size=5).map(tuple)
RATES = st.lists(st.floats(1e4, 1e11), min_size=1, max_size=5).map(tuple)
LATENCIES = st.lists(st.floats(1e-6, 1), min_size=1, max_size=5).map(tuple)
EXCESS = "communication and waits for other workers"
NETWORK = Network((1e9,), (1e-4,))


@given(
    st.builds(
        Measurements, TIMES, st.integers(0, 10**11), st.builds(Network, RATES, LATENCIES), TIMES | st.just(()),
        st.integers(2, 16),
    )
)  # fmt: skip
def test_the_speedup_is_at_most_the_number_of_workers_and_lies_in_its_interval(measured: Measurements) -> None:
    predictions = predict(measured)
    assert [item.workers for item in predictions] == [*WORKERS]
    assert predictions[0].speedup == predictions[0].low == predictions[0].high == 1
    for item in predictions:
        assert 0 < item.low <= item.speedup <= item.high <= item.workers * (1 + 1e-9)


@given(st.floats(1e-4, 10), st.floats(1, 1e10), st.floats(1e5, 1e10), st.floats(1.01, 100), st.integers(2, 64))
def test_a_faster_network_never_lowers_the_speedup(
    compute_s: float, size: float, bytes_s: float, more: float, workers: int
) -> None:
    slow, fast = (StepModel(compute_s, size, rate, 1e-4) for rate in (bytes_s, bytes_s * more))
    assert slow.speedup(workers) <= fast.speedup(workers)


def test_a_ring_sends_almost_twice_the_gradients() -> None:
    assert communication_s(2, 1e9, 1e9, 0) == 1
    assert communication_s(4, 1e9, 1e9, 0) == pytest.approx(1.5)
    assert communication_s(4, 0, 1e9, 1e-3) == pytest.approx(6e-3)


def test_a_measured_step_of_several_workers_is_met_exactly() -> None:
    measured = Measurements((0.1, 0.1, 0.1), 10**7, NETWORK, (0.16, 0.15, 0.14), workers=4)
    four = predict(measured, (4,))[0]
    assert four.step_s == pytest.approx(0.15)
    assert four.speedup == pytest.approx(4 * 0.1 / 0.15)
    assert four.low < four.speedup < four.high
    faster_together = Measurements((0.1,), 10**7, NETWORK, (0.05,), workers=2)
    assert predict(faster_together, (2,))[0].speedup == 2


def test_the_same_measurements_give_the_same_interval() -> None:
    measured = Measurements((0.1, 0.12, 0.15), 10**8, NETWORK)
    assert predict(measured) == predict(measured)


def test_the_bottleneck_is_named() -> None:
    def limit(size: int, wait_s: float = 0.0, input_s: float | None = None) -> tuple[Bottleneck, str]:
        return find_bottleneck(predict(Measurements((0.1,), size, NETWORK)), 0.1, wait_s, input_s)

    assert limit(10**6) == (Bottleneck.COMPUTE, f"with 16 workers, {EXCESS} take 5% of a step")
    network = (Bottleneck.NETWORK, f"from 4 workers on, {EXCESS} take more than half of a step")
    assert limit(90_000_000) == network
    assert limit(10**6, wait_s=0.06)[0] is Bottleneck.INPUT
    assert limit(10**6, input_s=0.09)[0] is Bottleneck.INPUT
    assert limit(10**6, wait_s=0.01, input_s=0.02)[0] is Bottleneck.COMPUTE
