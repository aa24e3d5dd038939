"""Follow a job on all its hosts at once, and reconnect after lost connections."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from hashlib import blake2b

from fleet.errors import FleetError, NotFoundError, NotReadyError, UnreachableError, WrongHostError
from fleet.events import ConnectionLost, ConnectionRestored, Level, Note
from fleet.remote.client import ANSWER_S, AgentClient, RefusedError
from fleet.remote.fanout import Outcome, raise_failures, where
from fleet.remote.merge import Item, Queue, split
from fleet.remote.quoting import one_line
from fleet.steps import Step
from provision.model import Host
from train.agent.files.disk import readable_size
from train.agent.protocol.records import Beat, Follow, JobResult, Log, Progress, Record, TaskState, Usage
from train.agent.protocol.records import Outcome as JobOutcome

MOST_BYTES = 64 << 20
"""Maximum size of all records of one host but its log; a stack of each task in each of 1000 attempts is smaller."""

GIVE_UP_S = 300.0
AFTER_RESULT_S = 10.0
AFTER_LONE_RESULT_S = 60.0
_RECORD_BYTES = 500  # of a remembered record in addition to its text
_FIRST_RETRY_S = 0.5
_LONGEST_RETRY_S = 5.0
_LAST_RETRY_S = 0.05
_NO_NEWS_S = 120.0
_UNANSWERED_S = 60.0
_PROBE_AGAIN_S = 5.0
_CLOSE_S = 2.0


class ForeignReportError(NotReadyError):
    """A host reported something invalid: about another task, or more than a job can cause."""


class Position:
    """The place up to which a task was followed; delivers each item once, even if a new connection repeats it.

    Bytes of the log are identified by their attempt and offset. Other records are small and carry their time: they
    are remembered. Progress and usage are only delivered if they are newer than the last ones.

    An agent sends one attempt after the other, each completely before the next begins. Only progress and usage arrive
    out of this order, directly from the supervisor.

    Args:
        request: The request on the first connection.
        host: The host that sends the records, for errors.
    """

    def __init__(self, request: Follow, host: str = "the host") -> None:
        self._request = request
        self._host = host
        self._attempt = request.attempt  # the attempt to which the offsets belong; 0: unknown
        self._record_offset = request.record_offset
        # Unknown before the first piece of a log that is tailed.
        self._log_end = -1 if request.tail_lines >= 0 else request.log_offset
        self._seen: set[bytes] = set()
        self._seen_bytes = 0
        self._latest: dict[type, float] = {}

    def request(self) -> Follow:
        """Return the request for the next connection."""
        request = self._request._replace(attempt=self._attempt, record_offset=self._record_offset)
        if self._log_end < 0:
            return request
        return request._replace(log_offset=self._log_end, tail_lines=-1)

    @property
    def reached(self) -> tuple[int, int]:
        """Return the attempt that was delivered last, and the number of bytes of its log; 0, 0: nothing yet."""
        return self._attempt, max(0, self._log_end)

    def passed(self, record: Record, payload: bytes) -> tuple[Record, bytes] | None:
        """Return the new part of a record and its payload; None if nothing is new.

        Raises:
            ForeignReportError: more records arrived than a job can cause.
        """
        if isinstance(record, (Log, TaskState, Beat)) and record.attempt > self._attempt:
            if self._attempt:  # for the first requested attempt, the offsets are in the request
                self._record_offset = self._log_end = 0
            self._attempt = record.attempt
        if isinstance(record, Log):
            return self._log(record, payload)
        if isinstance(record, Beat):
            if record.attempt == self._attempt > 0:  # 0: it has no attempt yet
                self._record_offset = record.record_offset
                self._log_end = max(self._log_end, record.log_offset) if self._request.logs else self._log_end
            return (record, b"") if record.complete else None
        if isinstance(record, (Progress, Usage)):
            is_new = record.at > (latest := self._latest.get(type(record), -1.0))
            self._latest[type(record)] = max(record.at, latest)
        else:
            is_new = self._is_unseen(repr(record).encode("utf-8", "surrogateescape"))
        return (record, payload) if is_new else None

    def _is_unseen(self, text: bytes) -> bool:
        key = blake2b(text, digest_size=16).digest()
        if key in self._seen:
            return False
        self._seen.add(key)
        self._seen_bytes += len(text) + _RECORD_BYTES
        if self._seen_bytes > MOST_BYTES:
            raise ForeignReportError(
                f"{self._host} reports more than a job can cause: over {readable_size(MOST_BYTES)} of changes",
                next_steps=[Step("status")],
            )
        return True

    def _log(self, record: Log, payload: bytes) -> tuple[Record, bytes] | None:
        if record.attempt < self._attempt:
            return None
        delivered = max(0, self._log_end - record.offset) if self._log_end >= 0 else 0
        if delivered and delivered >= len(payload):
            return None
        self._log_end = record.offset + len(payload)
        rest = payload[delivered:]
        return record._replace(offset=record.offset + delivered, payload=len(rest)), rest


class Follower:
    """Delivers the reports of the agents of several hosts, without loss or duplicates.

    Iterate over it for the items; the iteration ends when every host has reported everything, or after close(). A
    connection that breaks, or that is silent for `silence_s`, is opened again and continues at the byte at which the
    last one broke. A host that has lost its supervisor is asked again until the end of the job is known, because it
    may join the job again. A slow reader slows down the hosts' senders, but not their tasks.

    Args:
        requests: The request for each host.
        reopen: Opens a client of a host's agent.
        clients: Open clients, by name of host. A conversation that ends normally leaves its
            client open, for the caller to use and close; the follower closes the others.
        give_up_s: Longest absence of a host, in seconds. Once half of the hosts have reported the end of the job,
            a host is given up ten seconds after its connection was lost; after sixty if fewer have reported it, or
            those that did had lost their peers. A host that answers, but whose supervisor has not for sixty seconds,
            is given up sixty seconds after another host has reported an end.
        silence_s: Longest time without a message from a living agent, in seconds.
        replaced: Whether other hosts may take over the slots of lost hosts: a host that was replaced, or that does
            not have the job yet, is awaited like a host that does not answer.
        check: Called before each retry; a NotFoundError ends the iteration.
        tasks: The tasks of the job, the only ones that a host may report on; empty: any.

    Raises:
        NotFoundError: by the iteration, if `check` raised it and the end of the job is not known.
        FleetError: by the iteration at its end, if no host reported the end of the job, for those that refused or
            did not come back.
    """

    def __init__(
        self,
        requests: Sequence[tuple[Host, Follow]],
        reopen: Callable[[Host], AgentClient],
        *,
        clients: Mapping[str, AgentClient] | None = None,
        give_up_s: float = GIVE_UP_S,
        silence_s: float = ANSWER_S,
        replaced: bool = False,
        check: Callable[[], None] = lambda: None,
        tasks: Collection[str] = (),
    ) -> None:
        self._reopen, self._check, self._replaced, self._tasks = reopen, check, replaced, tasks
        self._give_up_s, self._silence_s = give_up_s, silence_s
        self._queue = Queue(host.name for host, _ in requests)
        self._closed = threading.Event()  # the items are no longer read
        self._over = threading.Event()  # the end is confirmed, or no host is left that can report it
        self._lock = threading.Lock()  # guards what follows
        self._awaited = {host.name for host, _ in requests}  # that can still report the end of the job
        self._reported: set[str] = set()  # that have reported it
        self._ended_at = math.inf  # when the first host reported it
        self._confirmed_at = math.inf  # when half of the hosts had, one of which had not lost its peers
        self._lines = [_Line(host, request, (clients or {}).get(host.name)) for host, request in requests]
        for line in self._lines:
            self._start(line)

    def add(self, host: Host, request: Follow) -> None:
        """Follow another host, which has joined the job; nothing happens if it is followed already."""
        if self._closed.is_set() or any(line.host.name == host.name for line in self._lines):
            return
        line = _Line(host, request)
        self._queue.add_sender(line.name)
        with self._lock:
            self._awaited.add(line.name)
            self._lines.append(line)
        self._start(line)

    def _start(self, line: _Line) -> None:
        line.thread = threading.Thread(target=self._run, args=(line,), name=f"follow-{line.name}", daemon=True)
        line.thread.start()

    @property
    def incomplete(self) -> dict[str, Position]:
        """Return the positions in the logs of hosts that were given up, by host."""
        return {line.name: line.position for line in self._lines if line.failure is not None}

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Item]:
        while (item := self._queue.get()) is not None:
            yield item
        if self._closed.is_set():
            return
        for line in self._lines:
            if line.bug is not None:
                raise line.bug
        if self._ended_at < math.inf:
            return
        for line in self._lines:
            if isinstance(line.failure, NotFoundError):
                raise line.failure
        failures: list[Outcome[None]] = [
            Outcome(line.host, error=line.failure) for line in self._lines if line.failure
        ]
        raise_failures(failures, "follow the job")

    def close(self) -> None:
        """Stop at once, from any thread; drop undelivered items."""
        self._closed.set()
        self._over.set()
        self._queue.close()
        for line in self._lines:
            if client := line.client:
                client.transport.sever()
        end = time.monotonic() + _CLOSE_S
        for line in self._lines:
            line.thread.join(max(0.0, end - time.monotonic()))

    # --- the end of the job, which the threads of all hosts share ---------------------------------------------------

    def _add_result(self, line: _Line, result: JobResult) -> None:
        """Add the report of a host about the end of the job.

        A host that had not lost its peers ended together with more than half of them, so at least half of the hosts
        will report that; until they do, it only counts as the report of a lone host.
        """
        with self._lock:
            now = time.monotonic()
            self._reported.add(line.name)
            self._ended_at = min(self._ended_at, now)
            if not result.isolated and 2 * len(self._reported) >= len(self._lines):
                self._confirmed_at = min(self._confirmed_at, now)
                self._over.set()

    def _settle(self, line: _Line) -> None:
        """Expect no further records from a host, unless it joins the job again."""
        with self._lock:
            self._awaited.discard(line.name)
            if not self._awaited:
                self._over.set()

    def _deadline(self, lost_at: float) -> float:
        """Return the time at which a host is given up that was lost at `lost_at`."""
        after_result = max(lost_at, self._confirmed_at) + AFTER_RESULT_S
        after_lone_result = max(lost_at, self._ended_at) + AFTER_LONE_RESULT_S
        return min(lost_at + self._give_up_s, after_result, after_lone_result)

    def _is_hopeless(self, line: _Line) -> bool:
        """Return whether a host will not report the end of the job, although its agent may answer."""
        now = time.monotonic()
        if line.unanswered_s > _UNANSWERED_S and now > self._ended_at + AFTER_LONE_RESULT_S:
            return True
        return now > self._confirmed_at + _NO_NEWS_S and now > line.news_at + AFTER_RESULT_S

    # --- the thread of one host -------------------------------------------------------------------------------------

    def _run(self, line: _Line) -> None:
        try:
            while not self._closed.is_set():
                try:
                    self._converse(line)
                    if line.client is line.external and not self._closed.is_set():
                        line.client = None
                    return
                except FleetError as error:
                    if not self._again(line, error):
                        return
        except Exception as error:  # noqa: BLE001 - raised again by the iteration
            line.bug = error
        finally:
            self._settle(line)
            line.hang_up()
            self._queue.remove_sender(line.name)

    def _converse(self, line: _Line) -> None:
        """Follow the task until the agent has sent everything, and no further records can come."""
        while not self._closed.is_set():
            if line.client is None:
                self._check()
                line.client = self._reopen(line.host)
            if self._closed.is_set():
                return
            is_last = self._over.is_set() or not line.request.follow
            result: JobResult | None = None
            transport, received = line.client.transport, line.client.transport.received
            for record, payload in line.client.follow(line.position.request(), self._silence_s):
                size, received = transport.received - received, transport.received
                if not self._take(line, record, payload, size):
                    return
                result = record if isinstance(record, JobResult) else result
            if is_last or result is None or result.outcome is not JobOutcome.LOST:
                return
            # The host has lost its supervisor: it may join the job again, or the job may end.
            self._check()
            if line.is_supervised:
                line.is_supervised = False
                self._report(line, ConnectionLost(line.name, result.reason, _PROBE_AGAIN_S))
            self._settle(line)
            self._over.wait(_PROBE_AGAIN_S)

    def _take(self, line: _Line, record: Record, payload: bytes, size: int) -> bool:
        """Deliver what is new in a record of `size` bytes; return False if the items are no longer read."""
        self._check_owner(line, record)
        self._note_supervisor(line, record)
        pieces: list[tuple[Record, bytes]] = [(record, payload)]
        if isinstance(record, Log):
            if line.request.interval_s and not self._queue.is_behind(line.name):
                record = record._replace(marks=[])  # one time is enough: it comes at intervals, and waits for no host
            pieces = [*split(record, payload)]
        passed = [line.position.passed(*piece) for piece in pieces]
        new = [Item(line.name, *piece) for piece in passed if piece is not None]
        is_lost = isinstance(record, JobResult) and record.outcome is JobOutcome.LOST
        is_news = bool(new) and not isinstance(record, (Progress, Usage, Beat))
        is_back = line.lost_at is not None and line.is_supervised
        line.lost_at, line.retry_s = None, _FIRST_RETRY_S
        if is_news and not is_lost and not line.is_supervised:
            line.is_supervised = is_back = True
            with self._lock:
                self._awaited.add(line.name)
        if is_back:
            self._report(line, ConnectionRestored(line.name))
        if new and not self._queue.put(line.name, new, size):
            return False
        if is_news:
            line.news_at = time.monotonic()  # a slow reader may have read the items before late
        if isinstance(record, JobResult) and not is_lost:
            self._add_result(line, record)
        elif self._is_hopeless(line):
            raise UnreachableError(
                f"{where(line.host)} does not report the end of the job", next_steps=[Step("status")]
            )
        return True

    def _check_owner(self, line: _Line, record: Record) -> None:
        """Raise an error if a host reports on another slot, on another job, or on a task that cannot exist."""
        request = line.request
        slot, job = getattr(record, "slot", request.slot), getattr(record, "job", request.job)
        task = getattr(record, "task", "")
        if (slot, job) != (request.slot, request.job) or (task and task not in (self._tasks or {task})):
            other = one_line(" ".join(filter(None, (task, f"on {slot} of job {job}"))), 100)
            raise ForeignReportError(
                f"{where(line.host)} reports on {other} instead of {request.slot} of job {request.job}",
                next_steps=[Step("status")],
            )

    def _note_supervisor(self, line: _Line, record: Record) -> None:
        """Record how long the supervisor has not answered its host, and warn once if that is long."""
        before, line.unanswered_s = line.unanswered_s, record.unanswered_s if isinstance(record, Beat) else 0.0
        if before <= _UNANSWERED_S < line.unanswered_s:
            text = (
                f"{where(line.host)} answers, but the agent that supervises {line.request.slot} has not "
                f"answered for {line.unanswered_s:.0f} s: it is stopped, or the host's disk or memory is exhausted"
            )
            self._report(line, Note(text, Level.WARNING))

    def _again(self, line: _Line, error: FleetError) -> bool:
        """Wait before the next try; return False if there is none."""
        line.hang_up()
        if self._closed.is_set():
            return False
        now = time.monotonic()
        line.lost_at = line.lost_at or now
        give_up_at = self._deadline(line.lost_at)
        is_gone = isinstance(error, NotFoundError)
        is_final = isinstance(error, (RefusedError, WrongHostError, ForeignReportError)) and not self._replaced
        if is_gone or is_final or self._is_hopeless(line):
            line.failure = error
        elif now >= give_up_at:
            line.failure = UnreachableError(
                f"{where(line.host)} did not come back within {give_up_at - line.lost_at:.0f} s",
                cause=error.message,
                next_steps=[Step("status"), Step("logs", "-f")],
            )
        retry_s = 0.0 if line.failure else min(line.retry_s, max(_LAST_RETRY_S, give_up_at - now))
        line.retry_s = min(2 * line.retry_s, _LONGEST_RETRY_S)
        if not is_gone:
            self._report(line, ConnectionLost(line.name, error.message, retry_s))
        return not (line.failure or self._closed.wait(retry_s))

    def _report(self, line: _Line, event: ConnectionLost | ConnectionRestored | Note) -> None:
        self._queue.put(line.name, [Item(line.name, event)])


class _Line:
    """The connection to one host, which its thread uses.

    Args:
        host: The host.
        request: The request on the first connection.
        client: An open client of the caller; None: a client is opened.

    Attributes:
        external: That client, which stays open if the conversation ends normally.
        failure: Why the host was given up.
        bug: An unexpected exception of the thread.
        lost_at: When the connection was lost; None: it is open.
        news_at: When the last new record came.
        unanswered_s: How long the host's supervisor has not answered its agent.
        is_supervised: The host has a supervisor.
        retry_s: Pause before the next try.
    """

    thread: threading.Thread

    def __init__(self, host: Host, request: Follow, client: AgentClient | None = None) -> None:
        self.host, self.name, self.request = host, host.name, request
        self.client = self.external = client
        self.position = Position(request, where(host))
        self.failure: FleetError | None = None
        self.bug: Exception | None = None
        self.lost_at: float | None = None
        self.news_at = time.monotonic()
        self.unanswered_s = 0.0
        self.is_supervised = True
        self.retry_s = _FIRST_RETRY_S

    def hang_up(self) -> None:
        """Close the connection."""
        client, self.client = self.client, None
        if client is not None:
            client.close()
