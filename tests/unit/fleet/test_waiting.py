from __future__ import annotations

import pytest

from fleet.events import Progress, TaskAwaited, find_awaited


def times(step_s: float | None, input_s: float | None, python_s: float | None = None) -> Progress:
    return Progress(step_s=step_s, input_s=input_s, python_s=python_s)


def test_the_task_with_the_slow_input_is_awaited() -> None:
    tasks = {"worker-0": times(0.23, 0.001, 0.002), "worker-1": times(0.23, 0.21, 0.002)}
    assert find_awaited(tasks, 2) == TaskAwaited("worker-1", 2, "input", 0.21, 0.23)
    assert find_awaited({**tasks, "ps-0": None, "evaluator-0": times(None, None)}, 2) is not None


def test_python_between_the_steps_is_a_cause_unless_it_waits_for_input() -> None:
    others = {"worker-0": times(0.2, 0.0, 0.0)}
    by_python, by_input = times(0.2, 0.01, 0.15), times(0.2, 0.15, 0.16)
    assert [getattr(find_awaited({**others, "worker-1": late}), "cause", None) for late in (by_python, by_input)] == [
        "python",
        "input",
    ]


@pytest.mark.parametrize(
    "tasks",
    [
        (),
        (times(0.2, 0.19),),
        (times(0.2, 0.19), times(0.2, 0.18)),  # all are slow
        (times(0.2, 0.02), times(0.2, 0.0)),  # the step takes longer than the input
        (times(0.2, 0.08), times(0.2, 0.05)),
        (times(0.004, 0.003), times(0.004, 0.0)),  # too short to be measured
        (times(0.2, 0.19), times(0.1, 0.0)),  # they are independent
        (times(0.2, 0.19), times(None, None)),
        (times(0.2, 0.19), times(0.2, None)),
        (times(0.2, 0.19, 0.0), times(0.2, None, 0.0)),
        (times(0.2, 0.19), None),
    ],
)
def test_no_task_is_awaited_if_it_is_not_clear(tasks: tuple[Progress | None, ...]) -> None:
    assert find_awaited({f"worker-{index}": at for index, at in enumerate(tasks)}) is None
