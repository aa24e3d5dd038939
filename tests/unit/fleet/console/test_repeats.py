from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fleet.console.repeats import WINDOW_S, Repeats

BOTH = ("worker-0", "worker-1")
A, B = BOTH


def test_lines_of_all_tasks_are_passed_on_once() -> None:
    repeats = Repeats()
    assert repeats.add([(A, "Epoch 1/2"), (A, "bar")], BOTH, 0.0) == []
    assert repeats.add([(B, "Epoch 1/2")], BOTH, 0.1) == [([A, B], "Epoch 1/2")]
    assert repeats.add([(B, "bar")], BOTH, 0.2) == [([A, B], "bar")]
    assert not repeats.is_waiting


def test_lines_of_some_tasks_are_passed_on_after_the_window() -> None:
    repeats = Repeats()
    assert repeats.add([(A, "mine"), (B, "yours")], BOTH, 0.0) == []
    assert repeats.is_waiting
    assert repeats.add([], BOTH, WINDOW_S) == [([A], "mine"), ([B], "yours")]


def test_a_line_of_all_tasks_but_a_few_is_passed_on_once_after_the_window() -> None:
    tasks = [f"worker-{index}" for index in range(32)]
    repeats = Repeats()
    assert repeats.add([(task, "Epoch 1/2") for task in tasks[1:]], tasks, 0.0) == []
    assert repeats.add([], tasks, WINDOW_S) == [(tasks[1:], "Epoch 1/2")]
    half = [(task, "half") for task in tasks[:16]]
    repeats.add(half, tasks, 1.0)
    assert repeats.flush(tasks) == [([task], "half") for task in tasks[:16]]


def test_a_line_does_not_overtake_another_of_its_task() -> None:
    repeats = Repeats()
    repeats.add([(A, "x"), (B, "first"), (B, "x")], BOTH, 0.0)
    assert repeats.flush(BOTH) == [([A], "x"), ([B], "first"), ([B], "x")]
    repeats.add([(A, "x"), (A, "y"), (B, "y"), (B, "x")], BOTH, 0.0)
    assert repeats.flush(BOTH) == [([A], "x"), ([A, B], "y"), ([B], "x")]


def test_lines_of_a_single_task_are_not_held() -> None:
    assert Repeats().add([(A, "x"), (A, "x")], [A], 0.0) == [([A], "x"), ([A], "x")]


def test_lines_may_differ_in_durations_only() -> None:
    ours, theirs = (
        "44/44 - 13s - loss: 1.5 - 13s/epoch - 305ms/step",
        "44/44 - 14s - loss: 1.5 - 14s/epoch - 306ms/step",
    )
    assert Repeats().add([(A, ours), (B, theirs)], BOTH, 0.0) == [([A, B], ours)]
    repeats = Repeats()
    repeats.add([(A, ours), (B, theirs.replace("1.5", "1.6"))], BOTH, 0.0)
    assert [line for _, line in repeats.flush(BOTH)] == [ours, theirs.replace("1.5", "1.6")]


def test_a_flood_does_not_wait() -> None:
    repeats = Repeats()
    assert len(repeats.add([(A, str(number)) for number in range(2000)], BOTH, 0.0)) == 1500


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.sampled_from(["1", "2", "3"]), st.floats(0, 0.2))))
def test_nothing_is_lost_and_each_task_keeps_its_order(lines: list[tuple[str, str, float]]) -> None:
    repeats, tasks, now = Repeats(), ("a", "b", "c"), 0.0
    shown = []
    for task, line, pause in lines:
        now += pause
        shown += repeats.add([(task, line)], tasks, now)
    shown += repeats.flush(tasks)
    for name in tasks:
        assert [line for names, line in shown if name in names] == [line for task, line, _ in lines if task == name]
