"""Find Python's tracebacks in a log, also with other output between their lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from train.diagnosis.log_lines import TRACEBACK, is_library_line, is_progress

_MOST_MESSAGE_LINES = 400
_MOST_ORPHAN_LINES = 60

CONTEXT = "During handling of the above exception, another exception occurred:"
CAUSE = "The above exception was the direct cause of the following exception:"

_FRAME = re.compile(r'File "([^"]{1,1024})", line (\d{1,9})(?:, in (.{1,200}))?')
_ABOVE = " (see above for traceback)"  # after the type, if TensorFlow 1 is emulated
_NAMED = re.compile(rf"([A-Za-z_]\w{{0,120}}(?:\.[A-Za-z_<]\w{{0,120}}>?){{0,12}})(?:{re.escape(_ABOVE)})?(?:: ?|$)")
_BOXED = re.compile(r"[│|] (\S.{0,1000}):(\d{1,9}) in (\S{1,200})\s*[│|]?$")
_SUFFIX = re.compile(r"(?:Error|Exception|Warning|Interrupt|Exit|Iteration|Timeout|Group)$")
_LOWER = re.compile(r"(?:error|timeout)$")  # socket.gaierror, struct.error
_NO_TYPE = re.compile(r"(?:[A-Z_\d]+|Epochs?|Steps?|Loss|Iteration|Iter|Batch|Note|Hint|Traceback|File)$")
_SYNTAX = ("SyntaxError", "IndentationError", "TabError")
# Texts before a traceback that did not end the process.
_ASIDE = re.compile(
    r"Exception ignored (?:in|on)\b|Exception in thread\b|--- Logging error ---|Error in atexit|Process \S{1,80}:$"
    r"|Error in sys\.excepthook|Task exception was never retrieved|Future exception was never retrieved"
)
_LIBRARY = re.compile(
    r"/(?:site|dist)-packages/|/lib/python\d|^<|/tensorflow(?:_core)?/python/|__autograph_generated_file|/keras/src/"
    r"|\.p(?:yx|xd|xi)$"  # Cython, without the directory of the package
)
# What the coordinator of parameter servers logs before it cancels the requests that are left; the surest first.
_COORDINATOR = tuple(
    re.compile(rf"{words} (?!Cancelled)(\w{{1,80}}(?:Error|Exception))\(.{{0,400}}?\): ?(.*)")
    for words in ("Start cancelling closures due to error", "error when processing closure:", "failed with")
)


@dataclass(frozen=True)
class TracebackFrame:
    """One call of a traceback."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        name = re.split(r"[/\\]", self.file)[-1]
        return f"{name}:{self.line} in {self.function}" if self.function else f"{name}:{self.line}"


@dataclass(frozen=True)
class Raised:
    """An exception as a traceback shows it.

    Attributes:
        name: Its type as printed: ``tensorflow.python.framework.errors_impl.UnavailableError``.
        message: The text after the type, with its further lines.
        frames: Its calls, outermost first.
        first: Index of the line that begins it.
        at: Index of the line with its type.
        end: Index after the last line of its message.
        aside: True if it did not end the process: in a thread, in `__del__`, in a child process.
        before: The exception before it in the chain.
        caused: True if `before` is its direct cause; False if it was being handled.
    """

    name: str
    message: str
    frames: tuple[TracebackFrame, ...]
    first: int
    at: int
    end: int
    aside: bool = False
    before: Raised | None = None
    caused: bool = False

    @property
    def short(self) -> str:
        """``UnavailableError``."""
        return self.name.rpartition(".")[2]

    @property
    def location(self) -> str:
        """The innermost call in the user's code, of this exception or of one before it; empty: none."""
        raised: Raised | None = self
        while raised:
            user_frames = [frame for frame in raised.frames if not _LIBRARY.search(frame.file)]
            if user_frames:
                return str(user_frames[-1])
            raised = raised.before
        return str(self.frames[-1]) if self.frames else ""

    def chain(self) -> Iterator[Raised]:
        """Yield this exception and the exceptions before it."""
        raised: Raised | None = self
        while raised:
            yield raised
            raised = raised.before


def frame_in(text: str) -> str:
    """Return the call in a traceback's line without indentation, ``task.py:12 in main``; empty: none."""
    match = _FRAME.match(text)
    return str(_frame(match)) if match else ""


def _frame(match: re.Match[str]) -> TracebackFrame:
    return TracebackFrame(match.group(1), int(match.group(2)), match.group(3) or "")


def find_all(lines: list[str]) -> list[Raised]:
    """Return all exceptions with a complete traceback in `lines`, in order."""
    result: list[Raised] = []
    link = ""  # CONTEXT or CAUSE, if found since the last exception
    at = 0
    while at < len(lines):
        line = lines[at]
        if CONTEXT in line or CAUSE in line:
            link = CAUSE if CAUSE in line else CONTEXT
            at += 1
            continue
        raised, after = _parse(lines, at)
        if raised:
            before = result[-1] if result and (link or _is_quoted(raised, result[-1], lines)) else None
            result.append(_linked(raised, before, caused=link != CONTEXT))
            link = ""
        at = after
    return result


def cause_of(cancelled: Raised, raised: list[Raised], lines: list[str]) -> Raised:
    """Return the error before a CancelledError because of which work was cancelled; `cancelled` if there is none."""
    for pattern in _COORDINATOR:
        for at in range(cancelled.at - 1, -1, -1):
            match = pattern.search(lines[at])
            if match:
                logged, end = _raised(lines, match.group(1), cancelled.frames, at, at)
                message = "\n".join([match.group(2), *lines[at + 1 : end]]).rstrip()
                return replace(logged, message=message)
    earlier = [each for each in raised if each.at < cancelled.at and each.short != cancelled.short]
    return earlier[-1] if earlier else cancelled


def _is_quoted(raised: Raised, outer: Raised, lines: list[str]) -> bool:
    """Return whether a traceback is quoted in the message of another exception, as those of callbacks are."""
    between = lines[outer.end : raised.first]
    return f"{raised.short}: " in outer.message and not any(line.strip() for line in between)


def _linked(raised: Raised, before: Raised | None, *, caused: bool) -> Raised:
    aside = raised.aside or bool(before and before.aside)
    return replace(raised, aside=aside, before=before, caused=caused)


def _parse(lines: list[str], at: int) -> tuple[Raised | None, int]:
    """Return the exception that begins at `at`, and the next line to parse."""
    line = lines[at]
    if TRACEBACK in line:
        return _block(lines, at, at + 1, len(line) - len(line.lstrip()))
    if "Traceback (most recent call last)" in line and line.lstrip().startswith(("╭", "+-")):
        return _boxed(lines, at)
    if 'File "' in line and _syntax_error_follows(lines, at):
        return _block(lines, at, at, 0)
    return None, at + 1


def _syntax_error_follows(lines: list[str], at: int) -> bool:
    """Return whether the file and line at `at` belong to a syntax error instead of a call."""
    match = _FRAME.match(lines[at].strip())
    return bool(match) and any(line.startswith(_SYNTAX) for line in lines[at + 1 : at + 5])


def _block(lines: list[str], first: int, begin: int, column: int) -> tuple[Raised | None, int]:
    """Parse a traceback whose calls begin at line `begin` and whose header is at `column`."""
    frames: list[TracebackFrame] = []
    after_frame = False
    orphans = 0
    for at in range(begin, len(lines)):
        line = lines[at]
        text = line.strip()
        if TRACEBACK in line:  # this one was cut off, or is quoted in a message
            return None, at
        frame = _FRAME.match(text) if text.startswith('File "') else None
        if frame:
            frames.append(_frame(frame))
            after_frame = True
            continue
        if not text or is_library_line(line):
            continue
        indented = len(line) - len(line.lstrip()) > column
        name = None if indented else _type_in(text, strict=after_frame)
        if name:
            return _raised(lines, name, tuple(frames), first, at)
        orphans += not indented and not after_frame
        after_frame = False
        if orphans > _MOST_ORPHAN_LINES:
            return None, at + 1
    return None, len(lines)


def _type_in(text: str, *, strict: bool) -> str:
    """Return the type of the exception at the start of a line; empty: none.

    `strict` is for lines that may be source code without its indentation: then only names with a suffix that is usual
    for exceptions match.
    """
    match = _NAMED.match(text)
    if not match:
        return ""
    name = match.group(1)
    short = name.rpartition(".")[2]
    if _SUFFIX.search(short) or ("." in name and _LOWER.search(short)):
        return name
    if strict or _NO_TYPE.match(short) or not short[:1].isupper():
        return ""
    return name


def _raised(
    lines: list[str], name: str, frames: tuple[TracebackFrame, ...], first: int, at: int
) -> tuple[Raised, int]:
    """Return the exception named on line `at`, with the further lines of its message."""
    end = at + 1
    while end < len(lines) and end - at < _MOST_MESSAGE_LINES and not _ends_message(lines[end]):
        end += 1
    head = lines[at].strip()[len(name) :].removeprefix(_ABOVE).removeprefix(":").strip()
    message = "\n".join([head, *lines[at + 1 : end]]).rstrip()
    aside = any(_ASIDE.match(line) for line in lines[max(0, first - 4) : first])
    return Raised(name, message, frames, first, at, end, aside), end


def _ends_message(line: str) -> bool:
    return (
        TRACEBACK in line
        or CONTEXT in line
        or CAUSE in line
        or is_library_line(line)
        or _ASIDE.match(line) is not None
        or (is_progress(line) and "{{node" not in line)
    )


def _boxed(lines: list[str], first: int) -> tuple[Raised | None, int]:
    """Parse a traceback as rich draws it: in a box, with the exception below."""
    frames: list[TracebackFrame] = []
    for at in range(first + 1, len(lines)):
        text = lines[at].strip()
        call = _BOXED.match(text)
        if call:
            frames.append(TracebackFrame(call.group(1), int(call.group(2)), call.group(3)))
        if TRACEBACK in text or "Traceback (most recent call last)" in text:
            return None, at
        if not text.startswith(("│", "|", "╰", "+-")) and text and not is_library_line(text):
            name = _type_in(text, strict=False)
            return _raised(lines, name, tuple(frames), first, at) if name else (None, at)
    return None, len(lines)
