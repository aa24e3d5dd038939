"""What the output and the end of one task tell, before they are compared with those of its peers."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from train.diagnosis.model import LARGEST_HEAD, LARGEST_TAIL, MOST_LINES, TaskEvidence
from train.diagnosis.rules import is_collateral, tells_of_peers
from train.diagnosis.text import is_chatter, is_noise, is_progress, lines_of, shortened
from train.diagnosis.tracebacks import Raised, find_all, frame_in

_LAST_WORDS = 60
_MOST_AFTERWORDS = 40
_PROGRESS_AFTER = 2
# How shells and container engines say by which signal a process died: 128 and its number.
_SHELL_SIGNALS = {128 + number: number for number in (1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 15)}
# How programs say it that exit with what Python's subprocess gave them: the number, negative.
_SHELL_SIGNALS.update({256 - number: number for number in (6, 7, 9, 11, 15)})
# By these a process may end itself while it goes down with an exception.
_CRASHES = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS)

_TASK = re.compile(r"/job:(\w{1,40})/(?:replica:\d{1,9}/)?task:(\d{1,9})")
_TASK_ALONE = re.compile(r"^\W{0,4}/job:(\w{1,40})/replica:\d{1,9}/task:(\d{1,9})\W{0,4}$")
_REPORTED = re.compile(r"Error reported from /job:(\w{1,40})/(?:replica:\d{1,9}/)?task:(\d{1,9})")
_TIMED_OUT = re.compile(r"Task /job:(\w{1,40})/replica:\d{1,9}/task:(\d{1,9}) heartbeat timeout")
_REMOTE = re.compile(r"remote target /job:(\w{1,40})/replica:\d{1,9}/task:(\d{1,9})")
_JOINED = re.compile(r"/job:(\w{1,40})/replica:\d{1,9}/task:(\d{1,9}) has connected to coordination service")
_AWAITED = re.compile(r"(?:still waiting for response from worker|Waiting for response from worker): ")
_BARRIER = re.compile(r"Barrier timed out\. .{0,20}(?:WaitForAllTasks|Wait_for_all_tasks|PjRT_Client_Connect)")
_WAITING = re.compile(r"Waiting for (\d{1,9})/\d{1,9} tasks to connect")
_HEARTBEAT = re.compile(
    r"(?:Deadline Exceeded|DEADLINE_EXCEEDED|RPC: /tensorflow|coordination service)"
    r"[\s\S]{0,4000}CoordinationService/Heartbeat"
)
_EPOCH = re.compile(r"^Epoch (\d{1,9})/\d{1,9}\b")
_STRUCTURE = re.compile(
    r"Detected at node|Node: |Graph execution error|\d+ root error\(s\) found|Original stack trace"
    r"|<stack traces unavailable|\d+ (?:successful operations|derived errors ignored)|Function call stack"
    r"|Errors may have originated|Input Source"
)
# Before the words of an exception: which of several it is, and where in the graph.
_PREAMBLE = re.compile(r"^(?:\(\d+\) \w[\w ]{0,40}: +|\{\{function_node .{0,400}?\}\} )")
_INNER = re.compile(r"^\s+\w{1,80}(?:Error|Exception): ?")


@dataclass(frozen=True)
class Reading:
    """One task's evidence, read.

    Attributes:
        evidence: What was read.
        lines: Its last output, cleaned.
        raised: The exceptions in it.
        tasks: By the names that TensorFlow has for them, the tasks that play these roles.
    """

    evidence: TaskEvidence
    lines: list[str] = field(repr=False)
    raised: list[Raised] = field(repr=False)
    tasks: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def task(self) -> str:
        """``worker-1``."""
        return self.evidence.task

    @property
    def ours(self) -> bool:
        """Whether we ended it."""
        return self.evidence.stopped_by_us

    @property
    def at(self) -> float:
        """When it ended, in seconds; infinite where that is not known."""
        return self.evidence.exited_at or float("inf")

    @property
    def name(self) -> str:
        """``worker-1 (10.0.0.3)``."""
        return f"{self.task} ({self.evidence.address})" if self.evidence.address else self.task

    @property
    def unseen(self) -> bool:
        """Whether nobody saw it end."""
        ended = self.evidence.exit
        return ended is None or (ended.code is None and ended.signal is None)

    @cached_property
    def signal(self) -> int:
        """By which signal it died; 0: by none."""
        ended = self.evidence.exit
        if ended is None:
            return 0
        if ended.signal:
            return ended.signal
        code = ended.code or 0
        if code < 0:
            return -code
        number = _SHELL_SIGNALS.get(code, 0)
        return number if number and not self._last_exception_near_end() else 0

    @property
    def code(self) -> int | None:
        """Its exit code; None: it died of a signal, or nobody saw it end."""
        return None if self.unseen or self.signal or self.evidence.exit is None else self.evidence.exit.code

    @cached_property
    def fatal(self) -> Raised | None:
        """The exception that ended it, as far as the log shows; None: it ended otherwise, or of a handled one."""
        if self.code == 0 and not self.ours:
            return None
        if self.signal and not self.ours and self.signal not in _CRASHES and self.signal != signal.SIGINT:
            return None
        return self._last_exception_near_end()

    @cached_property
    def collateral(self) -> bool:
        """Whether it failed only because a peer did."""
        if self.fatal:
            return is_collateral(self.fatal)
        if self.signal and self.signal not in _CRASHES:
            return False
        # A crash prints its calls after what TensorFlow said; an exit of its own choice follows at once.
        words = self.last_words if self.signal else self.last_words[-20:]
        return self.code != 0 and any(tells_of_peers(line) for line in words if is_noise(line))

    @cached_property
    def last_words(self) -> list[str]:
        """The last lines that are not empty."""
        return [line for line in self.lines[-4 * _LAST_WORDS :] if line.strip()][-_LAST_WORDS:]

    def _last_exception_near_end(self) -> Raised | None:
        main = [raised for raised in self.raised if not raised.aside]
        if not main:
            return None
        last = main[-1]
        words = progress = 0
        aside = {i for raised in self.raised if raised.aside for i in range(raised.first - 2, raised.end)}
        for number in range(last.end, len(self.lines)):
            line = self.lines[number]
            if line.strip() and number not in aside and not is_noise(line):
                words += 1
                progress += is_progress(line)
        return None if words > _MOST_AFTERWORDS or progress >= _PROGRESS_AFTER else last

    @cached_property
    def said(self) -> str:
        """The last line of its own that may tell something; empty: none."""
        silent = (line for line in reversed(self.last_words) if not (is_noise(line) or is_progress(line)))
        return next((line.strip() for line in silent if not _TASK_ALONE.match(line)), "")

    def _task(self, found: re.Match[str] | None) -> str:
        """The task that a line of TensorFlow names; empty: none."""
        role = f"{found.group(1)}-{int(found.group(2))}" if found else ""
        return self.tasks.get(role, role)

    def named(self, text: str) -> str:
        """The first task that a text of TensorFlow names; empty: none."""
        return self._task(_TASK.search(text))

    @cached_property
    def accused(self) -> list[str]:
        """The peers that it names as the ones that are gone, the likeliest first."""
        named: list[str] = []
        listing = False
        remote = ""
        for line in self.lines:
            alone = _TASK_ALONE.match(line) if listing else None
            listing = bool(alone) or "unhealthy (stopped sending heartbeats)" in line
            found = alone or _TIMED_OUT.search(line)
            if found:
                named.append(self._task(found))
            elif not remote and "CoordinationService/" not in line:
                remote = self._task(_REMOTE.search(line))
        if not named:
            named = [self._task(_REPORTED.search(line)) for line in self.lines if "Error reported from" in line]
        if not named and remote:
            named = [remote]
        return [name for name in dict.fromkeys(named) if name and name != self.task]

    @cached_property
    def awaited(self) -> list[str]:
        """The peers that it was still waiting for at its start; ``""`` stands for some that it did not name."""
        waiting: dict[str, None] = {}
        listing = False
        for line in self.lines:
            found = _WAITING.search(line)
            if found:
                waiting = {} if int(found.group(1)) == 0 else {"": None}
            if "has passed with status: OK" in line or is_progress(line):
                waiting = {}
            if _BARRIER.search(line):
                waiting.setdefault("")
            alone = _TASK_ALONE.match(line) if listing and waiting else None
            listing = bool(alone) or "Example stragglers:" in line or "imed out task names:" in line
            name = self._task(alone) if alone else self._task(_TASK.search(line)) if _AWAITED.search(line) else ""
            if name:
                waiting[name] = None
        return [name for name in waiting if name != self.task]

    @cached_property
    def arrived(self) -> set[str]:
        """The tasks that had joined when its output ended; empty: it was not waiting for any, or does not tell."""
        joined: set[str] = set()
        for line in self.lines:
            found = _JOINED.search(line)
            if found:
                joined.add(self._task(found))
            elif joined and line.strip() and not is_noise(line) and not _TASK_ALONE.match(line):
                return set()
        return joined

    @cached_property
    def progressed(self) -> bool:
        """Whether it trained."""
        return any(is_progress(line) for line in self.lines)

    @cached_property
    def serves(self) -> bool:
        """Whether it had come so far as to wait for the others."""
        return any("Started server with target" in line for line in self.lines)

    @cached_property
    def leads(self) -> bool:
        """Whether the coordination service of the cluster ran in it."""
        return any("Initializing CoordinationService" in line for line in self.lines)

    @cached_property
    def alone(self) -> bool:
        """Whether its server stood, and nothing happened after that."""
        started = [i for i, line in enumerate(self.lines) if "Started server with target" in line]
        return bool(started) and not any(line.strip() for line in self.lines[started[-1] + 1 :])

    @cached_property
    def lost_leader(self) -> bool:
        """Whether its own heartbeats had no answer."""
        text = self.fatal.message if self.fatal else "\n".join(self.last_words[-30:])
        return _HEARTBEAT.search(text) is not None

    @cached_property
    def first_epoch(self) -> int:
        """The epoch with which it began, as Keras counts; 0: it does not say."""
        head = lines_of(self.evidence.log_head[:LARGEST_HEAD])
        for line in (*head, *self.lines):
            found = _EPOCH.match(line)
            if found:
                return int(found.group(1))
        return 0


def read(evidence: TaskEvidence, tasks: Mapping[str, str]) -> Reading:
    """Read one task's evidence; linear in its size.

    Args:
        evidence: What is left of the task.
        tasks: By the names that TensorFlow has for them, the tasks that play these roles.
    """
    lines = lines_of(evidence.log_tail[-LARGEST_TAIL:] or evidence.log_head[:LARGEST_HEAD])
    return Reading(evidence, lines, find_all(lines), tasks)


def headline(raised: Raised) -> str:
    """What an exception says, in one line."""
    lines = raised.message.split("\n")
    if lines[0].startswith("in user code:"):  # a traceback of its own, indented
        inner = [number for number, line in enumerate(lines) if _INNER.match(line)]
        if inner:
            lines = [_INNER.sub("", lines[inner[-1]]), *(line.strip() for line in lines[inner[-1] + 1 :])]
    rest: list[str] = []
    for line in lines:
        text = line.strip()
        if not text or _STRUCTURE.match(text) or text.startswith(('File "', "[[{{")):
            continue
        if line[:1].isspace() and not rest and not text.startswith("("):
            continue  # source code below a file's name
        rest.append(_PREAMBLE.sub("", text))
        if not rest[-1].endswith(":") and not rest[-1].startswith("Exception encountered when calling"):
            break
    return shortened(" ".join(rest[-2:]), 240)


def excerpt(lines: list[str], raised: Raised) -> tuple[str, ...]:
    """The lines of a traceback that say most: its user's own last call, and the exception."""
    place = raised.place
    call: list[str] = []
    for number in range(raised.first, raised.at):
        text = lines[number].strip()
        if place and text.startswith('File "') and frame_in(text) == place:
            call = [line for line in lines[number : min(number + 2, raised.at)] if line.strip()]
    said = [line for line in lines[raised.at : raised.end] if line.strip()]
    most = MOST_LINES - 1 - len(call)
    if len(said) > most:
        said = [said[0], *said[1 - most :]]
    return tuple(shortened(line) for line in [lines[raised.first], *call, *said])


def ending(lines: list[str], most: int = MOST_LINES) -> tuple[str, ...]:
    """The last lines that are not empty; what libraries tell of their start only where there is nothing else."""
    filled = [line for line in lines if line.strip()]
    telling = [line for line in filled if not is_chatter(line)]
    return tuple(shortened(line) for line in (telling or filled)[-most:])
