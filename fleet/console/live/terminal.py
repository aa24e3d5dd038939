"""Output to a terminal: text that scrolls above a frame; each update is one write."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TextIO

from rich.control import Control
from rich.segment import ControlType

from fleet.console.columns import Line, measure_line, render

_HIDE_CURSOR, _SHOW_CURSOR = str(Control.show_cursor(False)), str(Control.show_cursor(True))
# Not "erase below": tmux moves the lines of a cleared screen to its history.
_ERASE_LINE = str(Control((ControlType.ERASE_IN_LINE, 2)))
_ERASE_LINE_ABOVE = str(Control((ControlType.CURSOR_UP, 1), (ControlType.ERASE_IN_LINE, 2)))
# Synchronized output, which rich does not offer; terminals without it ignore these modes:
# https://gist.github.com/christianparpart/d8a62cc1ab659194337d73e399004036
_BEGIN_UPDATE, _END_UPDATE = "\x1b[?2026h", "\x1b[?2026l"
_DEFAULT_SIZE = os.terminal_size((80, 24))


@dataclass(frozen=True)
class Frame:
    """Lines at the end of the screen; the cursor is at the end of the last one.

    Attributes:
        lines: Each with its colors, not longer than the width.
        widths: Terminal columns of each line.
        size: Columns and lines of the terminal.
    """

    lines: tuple[str, ...] = ()
    widths: tuple[int, ...] = ()
    size: os.terminal_size = _DEFAULT_SIZE


def make_frame(lines: Sequence[Line], size: os.terminal_size, *, color: bool) -> Frame:
    """Return the frame of the `lines` that fit the height."""
    kept = tuple(lines)[: max(1, size.lines)]
    return Frame(tuple(_render(line, color=color) for line in kept), tuple(map(measure_line, kept)), size)


def _render(line: Line, *, color: bool) -> str:
    return render([line], color=color)[:-1].replace("\t", " ")


def compose_update(before: Frame, after: Frame, text: str, *, reflows: bool) -> str:
    """Return the output that replaces the frame `before` by `text` and the frame `after`.

    Args:
        before: Frame on the screen.
        after: Frame to show.
        text: Lines that scroll; empty, or ends with a newline.
        reflows: True if the terminal wraps lines again when its width changes.
    """
    if not (before.lines or after.lines or text):
        return ""
    above = max(0, _count_rows(before, after.size.columns if reflows else before.size.columns) - 1)
    erasure = f"\r{_ERASE_LINE}{_ERASE_LINE_ABOVE * above}"
    frame = "\n".join(after.lines)
    return f"{_BEGIN_UPDATE}{erasure}{text}{frame}{_END_UPDATE}"


def _count_rows(frame: Frame, columns: int) -> int:
    """Return the rows that the lines of a frame take on a terminal of that width."""
    return sum(max(1, -(-width // max(1, columns))) for width in frame.widths)


def reflows(environ: Mapping[str, str]) -> bool:
    """Return True if the terminal wraps lines again when its width changes; xterm, Linux, and GNU screen do not."""
    if environ.get("TMUX"):
        return True
    term = environ.get("TERM", "")
    return not (environ.get("XTERM_VERSION") or term == "linux" or term.startswith("screen"))


def read_size(out: TextIO) -> os.terminal_size:
    """Return the present size of a terminal; 80 columns and 24 lines if it is unknown."""
    try:
        size = os.get_terminal_size(out.fileno())
    except (OSError, ValueError):
        return _DEFAULT_SIZE
    return size if size.columns > 0 and size.lines > 0 else _DEFAULT_SIZE


class Terminal:
    """Draw frames on a terminal.

    Args:
        out: The terminal.
        color: True if it accepts colors.
        reflows: True if it wraps lines again when its width changes.
        size: Returns its present size.
    """

    def __init__(self, out: TextIO, *, color: bool, reflows: bool, size: Callable[[], os.terminal_size]) -> None:
        self.color = color
        self.read_size = size
        self._out = out
        self._reflows = reflows
        self._frame = Frame()

    @property
    def is_resized(self) -> bool:
        """Return True if the size has changed since the last frame."""
        return self.read_size() != self._frame.size

    def open(self) -> None:
        """Hide the cursor; the first frame begins in its line."""
        self._frame = Frame(size=self.read_size())
        self._write(_HIDE_CURSOR)

    def update(self, text: str, lines: Sequence[Line], size: os.terminal_size) -> None:
        """Print `text` above the frame, and replace the frame by `lines`."""
        frame = make_frame(lines, size, color=self.color)
        update = compose_update(self._frame, frame, text, reflows=self._reflows)
        self._frame = frame
        self._write(update)

    def close(self, text: str = "") -> None:
        """Leave the frame on the screen, print `text` below it, and show the cursor."""
        end = "\n" if self._frame.lines else ""
        self._frame = Frame()
        self._write(f"{end}{text}{_SHOW_CURSOR}")

    def _write(self, text: str) -> None:
        encoding = self._out.encoding or "utf-8"
        self._out.write(text.encode(encoding, "replace").decode(encoding))
        self._out.flush()
