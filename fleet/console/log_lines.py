"""Untrusted text as lines for a terminal; pure.

The output of a task is untrusted, so only its text and colors reach the terminal: no cursor movements, no titles, and
no queries that a terminal answers on its input. Control sequences: ECMA-48, and
https://invisible-island.net/xterm/ctlseqs/ctlseqs.html.
"""

from __future__ import annotations

import re

from fleet.console.formatting import format_size
from fleet.jobs.following.log_view import final_state

LINE_MAX = 1000  # characters of a line that are shown

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


def render_line(line: str) -> str:
    """Return the final state of a line: at most LINE_MAX characters and a mark, no control sequences except colors.

    As on a terminal, text after a carriage return replaces the text before it, and text after backspaces
    replaces as many characters. A tab stays a tab. A line that is cut has no colors.
    """
    if _CONTROL.search(line):
        line = _clean_line(final_state(line))
    if len(line) <= LINE_MAX:
        return line
    text = _SGR.sub("", line)
    rest = len(text[LINE_MAX:].encode())
    if rest:
        return f"{text[:LINE_MAX]} … {format_size(rest)} more"
    return line if len(line) <= 8 * LINE_MAX else text  # more color sequences than this are not text


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
