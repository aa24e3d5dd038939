"""Test the notes about how tasks were started."""

from __future__ import annotations

import pytest

from fleet.console.starts import StartSink
from fleet.events import Event, Note, Phase, TaskState


class Recorder:
    """A sink that keeps all events."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.is_closed = False

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize(
    ("phase", "cold", "notes"),
    [
        (Phase.RUNNING, "", ["worker-0 was forked from a process with its imports"]),
        (Phase.RUNNING, "the job has secrets", ["worker-0 is a new process: the job has secrets"]),
        (Phase.RUNNING, None, []),
        (Phase.WAITING, "", []),
    ],
)
def test_a_note_states_how_a_task_was_started(phase: Phase, cold: str | None, notes: list[str]) -> None:
    recorder = Recorder()
    sink = StartSink(recorder)
    state = TaskState("worker-0", "worker-0", 1, phase, 5.0, cold=cold)
    sink.emit(state)
    sink.close()
    assert recorder.events == [state, *map(Note, notes)]
    assert recorder.is_closed
