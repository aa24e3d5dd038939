"""Known failures: the rules of rules.toml, the words of verdicts, and texts that are typical of failures of peers."""

from __future__ import annotations

import re
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from train.agent.protocol.records import ReasonKind
from train.diagnosis import texts
from train.diagnosis.tracebacks import Raised
from train.diagnosis.verdict import Cause
from train.script import parse_toml
from train.script.arguments import LAUNCHERS
from train.script.keras import KERAS_3_HINT
from train.script.requirements import FILES


class Wording(NamedTuple):
    """The words for a cause; a rule may replace them."""

    clause: str  # after the name of the task
    hint: str = ""  # what to change, one sentence
    shared: str = ""  # of all tasks together


@dataclass(frozen=True)
class Rule:
    """A pattern that identifies a kind of failure.

    Attributes:
        kind: The class of the failure.
        text: Found in the message of the exception, or in the line; empty: any.
        types: Matches the whole short name of the exception; empty: any.
        unless: Excludes texts that contain it; empty: excludes none.
        shared: True if no single task is to blame because the tasks disagree with each other.
        clause: Replaces the clause of the kind; empty: the kind's clause.
        hint: Replaces the hint of the kind; empty: the kind's hint.
        calls: Found in the file of a call in the traceback; empty: raised in any file.
    """

    kind: Cause
    _: KW_ONLY
    text: str = ""
    types: str = ""
    unless: str = ""
    shared: bool = False
    clause: str = ""
    hint: str = ""
    calls: str = ""

    def fits(self, raised: Raised) -> bool:
        """Return whether this exception is such a failure."""
        if self.types and not re.fullmatch(self.types, raised.short):
            return False
        if self.calls and not any(re.search(self.calls, frame.file) for frame in raised.frames):
            return False
        return self.reads(raised.message)

    def reads(self, text: str) -> bool:
        """Return whether this text reports such a failure."""
        return bool(re.search(self.text, text)) and not (self.unless and re.search(self.unless, text))


# --- exceptions -------------------------------------------------------------------------------------------------

# Without a match in this one, no exception is collateral.
_COLLATERAL_TEXT = re.compile(
    r"Collective ops is aborted by|failed to connect to all addresses|Socket closed|recvmsg:|sendmsg:"
    r"|stopped sending heartbeats|heartbeat timeout|RPC: /tensorflow\.|Collective has timed out|Barrier "
    r"|Deadline Exceeded|\[_Derived_\]|Unable to find the relevant tensor remote_handle"
    r"|RecvAsync is cancelled|remote process exited or there was a network error|Failed to pick subchannel"
    r"|Horovod has been shut down|cluster registration failed|Unexpected task registered"
)
# Texts that only the coordination service writes, with or without the prefix of TensorFlow's log.
_COORDINATION_TEXT = re.compile(
    r"Barrier timed out\. |stopped sending heartbeats|CoordinationService/\w|cluster registration failed"
)
# Part of answers of peers, too: only the status distinguishes an answer from silence.
_REMOTE_TEXT = re.compile(r"Additional GRPC error information from remote target")
# Texts of gRPC that identify it only at the start of an exception's message.
_COLLATERAL_HEAD = re.compile(
    r"OS Error|Endpoint read failed|Trying to connect an http1\.x server|Broken pipe|GOAWAY|Stream removed"
    r"|keepalive watchdog timeout|Transport closed|No route to host|Network is unreachable|Connection reset by peer"
    r"|(?:Cancelled|CANCELLED)\s*$|\{\"created\".{0,200}\"description\":\"EOF\""
)
_COLLATERAL_TYPE = re.compile(
    r"(?:Unavailable|DeadlineExceeded|Internal|Cancelled|Aborted|InvalidArgument|XlaRuntime|JaxRuntime)Error"
    r"|InvalidArgument"
)
# A peer that ended and was restarted while this task continued.
RESTARTED_FOR_SURE = re.compile(
    r"different device incarnation|was probably restarted|Graph handle is not found|Unable to find a context_id"
)
RESTARTED = re.compile(
    rf"{RESTARTED_FOR_SURE.pattern}|different incarnation|has likely restarted"
    r"|incarnation doesn't match with one in the group"
)
TIMED_OUT = re.compile(r"Collective has timed out")
# Any exception of TensorFlow with these words is collateral.
_DERIVED = re.compile(r"Collective ops is aborted by|\[_Derived_\]")
# A peer's report about itself, or a disagreement of the whole group.
_NEVER_COLLATERAL = re.compile(
    r"unknown device\.|Collective instance \d+ expected type|joining a group|that group has size"
    r"|Shape mismatch in the collective instance|found no source for broadcast"
    r"|different (?:device )?incarnation|incarnation doesn't match"
    r"|DNS resolution failed|Domain name not found|Name or service not known"
    r"|errors resolving |Address lookup failed"
)

# --- rules.toml -----------------------------------------------------------------------------------------------------

_TABLES = parse_toml(Path(__file__).with_name("rules.toml").read_text(encoding="utf-8"))
_FRAGMENTS = {
    "launchers": LAUNCHERS,
    "restarted": RESTARTED_FOR_SURE.pattern,
    "files": FILES,
    "keras_3_hint": KERAS_3_HINT,
    **{name.lower(): text for name, text in vars(texts).items() if name.endswith("_HINT")},
}


def _filled(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with its fragments; one of several patterns must fit."""
    result = {key: "|".join(value) if isinstance(value, list) else value for key, value in row.items()}
    for key, value in result.items():
        if isinstance(value, str):
            result[key] = re.sub(r"\{(\w*[a-z]\w*)\}", lambda name: _FRAGMENTS[name[1]], value)
    return result


_FRAGMENTS |= _filled(_TABLES["fragments"])
WORDING = {Cause(kind): Wording(**_filled(row)) for kind, row in _TABLES["wording"].items()}


def _rules(table: str, kind: Cause = Cause.UNKNOWN) -> tuple[Rule, ...]:
    return tuple(Rule(**{**_filled(row), "kind": Cause(row.get("kind", kind))}) for row in _TABLES[table])


EXCEPTIONS = _rules("exceptions")
SCRIPT_HINTS = _rules("script_hints", Cause.SCRIPT_EXCEPTION)
"""Hints for exceptions of the script or the host that have no other kind."""
MEMORY, MEMORY_WORDS = _rules("memory"), _rules("memory_words")
"""Out of memory, or a consequence of it: only earlier lines, the words, show whether on the host or the GPU."""
LAST_WORDS, EARLY_WORDS = _rules("last_words"), _rules("early_words")
"""Last lines of a process that ended without an exception, or with exit code 0 while the others needed it."""

# Of a file that Keras downloads: a task finds it there before another one has written all of it.
INCOMPLETE = Rule(
    Cause.SAVE_CONFLICT,
    types=r"BadZipFile|BadGzipFile|ReadError|EOFError|UnpicklingError",
    clause="read an incomplete file that another task was downloading to the same place",
    hint="download the file once before the job, or give each task its own directory for it, with cache_dir of "
    "get_file or KERAS_HOME",
)
DOWNLOADING = re.compile(r"^Downloading data from https?://")

# In the last line of a program that ends itself with code 1, as sys.exit("no data") does.
COMPLAINT = re.compile(
    r"(?i)\b(?:not?|\w+n't|cannot|none|nothing|never|missing|must|needs?|require[sd]?|invalid|errors?|fail\w*"
    r"|unable|un(?:known|supported)|wrong|expect\w*|bad|too|without|abort\w*|only|empty|give|giving up|lacks?)\b"
)

# --- reasons that an agent gives ----------------------------------------------------------------------------------

REASONS = {
    ReasonKind.TIMEOUT: Cause.DEADLINE,
    ReasonKind.LIFETIME: Cause.LIFETIME,
    ReasonKind.HANG: Cause.HANG,
    ReasonKind.AGENT_KILLED: Cause.KILLED,
    ReasonKind.PREEMPTED: Cause.PREEMPTED,
    ReasonKind.HOST_LOST: Cause.PEER_UNREACHABLE,
    ReasonKind.UNREACHABLE: Cause.PEER_UNREACHABLE,
    ReasonKind.DISK_FULL: Cause.DISK_FULL,
    ReasonKind.OUT_OF_MEMORY: Cause.HOST_OUT_OF_MEMORY,
    ReasonKind.KILLED: Cause.KILLED,
    ReasonKind.NOT_JOINED: Cause.PEER_NEVER_STARTED,
    ReasonKind.NAME_RESOLUTION: Cause.NAME_RESOLUTION,
    ReasonKind.PORT_IN_USE: Cause.PORT_IN_USE,
    ReasonKind.VERSIONS: Cause.VERSION_MISMATCH,
}
"""Class of the cause for each reason; the cause is unknown for all others."""
# Decisions of the gang; they take precedence over logs.
DECISIONS = (
    ReasonKind.TIMEOUT,
    ReasonKind.LIFETIME,
    ReasonKind.HANG,
    ReasonKind.AGENT_KILLED,
    ReasonKind.PREEMPTED,
    ReasonKind.HOST_LOST,
)
# For a task that its agent stopped, only these reasons are causes.
INDEPENDENT_REASONS = (ReasonKind.DISK_FULL, ReasonKind.OUT_OF_MEMORY, ReasonKind.PREEMPTED)

# --- statuses that peers answered with ----------------------------------------------------------------------------

# The peer did not answer at all: DEADLINE_EXCEEDED and UNAVAILABLE of gRPC.
_SILENT = {4, 14}
_CANCELLED = 1  # aborted by the caller; no information about the peer
_STATUS = re.compile(r"grpc_status\"?: ?(\d{1,2})")
_STATUS_FIRST = re.compile(r"Error received from peer .{0,80}?\{grpc_status: ?(\d{1,2})")
_STATUS_NAMES = {
    "CANCELLED": 1, "UNKNOWN": 2, "INVALID_ARGUMENT": 3, "DEADLINE_EXCEEDED": 4, "NOT_FOUND": 5, "ALREADY_EXISTS": 6,
    "PERMISSION_DENIED": 7, "RESOURCE_EXHAUSTED": 8, "FAILED_PRECONDITION": 9, "ABORTED": 10, "OUT_OF_RANGE": 11,
    "UNIMPLEMENTED": 12, "INTERNAL": 13, "UNAVAILABLE": 14, "DATA_LOSS": 15,
}  # fmt: skip
_TYPES_OF = {name.replace("_", "").lower() + "error": number for name, number in _STATUS_NAMES.items()}
_NAMED_STATUS = re.compile(rf"\b({'|'.join(_STATUS_NAMES)}): |\b(\w{{5,24}}Error): ")


def status_in(text: str) -> int | None:
    """Return the gRPC status in a text: the number if it has one, otherwise the first name; None: none.

    An answer may quote the answer of another peer: the outer status comes first or last in its line.
    """
    line = next((line for line in text.split("\n") if _STATUS.search(line)), "")
    first = _STATUS_FIRST.search(line)
    numbers = [first.group(1)] if first else _STATUS.findall(line)
    if numbers:
        return int(numbers[-1])
    for named in _NAMED_STATUS.finditer(text):
        number = _STATUS_NAMES.get(named.group(1) or "") or _TYPES_OF.get((named.group(2) or "").lower())
        if number:
            return number
    return None


def is_silence(status: int | None) -> bool:
    """Return whether this status means that the peer did not answer; None means so too."""
    return status is None or status in _SILENT


def is_answer(status: int | None) -> bool:
    """Return whether a peer answered with an error of its own."""
    return status is not None and status not in _SILENT and status != _CANCELLED


def type_of(status: int) -> str:
    """Return the name of TensorFlow's exception for a status: ``InvalidArgumentError``."""
    name = next((name for name, number in _STATUS_NAMES.items() if number == status), "UNKNOWN")
    return "".join(word.capitalize() for word in name.split("_")) + "Error"


def is_collateral(raised: Raised) -> bool:
    """Return whether an exception only reports that a peer is gone, or that a failure aborted the collective."""
    return not _NEVER_COLLATERAL.search(raised.message) and any(_is_collateral(link) for link in raised.chain())


def _is_collateral(raised: Raised) -> bool:
    if raised.short.endswith("Error") and _DERIVED.search(raised.message):
        return True
    if _COLLATERAL_TYPE.fullmatch(raised.short) is None:
        return False
    return mentions_peers(raised.message) or _COLLATERAL_HEAD.match(raised.message) is not None


def mentions_peers(text: str) -> bool:
    """Return whether a text is typical of a failure that another task caused."""
    if _COLLATERAL_TEXT.search(text):
        return True
    return _REMOTE_TEXT.search(text) is not None and not is_answer(status_in(text))


def is_of_coordination(text: str) -> bool:
    """Return whether a text comes from the coordination service, whichever process printed it."""
    return _COORDINATION_TEXT.search(text) is not None


def rule_of(raised: Raised) -> Rule | None:
    """Return the rule that fits an exception, or else its direct cause."""
    link: Raised | None = raised
    while link:
        for rule in EXCEPTIONS:
            if rule.fits(link):
                return rule
        # An iterator of TensorFlow that is at its end raises StopIteration while it handles OutOfRangeError.
        link = link.before if link.caused or link.short == "StopIteration" else None
    return None


def hint_of(raised: Raised) -> str:
    """Return the hint for an exception that no rule classifies; empty: none."""
    return next((rule.hint for rule in SCRIPT_HINTS if rule.fits(raised)), "")


def find_rule(text: str, rules: tuple[Rule, ...]) -> Rule | None:
    """Return the first of `rules` that reads `text`."""
    return next((rule for rule in rules if rule.reads(text)), None)
