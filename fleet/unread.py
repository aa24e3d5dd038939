"""A sink that goes on when nobody reads the output any more."""

from __future__ import annotations

from contextlib import suppress

from fleet.events import Event, Sink


class UnreadSink:
    """Passes events on, and remembers that the reader of the output has gone (``| head -1``).

    A command goes on to its end then; one that only follows a job detaches.

    Attributes:
        inner: Takes the events.
        unread: Whether the reader has gone.
    """

    def __init__(self, inner: Sink) -> None:
        """A sink on top of `inner`."""
        self.inner = inner
        self.unread = False

    def emit(self, event: Event) -> None:
        """Take one event."""
        try:
            self.inner.emit(event)
        except BrokenPipeError:
            self.unread = True

    def close(self) -> None:
        """Write what is held back."""
        with suppress(BrokenPipeError):
            self.inner.close()
