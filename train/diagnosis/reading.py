"""Parse the output and the exit of one task, before they are compared with those of its peers."""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from ipaddress import ip_address

from train.agent.protocol.wording import endpoint
from train.diagnosis.log_lines import error_in, is_chatter, is_library_line, is_progress, lines_of, shortened
from train.diagnosis.rules import (
    is_answer,
    is_collateral,
    is_of_coordination,
    is_silence,
    mentions_peers,
    status_in,
    type_of,
)
from train.diagnosis.tracebacks import Raised, cause_of, find_all, frame_in
from train.diagnosis.verdict import LARGEST_HEAD, LARGEST_TAIL, MOST_LINES, TaskEvidence

_LAST_WORDS = 60
_MOST_AFTERWORDS = 40
_PROGRESS_AFTER = 2
# Shells and container engines report a signal as 128 plus its number.
_SHELL_SIGNALS = {128 + number: number for number in (1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 15)}
# Programs that exit with the return code of Python's subprocess report it as the negative number.
_SHELL_SIGNALS.update({256 - number: number for number in (6, 7, 9, 11, 15)})
# A process may end itself with these signals while it handles an exception.
_CRASHES = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS)

_TASK = re.compile(r"/job:(\w{1,40})/(?:replica:\d{1,9}/)?task:(\d{1,9})")
_TASK_LINE = re.compile(r"^\W{0,4}/job:(\w{1,40})/replica:\d{1,9}/task:(\d{1,9})\W{0,4}$")
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
# Before the message of an exception: its number, its place in the graph, and the collective that failed.
_PREAMBLE = re.compile(
    r"^(?:\(\d+\) \w[\w ]{0,40}: +|\{\{function_node .{0,400}?\}\} )?(?:Collective ops is aborted by: ){0,4}(?=\S)"
)
# The body of an HTTP response, as TensorFlow quotes it.
_BODY = re.compile(r'"message"\s?:\s?"([^"\n]{1,300})|<(?:Message|Code)>([^<\n]{1,300})<')
# Addresses that gRPC names when it cannot connect; IPv6 addresses are in brackets or percent-encoded.
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
_GRPC_NAME = re.compile(r"DNS resolution failed|Domain name not found|errors resolving |Address lookup failed")
_LONGEST_HEADLINE = 240
_OBJECT = re.compile(r"<[^<>]{30,}>")
_ARRAY = re.compile(r"(<[^<>\n]{1,400}),? numpy=\s[^<>]{0,4000}>")  # a variable with its value in several lines
_INNER = re.compile(r"^\s+\w{1,80}(?:Error|Exception): ?")


@dataclass(frozen=True)
class Remote:
    """An error that a request to a peer ended with.

    Attributes:
        task: The peer.
        status: The gRPC status; None if unknown.
        text: The error message.
        line: Index of the line that names the peer.
    """

    task: str
    status: int | None
    text: str
    line: int

    @property
    def raised(self) -> Raised:
        """The error as the exception that TensorFlow raises for it."""
        return Raised(type_of(self.status or 0), self.text, (), 0, 0, 0)


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class Reading:
    """The parsed evidence of one task.

    Attributes:
        evidence: The evidence.
        lines: Its last output, cleaned.
        raised: The exceptions in it.
        endpoints: Address and port of all tasks of the job; an unknown port is 0.
    """

    evidence: TaskEvidence
    lines: list[str] = field(repr=False)
    raised: list[Raised] = field(repr=False)
    endpoints: Collection[tuple[str, int]] = field(default=(), repr=False)

    @property
    def task(self) -> str:
        """``worker-1``."""
        return self.evidence.task

    @property
    def ours(self) -> bool:
        """True if fleet stopped it."""
        return self.evidence.stopped_by_us

    @property
    def at(self) -> float:
        """The time of its end in seconds; infinite if unknown."""
        return self.evidence.exited_at or float("inf")

    @property
    def name(self) -> str:
        """``worker-1 (10.0.0.3)``."""
        return f"{self.task} ({self.evidence.address})" if self.evidence.address else self.task

    @property
    def unseen(self) -> bool:
        """True if its exit status is unknown."""
        ended = self.evidence.exit
        return ended is None or (ended.code is None and ended.signal is None)

    @cached_property
    def signal(self) -> int:
        """The signal that killed it; 0: none."""
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
        """Its exit code; None: killed by a signal, or unknown."""
        return None if self.unseen or self.signal or self.evidence.exit is None else self.evidence.exit.code

    @cached_property
    def fatal(self) -> Raised | None:
        """The exception that ended it, as far as the log shows; None: it ended for another reason."""
        if self.code == 0 and not self.ours:
            return None
        if self.signal and not self.ours and self.signal not in _CRASHES and self.signal != signal.SIGINT:
            return None
        last = self._last_exception_near_end()
        return cause_of(last, self.raised, self.lines) if last and last.short == "CancelledError" else last

    @cached_property
    def collateral(self) -> bool:
        """True if it failed only because a peer failed."""
        if self.fatal:
            return is_collateral(self.fatal) and not self.service
        if self.signal and self.signal not in _CRASHES:
            return False
        # A crash prints its calls after TensorFlow's message; a normal exit follows the message immediately.
        words = self.last_words if self.signal else self.last_words[-20:]
        return self.code != 0 and any(
            mentions_peers(line) if is_library_line(line) else is_of_coordination(line) for line in words
        )

    @cached_property
    def service(self) -> str:
        """Address and port that its exception could not reach, if no task of the job listens there; else empty."""
        text = self.fatal.message if self.fatal else ""
        if _CANNOT_CONNECT.search(text) and _DATA_SERVICE.search(text) and not _ENDPOINT.search(text):
            return "the tf.data service"
        match = _ENDPOINT.findall(text) if _CANNOT_CONNECT.search(text) and not _OF_TASKS.search(text) else []
        ends = {(v4 or v6, int(port)) for v4, v6, port in match}
        if not ends or any(self._may_be_task(*end) for end in ends):
            return ""
        address, port = min(ends)
        return endpoint(address, port)

    def _may_be_task(self, address: str, port: int) -> bool:
        """Return whether a task listens there, or may do so: names are not resolved."""
        named = any(not _is_address(host) for host, _ in self.endpoints)
        return named or any(host == address and number in (0, port) for host, number in self.endpoints)

    @cached_property
    def names_task(self) -> bool:
        """True if a name that its exception could not resolve may be that of a task."""
        text = "\n".join(self.lines[self.fatal.first : self.fatal.end]) if self.fatal else ""
        return _GRPC_NAME.search(text) is not None or any(host and host in text for host, _ in self.endpoints)

    @cached_property
    def listens(self) -> int:
        """The last port on which it reports that it could not listen; 0: it does not name one."""
        ports = [
            match.group(1) for line in self.lines if "ddress" in line for match in [_LISTENS.search(line)] if match
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
            if line.strip() and number not in aside and not is_library_line(line):
                words += 1
                progress += is_progress(line)
        return None if words > _MOST_AFTERWORDS or progress >= _PROGRESS_AFTER else last

    @cached_property
    def last_output(self) -> str:
        """The last line that the script printed, or the last error of a library; empty: none."""
        for line in reversed(self.last_words):
            words = error_in(line) if is_library_line(line) else "" if is_progress(line) else line.strip()
            if _HAS_LETTERS.search(words) and not _TASK_LINE.match(words):
                return words
        return ""

    @cached_property
    def error(self) -> str:
        """The last error that a library logged; empty: none."""
        return next(filter(None, map(error_in, reversed(self.last_words))), "")

    def _task(self, match: re.Match[str] | None) -> str:
        """Return the task that a line of TensorFlow names; empty: none."""
        return f"{match.group(1)}-{int(match.group(2))}" if match else ""

    def named(self, text: str) -> str:
        """Return the first task that a text of TensorFlow names; empty: none."""
        return self._task(_TASK.search(text))

    @cached_property
    def accused(self) -> list[str]:
        """The peers that it reports as gone, the likeliest first; none that answered."""
        named: list[str] = []
        listing = False
        for line in self.lines:
            entry = _TASK_LINE.match(line) if listing else None
            listing = bool(entry) or "unhealthy (stopped sending heartbeats)" in line
            match = entry or _TIMED_OUT.search(line)
            if match:
                named.append(self._task(match))
        if not named:
            named = [self._task(_REPORTED.search(line)) for line in self.lines if "Error reported from" in line]
        if not named:
            named = [remote.task for remote in self.remotes if is_silence(remote.status)][:1]
        return [name for name in dict.fromkeys(named) if name and name != self.task]

    @cached_property
    def remotes(self) -> list[Remote]:
        """The errors of its requests to peers, in the order of its output."""
        return [] if self.code == 0 else list(self._remotes())

    def _remotes(self) -> Iterator[Remote]:
        for number, line in enumerate(self.lines):
            match = _REMOTE.search(line)
            if not match or "CoordinationService/" in line:
                continue
            # TensorFlow prints gRPC's text with the status after the peer's name, and its message before it.
            after = "\n".join((line[match.end() :], *self.lines[number + 1 : number + 3]))
            before = [text for text in self.lines[max(0, number - 3) : number] if text.strip()][-1:] or [""]
            status = status_in(after)
            status = status_in(before[0]) if status is None else status
            yield Remote(self._task(match), status, _without_prefix(before[0]), number)

    @cached_property
    def answers(self) -> list[Remote]:
        """The errors that peers answered with: those in its exception, otherwise those in its log."""
        within = range(self.fatal.at, self.fatal.end) if self.fatal else range(0)
        answered = [remote for remote in self.remotes if is_answer(remote.status) and remote.task != self.task]
        errors = [each for each in answered if not mentions_peers(each.text) and "Ignoring an error" not in each.text]
        return [error for error in errors if error.line in within] or errors

    @cached_property
    def awaited(self) -> list[str]:
        """The peers that it was still waiting for at its start; ``""`` represents peers that it did not name."""
        waiting: dict[str, None] = {}
        listing = False
        for line in self.lines:
            match = _WAITING.search(line)
            if match:
                waiting = {} if int(match.group(1)) == 0 else {"": None}
            if "has passed with status: OK" in line or is_progress(line):
                waiting = {}
            if _BARRIER.search(line):
                waiting.setdefault("")
            entry = _TASK_LINE.match(line) if listing and waiting else None
            listing = bool(entry) or "Example stragglers:" in line or "imed out task names:" in line
            name = self._task(entry) if entry else self._task(_TASK.search(line)) if _AWAITED.search(line) else ""
            if name:
                waiting[name] = None
        return [name for name in waiting if name != self.task]

    @cached_property
    def barrier(self) -> tuple[str, list[str]]:
        """The barrier at which it timed out, and the peers that did not reach it; empty: none."""
        match = _ANY_BARRIER.search(self.fatal.message) if self.fatal else None
        if not match or not self.fatal:
            return "", []
        listed = self.fatal.message.partition("imed out task names:")[2].split("\n")
        names = [self._task(entry) for line in listed if (entry := _TASK_LINE.match(line))]
        return match.group(1), [name for name in names if name != self.task]

    @cached_property
    def arrived(self) -> set[str]:
        """The tasks that had joined when its output ended; empty: it was not waiting, or it is unknown."""
        joined: set[str] = set()
        for line in self.lines:
            match = _JOINED.search(line)
            if match:
                joined.add(self._task(match))
            elif joined and line.strip() and not is_library_line(line) and not _TASK_LINE.match(line):
                return set()
        return joined

    @cached_property
    def progressed(self) -> bool:
        """True if it trained."""
        return any(is_progress(line) for line in self.lines)

    @cached_property
    def serves(self) -> bool:
        """True if its server started."""
        return any("Started server with target" in line for line in self.lines)

    @cached_property
    def leads(self) -> bool:
        """True if the coordination service of the cluster ran in it."""
        return any("Initializing CoordinationService" in line for line in self.lines)

    @property
    def is_server(self) -> bool:
        """True if it is a parameter server, which only waits for requests."""
        return self.task.startswith("ps-")

    @cached_property
    def is_idle_after_start(self) -> bool:
        """True if its server started and nothing happened after that."""
        started = [i for i, line in enumerate(self.lines) if "Started server with target" in line]
        return bool(started) and not any(line.strip() for line in self.lines[started[-1] + 1 :])

    @cached_property
    def lost_leader(self) -> bool:
        """True if its heartbeats had no answer."""
        text = self.fatal.message if self.fatal else "\n".join(self.last_words[-30:])
        return _HEARTBEAT.search(text) is not None

    @cached_property
    def first_epoch(self) -> int:
        """The first epoch that Keras printed; 0: none."""
        head = lines_of(self.evidence.log_head[:LARGEST_HEAD])
        for line in (*head, *self.lines):
            match = _EPOCH.match(line)
            if match:
                return int(match.group(1))
        return 0


def read(evidence: TaskEvidence, endpoints: Collection[tuple[str, int]]) -> Reading:
    """Read one task's evidence; linear in its size.

    Args:
        evidence: The evidence of the task.
        endpoints: Address and port of all tasks of the job.
    """
    lines = lines_of(evidence.log_tail[-LARGEST_TAIL:] or evidence.log_head[:LARGEST_HEAD])
    return Reading(evidence, lines, find_all(lines), endpoints)


def _without_prefix(line: str) -> str:
    """Return the message of a log line or of the first line of an exception, without its prefix."""
    text = error_in(line) or line.strip()
    text = re.sub(r"^(?:[\w.]{1,120}Error: |BaseCollectiveExecutor::StartAbort |Aborting RingReduce with )", "", text)
    text = re.sub(r"^[A-Z_]{4,20}: ", "", text)
    return _PREAMBLE.sub("", text)


def headline(raised: Raised) -> str:
    """Return the message of an exception in one line."""
    lines = _ARRAY.sub(r"\1>", raised.message).split("\n")
    if lines[0].startswith("in user code:"):  # a traceback of its own, indented
        inner = [number for number, line in enumerate(lines) if _INNER.match(line)]
        if inner:
            lines = [_INNER.sub("", lines[inner[-1]]), *(line.strip() for line in lines[inner[-1] + 1 :])]
    rest: list[str] = []
    for line in lines:
        stripped = line.strip()
        if not stripped or _STRUCTURE.match(stripped) or stripped.startswith(('File "', "[[{{")):
            continue
        if line[:1].isspace() and not rest and not stripped.startswith("("):
            continue  # source code below a file's name
        rest.append(_PREAMBLE.sub("", stripped))
        if rest[-1].endswith("{"):  # a value of several lines
            rest[-1] += "…" + next((line.strip() for line in lines if line.startswith("}")), "")
        if not rest[-1].endswith(":") and not rest[-1].startswith("Exception encountered when calling"):
            break
    text = " ".join(rest[-2:])
    body = _BODY.search(raised.message) if "HTTP response code" in text else None
    if body:  # the reason follows the start of the response
        text = f"{text.partition(' with body')[0]}: {body.group(1) or body.group(2)}"
    if len(text) > _LONGEST_HEADLINE:  # what to do about it comes last
        text = _OBJECT.sub("<…>", text)
    return shortened(text, 2 * _LONGEST_HEADLINE)


def source_of(lines: list[str], raised: Raised) -> str:
    """Return the line of source code at the place of an exception; empty: its traceback does not show it."""
    return next((line.strip() for line in _call_of(lines, raised)[1:]), "")


def _call_of(lines: list[str], raised: Raised) -> list[str]:
    """Return the lines of a traceback for the last call in the user's code: the file and the source code."""
    call: list[str] = []
    for number in range(raised.first, raised.at):
        text = lines[number].strip()
        if raised.location and text.startswith('File "') and frame_in(text) == raised.location:
            call = [line for line in lines[number : min(number + 2, raised.at)] if line.strip()]
    return call


def excerpt(lines: list[str], raised: Raised) -> tuple[str, ...]:
    """Return the most useful lines of a traceback: the last call in the user's code, and the exception."""
    call = _call_of(lines, raised)
    shown = [line for line in lines[raised.at : raised.end] if line.strip()]
    most = MOST_LINES - 1 - len(call)
    if len(shown) > most:
        shown = [shown[0], *shown[1 - most :]]
    head = lines[raised.first : raised.at][:1]
    return tuple(shortened(line) for line in [*head, *call, *shown])


def ending(lines: list[str], most: int = MOST_LINES) -> tuple[str, ...]:
    """Return the last lines with content; startup messages of libraries only if there is nothing else."""
    filled = [line for line in lines if line.strip()]
    telling = [line for line in filled if not is_chatter(line) and _HAS_LETTERS.search(line)]
    return tuple(shortened(line) for line in (telling or filled)[-most:])
