"""What the output and the end of one task tell, before they are compared with those of its peers."""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from ipaddress import ip_address

from train.diagnosis.model import LARGEST_HEAD, LARGEST_TAIL, MOST_LINES, TaskEvidence
from train.diagnosis.rules import (
    is_answer,
    is_collateral,
    is_of_coordination,
    is_silence,
    status_in,
    tells_of_peers,
    type_of,
)
from train.diagnosis.text import error_in, is_chatter, is_noise, is_progress, lines_of, shortened
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
_REPORTED = re.compile(
    r"Error reported from /job:(\w{1,40})/(?:replica:\d{1,9}/)?task:(\d{1,9})"
    r"(?=:? ?$|: The following tasks are unhealthy|.{0,200}(?:heartbeat|connect|UNAVAILABLE|Socket closed))"
)
_TIMED_OUT = re.compile(r"Task /job:(\w{1,40})/replica:\d{1,9}/task:(\d{1,9}) heartbeat timeout")
_REMOTE = re.compile(r"remote target /job:(\w{1,40})/replica:\d{1,9}/task:(\d{1,9})")
_JOINED = re.compile(r"/job:(\w{1,40})/replica:\d{1,9}/task:(\d{1,9}) has connected to coordination service")
_AWAITED = re.compile(r"(?:still waiting for response from worker|Waiting for response from worker): ")
_BARRIER = re.compile(
    r"Barrier timed out\. .{0,20}(?:WaitForAllTasks|Wait_for_all_tasks|PjRT_Client_Connect)"
    r"|cluster registration failed"
)
_ANY_BARRIER = re.compile(r"Barrier timed out\. (?:Barrier_)?[Ii]d: ([\w\[\]./-]{1,80}?)(?:::|\. |$)")
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
# Before the words of an exception: which of several it is, where in the graph, and the collective that it came by.
_PREAMBLE = re.compile(
    r"^(?:\(\d+\) \w[\w ]{0,40}: +|\{\{function_node .{0,400}?\}\} )?(?:Collective ops is aborted by: ){0,4}(?=\S)"
)
# What a server answered to a request of HTTP, as TensorFlow quotes it.
_BODY = re.compile(r'"message"\s?:\s?"([^"\n]{1,300})|<(?:Message|Code)>([^<\n]{1,300})<')
# Addresses that gRPC names when it cannot connect; those of version 6 are in brackets or percent-encoded.
_ENDPOINT = re.compile(
    r"\bipv[46]:(?:(\d{1,3}(?:\.\d{1,3}){3})|(?:\[|%5B)([0-9a-fA-F:.]{2,45})(?:\]|%5D)):(\d{1,5})\b"
)
_DATA_SERVICE = re.compile(r"Failed to (?:register dataset|get or create \w+)|DataServiceDataset")
_CANNOT_CONNECT = re.compile(r"[Ff]ailed to connect|connections to all backends failing")
_OF_TASKS = re.compile(
    r"/job:\w|RPC: /tensorflow\.|/tensorflow\.(?:Worker|Master|Coordination|eager\.Eager)\w*Service"
)
_LISTENS = re.compile(r"(?:resolved for|bind addr=|binding to|listen on|address) ?'?\S{0,64}?:(\d{1,5})\b")
_HAS_LETTERS = re.compile(r"[^\W\d_]{2}")
_INNER = re.compile(r"^\s+\w{1,80}(?:Error|Exception): ?")


@dataclass(frozen=True)
class Remote:
    """An error that a request to a peer ended with.

    Attributes:
        task: The peer.
        status: Of gRPC; None: not known.
        text: What it says.
        line: Index of the line that names the peer.
    """

    task: str
    status: int | None
    text: str
    line: int

    @property
    def raised(self) -> Raised:
        """As the exception that TensorFlow makes of it."""
        return Raised(type_of(self.status or 0), self.text, (), 0, 0, 0)


@dataclass(frozen=True)
class Cluster:
    """The tasks of a job as the readings need them.

    Attributes:
        tasks: By the names that TensorFlow has for them, the tasks that have these roles.
        endpoints: Address and port of each; a port that is not known is 0.
    """

    tasks: Mapping[str, str] = field(default_factory=dict)
    endpoints: Collection[tuple[str, int]] = ()

    def has(self, address: str, port: int) -> bool:
        """Return whether a task listens there, or may do so: names are not resolved."""
        if not all(_is_address(known) for known, _ in self.endpoints):
            return True
        return any(known == address and number in (0, port) for known, number in self.endpoints)


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class Reading:
    """One task's evidence, read.

    Attributes:
        evidence: What was read.
        lines: Its last output, cleaned.
        raised: The exceptions in it.
        cluster: All tasks of the job.
    """

    evidence: TaskEvidence
    lines: list[str] = field(repr=False)
    raised: list[Raised] = field(repr=False)
    cluster: Cluster = field(default_factory=Cluster, repr=False)

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
            return is_collateral(self.fatal) and not self.service
        if self.signal and self.signal not in _CRASHES:
            return False
        # A crash prints its calls after what TensorFlow said; an exit of its own choice follows at once.
        words = self.last_words if self.signal else self.last_words[-20:]
        return self.code != 0 and any(
            tells_of_peers(line) if is_noise(line) else is_of_coordination(line) for line in words
        )

    @cached_property
    def service(self) -> str:
        """What its exception could not reach, if that is not a task of the job: address and port; else empty."""
        text = self.fatal.message if self.fatal else ""
        if _CANNOT_CONNECT.search(text) and _DATA_SERVICE.search(text) and not _ENDPOINT.search(text):
            return "the tf.data service"
        found = _ENDPOINT.findall(text) if _CANNOT_CONNECT.search(text) and not _OF_TASKS.search(text) else []
        ends = {(v4 or v6, int(port)) for v4, v6, port in found}
        if not ends or any(self.cluster.has(*end) for end in ends):
            return ""
        address, port = min(ends)
        return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"

    @cached_property
    def listens(self) -> int:
        """The last port on which it reports that it could not listen; 0: it does not name one."""
        ports = [
            found.group(1) for line in self.lines if "ddress" in line for found in [_LISTENS.search(line)] if found
        ]
        return int(ports[-1]) if ports else 0

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
        """The last line of its own, or the last error of a library, that may tell something; empty: none."""
        for line in reversed(self.last_words):
            words = error_in(line) if is_noise(line) else "" if is_progress(line) else line.strip()
            if _HAS_LETTERS.search(words) and not _TASK_ALONE.match(words):
                return words
        return ""

    @cached_property
    def error(self) -> str:
        """The last error that a library logged; empty: none."""
        return next(filter(None, map(error_in, reversed(self.last_words))), "")

    def _task(self, found: re.Match[str] | None) -> str:
        """The task that a line of TensorFlow names; empty: none."""
        role = f"{found.group(1)}-{int(found.group(2))}" if found else ""
        return self.cluster.tasks.get(role, role)

    def named(self, text: str) -> str:
        """The first task that a text of TensorFlow names; empty: none."""
        return self._task(_TASK.search(text))

    @cached_property
    def accused(self) -> list[str]:
        """The peers that it names as the ones that are gone, the likeliest first; none that answered."""
        named: list[str] = []
        listing = False
        for line in self.lines:
            alone = _TASK_ALONE.match(line) if listing else None
            listing = bool(alone) or "unhealthy (stopped sending heartbeats)" in line
            found = alone or _TIMED_OUT.search(line)
            if found:
                named.append(self._task(found))
        if not named:
            named = [self._task(_REPORTED.search(line)) for line in self.lines if "Error reported from" in line]
        if not named:
            named = [remote.task for remote in self.remotes if is_silence(remote.status)][:1]
        return [name for name in dict.fromkeys(named) if name and name != self.task]

    @cached_property
    def remotes(self) -> list[Remote]:
        """The errors that its requests to peers ended with, as they stand in its output, the first one first."""
        return [] if self.code == 0 else list(self._remotes())

    def _remotes(self) -> Iterator[Remote]:
        for number, line in enumerate(self.lines):
            found = _REMOTE.search(line)
            if not found or "CoordinationService/" in line:
                continue
            # TensorFlow puts gRPC's own text, with the status, behind the peer's name, and its message before it.
            after = "\n".join((line[found.end() :], *self.lines[number + 1 : number + 3]))
            before = [text for text in self.lines[max(0, number - 3) : number] if text.strip()][-1:] or [""]
            status = status_in(after)
            status = status_in(before[0]) if status is None else status
            yield Remote(self._task(found), status, _without_prefix(before[0]), number)

    @cached_property
    def answers(self) -> list[Remote]:
        """The errors of their own that peers answered with: those in its exception, or else in what was logged."""
        within = range(self.fatal.at, self.fatal.end) if self.fatal else range(0)
        answered = [one for one in self.remotes if is_answer(one.status) and one.task != self.task]
        own = [one for one in answered if not tells_of_peers(one.text) and "Ignoring an error" not in one.text]
        return [one for one in own if one.line in within] or own

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
    def barrier(self) -> tuple[str, list[str]]:
        """The barrier at which it waited in vain, and the peers that did not come; empty: there is none."""
        found = _ANY_BARRIER.search(self.fatal.message) if self.fatal else None
        if not found or not self.fatal:
            return "", []
        listed = self.fatal.message.partition("imed out task names:")[2].split("\n")
        names = [self._task(alone) for line in listed if (alone := _TASK_ALONE.match(line))]
        return found.group(1), [name for name in names if name != self.task]

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

    @property
    def is_server(self) -> bool:
        """Whether it is a parameter server, which only waits for what others ask of it."""
        return (self.evidence.role or self.task).startswith("ps-")

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


def read(evidence: TaskEvidence, cluster: Cluster) -> Reading:
    """Read one task's evidence; linear in its size.

    Args:
        evidence: What is left of the task.
        cluster: All tasks of the job.
    """
    lines = lines_of(evidence.log_tail[-LARGEST_TAIL:] or evidence.log_head[:LARGEST_HEAD])
    return Reading(evidence, lines, find_all(lines), cluster)


def _without_prefix(line: str) -> str:
    """Return what a line of a log or the first line of an exception says, without what stands before it."""
    text = error_in(line) or line.strip()
    text = re.sub(r"^(?:[\w.]{1,120}Error: |BaseCollectiveExecutor::StartAbort |Aborting RingReduce with )", "", text)
    text = re.sub(r"^[A-Z_]{4,20}: ", "", text)
    return _PREAMBLE.sub("", text)


def headline(raised: Raised) -> str:
    """Return what an exception says, in one line."""
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
        if rest[-1].endswith("{"):  # a value of several lines
            rest[-1] += "…" + next((line.strip() for line in lines if line.startswith("}")), "")
        if not rest[-1].endswith(":") and not rest[-1].startswith("Exception encountered when calling"):
            break
    said = " ".join(rest[-2:])
    body = _BODY.search(raised.message) if "HTTP response code" in said else None
    if body:  # the reason comes behind the beginning of what was answered
        said = f"{said.partition(' with body')[0]}: {body.group(1) or body.group(2)}"
    return shortened(said, 240)


def source_of(lines: list[str], raised: Raised) -> str:
    """Return the line of source code at the place of an exception; empty: its traceback does not show it."""
    return next((line.strip() for line in _call_of(lines, raised)[1:]), "")


def _call_of(lines: list[str], raised: Raised) -> list[str]:
    """Return the lines of a traceback for its user's own last call: the file, and the source code."""
    call: list[str] = []
    for number in range(raised.first, raised.at):
        text = lines[number].strip()
        if raised.place and text.startswith('File "') and frame_in(text) == raised.place:
            call = [line for line in lines[number : min(number + 2, raised.at)] if line.strip()]
    return call


def excerpt(lines: list[str], raised: Raised) -> tuple[str, ...]:
    """Return the lines of a traceback that say most: its user's own last call, and the exception."""
    call = _call_of(lines, raised)
    said = [line for line in lines[raised.at : raised.end] if line.strip()]
    most = MOST_LINES - 1 - len(call)
    if len(said) > most:
        said = [said[0], *said[1 - most :]]
    return tuple(shortened(line) for line in [lines[raised.first], *call, *said])


def ending(lines: list[str], most: int = MOST_LINES) -> tuple[str, ...]:
    """Return the last lines that say something; what libraries log at their start only if there is nothing else."""
    filled = [line for line in lines if line.strip()]
    telling = [line for line in filled if not is_chatter(line) and _HAS_LETTERS.search(line)]
    return tuple(shortened(line) for line in (telling or filled)[-most:])
