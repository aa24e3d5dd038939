"""Finds Python's tracebacks in a log, whatever stands around and between their lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from train.diagnosis.text import TRACEBACK, is_noise, is_progress

_MOST_MESSAGE_LINES = 400
_MOST_ORPHAN_LINES = 60

CONTEXT = "During handling of the above exception, another exception occurred:"
CAUSE = "The above exception was the direct cause of the following exception:"

_FRAME = re.compile(r'File "([^"]{1,1024})", line (\d{1,9})(?:, in (.{1,200}))?')
_NOTEBOOK = re.compile(r"([A-Za-z_][\w.]{0,120})\s{2,}Traceback \(most recent call last\)$")
_CELL = re.compile(r"(?:Cell )?In\s?\[(\d+)\], line (\d+)")
_ABOVE = " (see above for traceback)"  # behind the type, where TensorFlow 1 is emulated
_NAMED = re.compile(rf"([A-Za-z_]\w{{0,120}}(?:\.[A-Za-z_<]\w{{0,120}}>?){{0,12}})(?:{re.escape(_ABOVE)})?(?:: ?|$)")
_BOXED = re.compile(r"[│|] (\S.{0,1000}):(\d{1,9}) in (\S{1,200})\s*[│|]?$")
_SUFFIX = re.compile(r"(?:Error|Exception|Warning|Interrupt|Exit|Iteration|Timeout|Group)$")
_LOWER = re.compile(r"(?:error|timeout)$")  # socket.gaierror, struct.error
_NO_TYPE = re.compile(r"(?:[A-Z_\d]+|Epochs?|Steps?|Loss|Iteration|Iter|Batch|Note|Hint|Traceback|File)$")
_SYNTAX = ("SyntaxError", "IndentationError", "TabError")
# What stands before a traceback that did not end the process.
_ASIDE = re.compile(
    r"Exception ignored (?:in|on)\b|Exception in thread\b|--- Logging error ---|Error in atexit|Process \S{1,80}:$"
    r"|Error in sys\.excepthook|Task exception was never retrieved|Future exception was never retrieved"
)
_LIBRARY = re.compile(
    r"/(?:site|dist)-packages/|/lib/python\d|^<|/tensorflow(?:_core)?/python/|__autograph_generated_file|/keras/src/"
)


@dataclass(frozen=True)
class Frame:
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
        message: What follows the type, with its further lines.
        frames: Its calls, outermost first.
        first: Index of the line that begins it.
        at: Index of the line with its type.
        end: Index after the last line of its message.
        aside: Whether it did not end the process: in a thread, in `__del__`, in a child process.
        before: The exception before it in the chain.
        caused: Whether `before` is its direct cause, and not only what was being handled.
    """

    name: str
    message: str
    frames: tuple[Frame, ...]
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
    def place(self) -> str:
        """Innermost call in the user's own code, of this exception or of what it comes from; empty: none."""
        raised: Raised | None = self
        while raised:
            own = [frame for frame in raised.frames if not _LIBRARY.search(frame.file)]
            if own:
                return str(own[-1])
            raised = raised.before
        return str(self.frames[-1]) if self.frames else ""

    def chain(self) -> Iterator[Raised]:
        """This exception, and those that it came from."""
        raised: Raised | None = self
        while raised:
            yield raised
            raised = raised.before


def frame_in(text: str) -> str:
    """``task.py:12 in main``, of a traceback's line without its indentation; empty: it is no call."""
    found = _FRAME.match(text)
    return str(_frame(found)) if found else ""


def _frame(found: re.Match[str]) -> Frame:
    return Frame(found.group(1), int(found.group(2)), found.group(3) or "")


def find_all(lines: list[str]) -> list[Raised]:
    """All exceptions whose tracebacks are in `lines`, in order; those that are cut off are left out."""
    found: list[Raised] = []
    link = ""  # CONTEXT or CAUSE, met since the last exception
    at = 0
    while at < len(lines):
        line = lines[at]
        if CONTEXT in line or CAUSE in line:
            link = CAUSE if CAUSE in line else CONTEXT
            at += 1
            continue
        raised, after = _parse(lines, at)
        if raised:
            before = found[-1] if found and (link or _is_quoted(raised, found[-1], lines)) else None
            found.append(_linked(raised, before, caused=link != CONTEXT))
            link = ""
        at = after
    return found


def _is_quoted(raised: Raised, outer: Raised, lines: list[str]) -> bool:
    """Return whether a traceback stands in the message of another exception, as those of callbacks do."""
    between = lines[outer.end : raised.first]
    return f"{raised.short}: " in outer.message and not any(line.strip() for line in between)


def _linked(raised: Raised, before: Raised | None, *, caused: bool) -> Raised:
    aside = raised.aside or bool(before and before.aside)
    return Raised(
        raised.name, raised.message, raised.frames, raised.first, raised.at, raised.end, aside, before, caused
    )


def _parse(lines: list[str], at: int) -> tuple[Raised | None, int]:
    """The exception that begins at `at`, and where to look next."""
    line = lines[at]
    if TRACEBACK in line:
        return _block(lines, at, at + 1, len(line) - len(line.lstrip()))
    if "Traceback (most recent call last)" in line:
        found = _NOTEBOOK.match(line)
        if found:
            return _notebook(lines, at, found.group(1))
        if line.lstrip().startswith(("╭", "+-")):
            return _boxed(lines, at)
    if 'File "' in line and _syntax_error_follows(lines, at):
        return _block(lines, at, at, 0)
    return None, at + 1


def _syntax_error_follows(lines: list[str], at: int) -> bool:
    """Whether a file and line stand at `at` for which the compiler, and no call, is to blame."""
    found = _FRAME.match(lines[at].strip())
    return bool(found) and any(line.startswith(_SYNTAX) for line in lines[at + 1 : at + 5])


def _block(lines: list[str], first: int, begin: int, column: int) -> tuple[Raised | None, int]:
    """A traceback whose calls begin at line `begin`, and whose header stands at `column`."""
    frames: list[Frame] = []
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
        if not text or is_noise(line):
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
    """The type of an exception with which a line begins; empty: it does not.

    `strict` where the line may be source code that lost its indentation: then only a name that ends as the names of
    exceptions do.
    """
    found = _NAMED.match(text)
    if not found:
        return ""
    name = found.group(1)
    short = name.rpartition(".")[2]
    if _SUFFIX.search(short) or ("." in name and _LOWER.search(short)):
        return name
    if strict or _NO_TYPE.match(short) or not short[:1].isupper():
        return ""
    return name


def _raised(lines: list[str], name: str, frames: tuple[Frame, ...], first: int, at: int) -> tuple[Raised, int]:
    """The exception named on line `at`, with the further lines of its message."""
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
        or is_noise(line)
        or _ASIDE.match(line) is not None
        or (is_progress(line) and "{{node" not in line)
    )


def _boxed(lines: list[str], first: int) -> tuple[Raised | None, int]:
    """A traceback as rich draws it, in a box, with the exception below."""
    frames: list[Frame] = []
    for at in range(first + 1, len(lines)):
        text = lines[at].strip()
        call = _BOXED.match(text)
        if call:
            frames.append(Frame(call.group(1), int(call.group(2)), call.group(3)))
        if TRACEBACK in text or "Traceback (most recent call last)" in text:
            return None, at
        if not text.startswith(("│", "|", "╰", "+-")) and text and not is_noise(text):
            name = _type_in(text, strict=False)
            return _raised(lines, name, tuple(frames), first, at) if name else (None, at)
    return None, len(lines)


def _notebook(lines: list[str], first: int, name: str) -> tuple[Raised | None, int]:
    """A traceback as IPython prints it: the type stands before it, and again before the message."""
    frames: list[Frame] = []
    for at in range(first + 1, len(lines)):
        line = lines[at]
        cell = _CELL.match(line)
        if cell:
            frames.append(Frame(f"In[{cell.group(1)}]", int(cell.group(2)), ""))
        if line.startswith(name) and line[len(name) :][:1] in ("", ":"):
            return _raised(lines, name, tuple(frames), first, at)
        if _NOTEBOOK.match(line) or TRACEBACK in line:
            return None, at
    return None, len(lines)
