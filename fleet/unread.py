"""Keep a command running after the reader of its output is gone."""

from __future__ import annotations

from contextlib import suppress

from fleet.events import Event, Sink


class UnreadSink:
    """Passes events on, and records when the reader of the output is gone (``| head -1``).

    The command then continues to its end; a command that only follows a job detaches.

    Attributes:
        inner: Takes the events.
        unread: Whether the reader is gone.
    """

    def __init__(self, inner: Sink) -> None:
        """Wrap the sink `inner`."""
        self.inner = inner
        self.unread = False

    def emit(self, event: Event) -> None:
        """Take one event."""
        try:
            self.inner.emit(event)
        except BrokenPipeError:
            self.unread = True

    def close(self) -> None:
        """Write pending output."""
        with suppress(BrokenPipeError):
            self.inner.close()
