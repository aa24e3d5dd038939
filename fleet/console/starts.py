"""Notes about how tasks were started with `--warm`: as new processes, or as forks."""

from __future__ import annotations

from fleet.console.messages import name_task
from fleet.events import Event, Note, Phase, Sink, TaskState


class StartSink:
    """Passes events on, and reports how each task was started.

    Attributes:
        inner: Takes the events.
        interval_s: Time between two updates of what `inner` shows, in seconds; 0: it shows everything at once.
    """

    def __init__(self, inner: Sink) -> None:
        """Wrap the sink `inner`."""
        self.inner = inner
        self.interval_s: float = getattr(inner, "interval_s", 0.0)

    def emit(self, event: Event) -> None:
        """Take one event."""
        self.inner.emit(event)
        if isinstance(event, TaskState) and event.phase is Phase.RUNNING and event.cold is not None:
            self.inner.emit(Note(describe_start(event)))

    def close(self) -> None:
        """Write pending output."""
        self.inner.close()


def describe_start(state: TaskState) -> str:
    """Return how a task was started; its state has the reason for a new process."""
    name = name_task(state.task, state.slot)
    return (
        f"{name} is a new process: {state.cold}"
        if state.cold
        else f"{name} was forked from a process with its imports"
    )
