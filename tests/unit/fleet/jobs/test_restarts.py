"""Reports of the checkpoint that a restarted attempt starts from."""

from __future__ import annotations

from fleet.events import Level, Note
from fleet.jobs.restarts import Restarts
from train.agent.protocol.records import Phase, Progress, TaskState

Records = list[TaskState | Progress]


def running(attempt: int, checkpoint: str | None, task: str = "worker-0") -> TaskState:
    return TaskState(task, task, attempt, Phase.RUNNING, 1.0, checkpoint=checkpoint)


def epochs(attempt: int, *numbers: int, total: int = 10) -> list[Progress]:
    return [Progress("worker-0", "worker-0", attempt, 1.0, epoch=number, epochs=total) for number in numbers]


def notes(*records: TaskState | Progress) -> list[Note]:
    restarts = Restarts()
    return [note for record in records for note in restarts.add(record)]


def test_a_checkpoint_is_reported_once_for_all_tasks() -> None:
    reported = notes(running(1, None), running(2, "ckpt-5"), running(2, "ckpt-5", "worker-1"))
    assert reported == [Note("attempt 2 starts from checkpoint ckpt-5")]


def test_epochs_that_begin_again_despite_a_checkpoint_are_reported_once() -> None:
    reported = notes(running(1, None), *epochs(1, 1, 2, 3), running(2, "ckpt-2"), *epochs(2, 1, 2))
    assert [note.level for note in reported] == [Level.INFO, Level.WARNING]
    assert reported[1].text.startswith(
        "attempt 2 began at epoch 1 although attempt 1 had reached epoch 3 and checkpoint"
    )


def test_no_warning_if_it_is_not_certain() -> None:
    continued: Records = [*epochs(1, 1, 2, 3), running(2, "ckpt-2"), *epochs(2, 3)]
    no_epoch_done: Records = [*epochs(1, 1), running(2, "ckpt-2"), *epochs(2, 1)]
    without_checkpoint: Records = [*epochs(1, 1, 2), running(2, ""), *epochs(2, 1)]
    second_call_of_fit: Records = [*epochs(1, 1, 2, 1, 2), running(2, "ckpt-2"), *epochs(2, 1)]
    first_call_done: Records = [*epochs(1, 1, 2, total=2), running(2, "ckpt-2"), *epochs(2, 1, total=2)]
    fewer_epochs_left: Records = [*epochs(1, 1, 2, 3), running(2, "ckpt-2"), *epochs(2, 1, total=8)]
    cases = continued, no_epoch_done, without_checkpoint, second_call_of_fit, first_call_done, fewer_epochs_left
    for records in cases:
        assert all(note.level is Level.INFO for note in notes(*records))
