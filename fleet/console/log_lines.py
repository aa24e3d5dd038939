"""A task's bytes as lines for a terminal; pure.

The output of a task is untrusted, so only its text and colors reach the terminal: no cursor movements, no titles, and
no queries that a terminal answers on its input. Control sequences: ECMA-48, and
https://invisible-island.net/xterm/ctlseqs/ctlseqs.html.
"""

from __future__ import annotations

import re

from fleet.console.formatting import format_size
from fleet.jobs.following.log_view import final_state, latest_state

LINE_MAX = 1000  # characters of a line that are shown
_HELD_MAX = 32 * 1024  # bytes of an unfinished line that are kept

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")
_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)([0-?]*)([ -/]*[@-~])?"  # CSI parameters, intermediates and final byte
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"  # OSC, DCS, SOS, PM, APC
    r"|\x1b[ -/]*[0-Z\\^-~]?"  # sequences of two or three characters
)
_LABEL = re.compile(r"\s*(?:fleet|error|cause|hint|next|warning|note)\s*:", re.IGNORECASE)
_SGR_PARAMETERS = re.compile(r"[0-9;:]*", re.ASCII)
_SGR = re.compile(r"(\x1b\[[0-9;:]*m)")


def clean(text: str) -> str:
    """Return untrusted `text` as one line without control characters, and without colors."""
    return _SGR.sub("", _clean_line(text.replace("\n", " "))) if _CONTROL.search(text) else text


def mark_label(line: str) -> str:
    """Return a further line of a text, marked if it could be taken for a paragraph of a separate error."""
    return f"| {line.lstrip()}" if _LABEL.match(line) else line


def render_line(line: str, dropped: int = 0) -> str:
    """Return the final state of a line: at most LINE_MAX characters and a mark, no control sequences except colors.

    As on a terminal, text after a carriage return replaces the text before it, and text after backspaces
    replaces as many characters. A tab stays a tab.

    Args:
        line: The line, without its newline.
        dropped: Bytes of its end that are missing already.
    """
    if _CONTROL.search(line):
        line = _clean_line(final_state(line))
    return _cut(line, dropped) if dropped or len(line) > LINE_MAX else line


def _clean_line(line: str) -> str:
    kept = _SEQUENCE.sub(_sgr_or_nothing, line)
    if "\x1b" not in kept:
        return _CONTROL.sub("", kept)
    pieces = _SGR.split(kept)  # text, sequence, text, sequence, …, text
    pieces[::2] = [_CONTROL.sub("", piece) for piece in pieces[::2]]
    return "".join(pieces) + "\x1b[0m"


def _sgr_or_nothing(match: re.Match[str]) -> str:
    if match[2] == "m" and _SGR_PARAMETERS.fullmatch(match[1]):
        return f"\x1b[{match[1]}m"
    return ""


def _cut(line: str, dropped: int) -> str:
    pieces = _SGR.split(line)  # text, sequence, text, sequence, …, text
    room = LINE_MAX
    for number in range(0, len(pieces), 2):
        kept = pieces[number][:room]
        dropped += len(pieces[number][room:].encode())
        room -= len(kept)
        pieces[number] = kept
    if dropped == 0:
        return line
    del pieces[2 * LINE_MAX :]  # more color sequences than this are not text
    end = "\x1b[0m" if len(pieces) > 1 else ""
    return "".join(pieces) + f"{end} … {format_size(dropped)} more"


class LogText:
    """Split the output of one task, chunk by chunk, in bounded memory."""

    def __init__(self) -> None:
        self._held = b""  # the unfinished line, or the part of it that will be shown
        self._dropped = 0  # bytes of it that are not held
        self._gap = False  # the rest of the line was not received

    def feed(self, data: bytes) -> list[str]:
        """Return the lines that `data` completes, ready to show."""
        first, newline, rest = data.partition(b"\n")
        if not newline:
            self._hold(data)
            return []
        self._hold(first)
        lines = self._end()
        whole, newline, self._held = rest.rpartition(b"\n")
        if newline:
            lines += [render_line(line) for line in whole.decode("utf-8", "replace").split("\n")]
        self._hold(b"")
        return lines

    def finish(self) -> list[str]:
        """Return the unfinished line at the end of the output; empty if there is none."""
        return self._end() if self._held else []

    def _end(self) -> list[str]:
        held, dropped, gap = self._held, self._dropped, self._gap
        self._held, self._dropped, self._gap = b"", 0, False
        if gap:
            return []
        return [render_line(held.decode("utf-8", "replace"), dropped)]

    def skip(self) -> None:
        """Handle a gap in the output: discard the held text and the rest of the interrupted line."""
        self._held, self._dropped, self._gap = b"", 0, True

    @property
    def bar(self) -> str:
        """Return the unfinished line without colors if it is a progress bar; else an empty text."""
        if self._gap or not (b"\r" in self._held or b"\x08" in self._held):
            return ""
        return clean(render_line(self._held.decode("utf-8", "replace")))

    def _hold(self, data: bytes) -> None:
        """Append `data`, which has no newline, to the unfinished line."""
        held = self._held + data
        if len(held) > _HELD_MAX:
            self._dropped = 0 if b"\r" in held.rstrip(b"\r") else self._dropped
            held = latest_state(held)
        self._held = held[:_HELD_MAX]
        self._dropped += max(0, len(held) - _HELD_MAX)
