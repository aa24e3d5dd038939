"""Print errors; no other module does."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from contextlib import suppress
from typing import TextIO

from fleet.console.colors import paint
from fleet.console.jsonl import JsonSink
from fleet.console.log_lines import clean, mark_label
from fleet.errors import FleetError, JobNotFinished

_INDENT = 7  # width of the longest label, "error: "


def format_error(error: FleetError, next_lines: Sequence[str] = (), *, color: bool = False, width: int = 0) -> str:
    """Format an error as one to four paragraphs: message, cause, hint, next commands.

    Further lines of a paragraph are indented, so that each stays recognizable. Commands are never wrapped.

    Args:
        error: The error.
        next_lines: Commands to run next.
        color: Whether to use colors.
        width: Columns of the terminal, at which prose is wrapped between words; 0 wraps nothing.
    """
    kind = ("note", "bold") if isinstance(error, JobNotFinished) else ("error", "bold red")
    parts = [
        (kind[0], error.message, kind[1]),
        ("cause", error.cause, "dim"),
        ("hint", error.hint, "dim"),
        ("next", "\n".join(next_lines), "dim"),
    ]
    text = ""
    for label, words, style in parts:
        lines = [clean(line) for line in words.strip().split("\n")]
        if label != "next":
            lines = [lines[0], *(mark_label(line) for line in lines[1:])]
        if lines == [""]:
            continue
        if width > 2 * _INDENT and label != "next":
            lines = [part for line in lines for part in _wrap(line, width - _INDENT)]
        head = paint(f"{label}:", style if color else "") + " " * (_INDENT - len(label) - 1)
        indent = "\n" + " " * _INDENT
        text += f"{head}{indent.join(lines)}\n"
    return text


def _wrap(line: str, width: int) -> list[str]:
    wrapped = textwrap.wrap(
        line, width, expand_tabs=False, replace_whitespace=False, break_long_words=False, break_on_hyphens=False
    )
    return wrapped or [line]


def print_error(
    error: FleetError,
    err: TextIO,
    *,
    next_lines: Sequence[str] = (),
    json: JsonSink | None = None,
    color: bool = False,
    width: int = 0,
) -> None:
    """Print an error for people and, in JSON mode, for programs.

    Args:
        error: What went wrong.
        err: Takes the text for people, in every mode.
        next_lines: Commands to run next.
        json: Takes the error as the last line of JSON; None if the output is not JSON.
        color: Whether `err` takes colors.
        width: Columns of the terminal that `err` is; 0 if it is not a terminal.
    """
    if json is not None:
        with suppress(BrokenPipeError):  # the reader is gone; the text below and the exit code still report the error
            json.error(error, next_lines)
    err.write(format_error(error, next_lines, color=color, width=width))
    err.flush()
