"""Test decisions of the measurement of a script's steps."""

from __future__ import annotations

import pytest

from fleet.jobs.scaling.measurement import count_steps, describe_failure, slowest
from fleet.jobs.scaling.model import Network
from train.agent.protocol.records import Exit, NetworkMeasured, StepsMeasured

MEASURED = StepsMeasured(6.2, None, ["x"], [0.1] * 3, [0.0] * 3, 4000, ["float32"])


def test_fast_steps_are_measured_for_some_seconds() -> None:
    assert [count_steps(step_s) for step_s in (0.001, 0.05, 0.1, 0.5, 2.0, 60.0)] == [200, 100, 50, 30, 10, 5]


def test_the_slowest_connection_decides() -> None:
    first, second = NetworkMeasured([1e-4], [1e9, 3e9, 2e9]), NetworkMeasured([2e-4], [5e9])
    assert slowest([first, second]) == Network((1e9, 3e9, 2e9), (2e-4,))


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        (MEASURED._replace(exit=Exit(0)), "the script ended before it had made 7 training steps"),
        (MEASURED._replace(exit=Exit(0), gradient_bytes=0), "the script ended and no training step was seen"),
        (MEASURED, "the script was still running after 6 s before it had made 7 training steps"),
        (MEASURED._replace(exit=Exit(3)), "the script exited with code 3 after 6 s"),
        (MEASURED._replace(exit=Exit(signal=9)), "the script was killed by signal 9 after 6 s"),
        (MEASURED._replace(in_loop=True, exit=Exit(0)), "the script makes several training steps in one call"),
    ],
)
def test_a_run_without_enough_steps_is_explained(measured: StepsMeasured, expected: str) -> None:
    assert describe_failure(measured).startswith(expected)
