"""The one place that prints errors."""

from __future__ import annotations

from contextlib import suppress
from typing import TextIO

from fleet.console.colors import paint
from fleet.console.jsonl import JsonSink
from fleet.console.logtext import clean
from fleet.errors import FleetError


def error_text(error: FleetError, *, color: bool = False) -> str:
    """An error as one to three paragraphs: the sentence, its cause, what to do next.

    Further lines of a paragraph are indented, so that each stays recognisable.
    """
    parts = [("fleet", error.sentence, "bold red"), ("cause", error.cause, "dim"), ("next", error.next_step, "dim")]
    text = ""
    for label, words, style in parts:
        lines = [clean(line) for line in words.strip().split("\n")]
        if lines == [""]:
            continue
        if label == "fleet" and lines[-1][-1:] not in (".", "!", "?", ":"):
            lines[-1] += "."
        head = paint(f"{label}:", style if color else "")
        indent = "\n" + " " * (len(label) + 2)
        text += f"{head} {indent.join(lines)}\n"
    return text


def print_error(error: FleetError, err: TextIO, *, json: JsonSink | None = None, color: bool = False) -> None:
    """Print an error for the reader and, where programs read along, for them.

    Args:
        error: What went wrong.
        err: Takes the text for people, in every mode.
        json: Takes the error as the last line of JSON, where the output is JSON.
        color: Whether `err` takes colours.
    """
    if json is not None:
        with suppress(BrokenPipeError):  # nobody reads it; the text below and the exit code still tell
            json.error(error)
    err.write(error_text(error, color=color))
    err.flush()
