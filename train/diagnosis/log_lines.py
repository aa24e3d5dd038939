"""Split log bytes into lines without control characters; sizes are bounded."""

from __future__ import annotations

import re

TRACEBACK = "Traceback (most recent call last):"

_LONGEST_LINE = 4096

_BREAK = re.compile(r"\r?\n")
_NO_WORDS = re.compile(r"[\W\d_]+")
_CONTROL = re.compile(
    r"\x1b\[[0-?]{0,32}[ -/]{0,8}[@-~]"  # colours and cursor
    r"|\x1b\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)"  # window titles
    r"|[\x00-\x08\x0b-\x1f\x7f]"
)
# Log lines of TensorFlow, absl, gRPC, and NCCL; their text never belongs to an exception.
_LIBRARY_LINE = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [DIWEF] \S"
    r"|[DIWEF]\d{4} \d\d:\d\d:\d\d"
    r"|(?:DEBUG|INFO|WARNING|ERROR):[\w.]+:"
    r"|WARNING: All log messages before absl"
    r"|To enable the following instructions"
    r"|\S{1,80}:\d+:\d+ \[\d+\] .{0,60}NCCL "
)
_CHATTER = re.compile(
    r"(?:\S+ \S+: )?[DIW](?:\d{4})? |(?:DEBUG|INFO):|WARNING: All|To enable|\S{1,80}:\d+:\d+ \[\d+\] NCCL INFO"
)
# The prefix of errors that TensorFlow, absl, or NCCL log, and errors that they log at every start.
_ERROR_PREFIX = re.compile(
    r"(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [EF]|[EF]\d{4} \d\d:\d\d:\d{2,12}\.?\d* +\d+) \S{1,120}:\d+\] "
    r"|ERROR:[\w.]{1,40}:|\S{1,80}:\d+:\d+ \[\d+\] (?:\S{1,60}:\d+ )?(?=NCCL WARN )"
)
_AT_START = re.compile(r"failed call to cuInit|Unable to register cu\w+ factory|[Aa]ttempting to register factory")
_PROGRESS = re.compile(
    r"\b(?:epoch|step|iter|iteration|batch)s?\b\W{0,4}\d"
    r"|\b\w{0,24}loss\W{1,4}[-+]?(?:\d|nan|inf)"
    r"|^\s*\d+/(?:\d+|Unknown)\s+(?:\[|━|-\s|\d+m?s)",
    re.IGNORECASE,
)
_BAR = re.compile(r"^\s*\d+/(?:\d+|Unknown)\s+(?:\[|━|-\s|\d+m?s)|\d{1,3}(?:\.\d+)?%\s?[|\[]")


def lines_of(data: bytes) -> list[str]:
    """Return the lines of a log, without control characters.

    A carriage return ends a line as a newline does, but only the last state of a progress bar is kept. The middle of
    a line longer than 4 KiB is left out.
    """
    text = data.decode("utf-8", "replace")
    return [_clean(part) for line in _BREAK.split(text) for part in _drawn(line)]


def _drawn(line: str) -> list[str]:
    """Return what carriage returns separate in a line, without the earlier states of what was drawn over."""
    parts = line.split("\r")
    if len(parts) == 1:
        return parts
    shown = [part for part in parts if part.strip("\x08 ")]
    following = [*shown, ""][1:]
    return [part for part, after in zip(shown, following, strict=True) if not _is_redrawn(part, after)] or [""]


def _is_redrawn(part: str, after: str) -> bool:
    """Return whether `after` is a later state of the same line: a progress bar, or the same words."""
    if not after:
        return False
    clean = _clean(part)
    return _BAR.search(clean[:400]) is not None or _NO_WORDS.sub("", clean) == _NO_WORDS.sub("", _clean(after))


def _clean(line: str) -> str:
    if len(line) > _LONGEST_LINE:
        line = line[: _LONGEST_LINE - 1024] + " … " + line[-1024:]
    return _CONTROL.sub("", line).rstrip()


def is_library_line(line: str) -> bool:
    """Return whether this is a log line of a library."""
    return _LIBRARY_LINE.match(line) is not None


def is_chatter(line: str) -> bool:
    """Return whether this is an informational log line of a library, or one that it prints at every start."""
    return is_library_line(line) and (_CHATTER.match(line) is not None or _AT_START.search(line) is not None)


def error_in(line: str) -> str:
    """Return the text of an error or warning that a library logged, without its prefix; empty: none."""
    match = _ERROR_PREFIX.match(line)
    return line[match.end() :].strip() if match and not _AT_START.search(line) else ""


def is_progress(line: str) -> bool:
    """Return whether this line reports that training continues."""
    return _PROGRESS.search(line[:400]) is not None


def shortened(line: str, most: int = 300) -> str:
    """Return the line, cut to `most` characters."""
    return line if len(line) <= most else line[: most - 1] + "…"
