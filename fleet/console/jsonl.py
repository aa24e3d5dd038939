"""Events as lines of JSON, for programs; docs/json.md describes every one."""

from __future__ import annotations

import base64
import codecs
import json
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from enum import Enum
from typing import Any, BinaryIO

from fleet.errors import FleetError
from fleet.events import CommandOutput, Event, FleetStatus, LogChunk, Phase, TaskState

SCHEMA_VERSION = 1
# Valid in JSON, but a terminal obeys the first and reorders text for the others.
_UNSEEN = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def name_event(kind: type) -> str:
    """Return the name of an event on a line: ``task_state`` for TaskState."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


def to_json(event: Event | FleetStatus) -> dict[str, Any]:
    """Return `event` as JSON values, its name first.

    Data of a LogChunk or CommandOutput becomes ``text`` if it is UTF-8, else ``base64``. Numbers that JSON lacks
    become the strings ``NaN``, ``Infinity`` and ``-Infinity``.
    """
    fields = {"event": name_event(type(event)), **_plain(event)}
    if isinstance(event, (LogChunk, CommandOutput)):
        data = fields.pop("data")
        try:
            fields["text"] = data.decode("utf-8")
        except UnicodeDecodeError:
            fields["base64"] = base64.b64encode(data).decode("ascii")
    return fields


def error_to_json(error: FleetError, next_lines: Sequence[str] = ()) -> dict[str, Any]:
    """Return an error as JSON values."""
    return {
        "event": "error",
        "kind": name_event(type(error)).removesuffix("_error"),
        "message": error.message,
        "cause": error.cause,
        "hint": error.hint,
        "next_step": "\n".join(next_lines),
        "exit_code": error.exit_code,
    }


def _plain(value: Any) -> Any:
    fields = value._asdict() if hasattr(value, "_asdict") else vars(value) if is_dataclass(value) else None
    if fields is not None:
        return {name: _null_if_unknown(item) for name, item in fields.items()}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _null_if_unknown(value: Any) -> Any:
    """Return a field of an event; None for an unknown number, which is -1 in events."""
    return None if type(value) in (int, float) and value == -1 else _plain(value)


class JsonSink:
    """Write one JSON object per event and line, the version of the schema first, and nothing else, to `out`.

    A character whose bytes are in two chunks of the log is moved into the second, so that a task which writes UTF-8
    appears only as text. When emit returns, the line is flushed to the reader. If the reader goes away, emit
    raises BrokenPipeError once, and writes and raises nothing from then on.
    """

    def __init__(self, out: BinaryIO, clock: Callable[[], float] = time.time) -> None:
        """Create a sink that writes to `out`; `clock` returns the seconds since the epoch."""
        self._out = out
        self._clock = clock
        self._tails: dict[str, LogChunk] = {}  # the first bytes of an incomplete character
        self._started = False
        self._broken = False

    def emit(self, event: Event | FleetStatus) -> None:
        """Take one event.

        Raises:
            BrokenPipeError: the reader of the output has gone.
            OSError: the output cannot be written (a full disk).
        """
        events: list[Event | FleetStatus] = [event]
        if isinstance(event, LogChunk):
            events = list(self._whole_characters(event))
        elif isinstance(event, TaskState) and event.phase is Phase.EXITED and event.slot in self._tails:
            events.insert(0, self._tails.pop(event.slot))
        self._write([to_json(item) for item in events])

    def error(self, error: FleetError, next_lines: Sequence[str] = ()) -> None:
        """Write the last line of a command that failed."""
        self._write([*map(to_json, self._tails.values()), error_to_json(error, next_lines)])
        self._tails.clear()

    def close(self) -> None:
        """Write what is held back; the stream stays open."""
        tails = list(self._tails.values())
        self._tails.clear()
        with suppress(BrokenPipeError):
            self._write([to_json(tail) for tail in tails])

    def _whole_characters(self, chunk: LogChunk) -> list[LogChunk]:
        """Return the output to write now, including this chunk; hold back an unfinished character at its end."""
        held = self._tails.pop(chunk.slot, None)
        ready = []
        if held and (held.attempt != chunk.attempt or held.offset + len(held.data) != chunk.offset):
            ready.append(held)
        elif held:
            chunk = chunk._replace(offset=held.offset, data=held.data + chunk.data)
        tail = _count_unfinished(chunk.data)
        if tail:
            end = len(chunk.data) - tail
            self._tails[chunk.slot] = chunk._replace(offset=chunk.offset + end, data=chunk.data[end:])
            chunk = chunk._replace(data=chunk.data[:end])
        return [*ready, chunk] if chunk.data else ready

    def _write(self, lines: list[dict[str, Any]]) -> None:
        if self._broken:
            return
        text = "" if self._started else json.dumps({"event": "schema", "version": SCHEMA_VERSION}) + "\n"
        now = round(self._clock(), 6)
        for line in lines:
            name = line.pop("event")
            plain = json.dumps({"event": name, "time": now, **line}, ensure_ascii=False, allow_nan=False)
            text += _UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", plain) + "\n"
        self._started = True
        if not text:
            return
        try:
            self._out.write(text.encode("utf-8", "replace"))
            self._out.flush()
        except BrokenPipeError:
            self._broken = True
            raise


def _count_unfinished(data: bytes) -> int:
    """Return the bytes at the end of `data` that begin a UTF-8 character but do not complete it."""
    decoder = codecs.getincrementaldecoder("utf-8")("ignore")
    decoder.decode(data[-4:])
    return len(decoder.getstate()[0])
