"""Follow a job on all its hosts at once, and reconnect after lost connections."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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

MOST_RECORDS = 100_000
"""Maximum number of remembered records of one host; a job writes fewer than ten per attempt."""

MOST_BYTES = 64 << 20
"""Maximum total size of these records, approximately; a stack of each task in each of 1000 attempts is smaller."""

GIVE_UP_S = 300.0
AFTER_RESULT_S = 10.0
AFTER_LONE_RESULT_S = 60.0
_FIRST_RETRY_S = 0.5
_LONGEST_RETRY_S = 5.0
_LAST_RETRY_S = 0.05
_NO_NEWS_S = 120.0
_UNANSWERED_S = 60.0
_PROBE_AGAIN_S = 5.0
_CLOSE_S = 2.0


class ForeignReportError(NotReadyError):
    """A host reported something invalid: about another task, or more than a job can cause."""


class TooManyRecordsError(Exception):
    """A host reports more records than a job can cause."""


class Position:
    """The place up to which a task was followed; delivers each item once, even if a new connection repeats it.

    Bytes of the log are identified by their attempt and offset. Other records are small and carry their time: they
    are remembered. Progress and usage are only delivered if they are newer than the last ones.

    An agent sends one attempt after the other, each completely before the next begins. Only progress and usage arrive
    out of this order, directly from the supervisor.

    Args:
        request: The request on the first connection.
    """

    def __init__(self, request: Follow) -> None:
        self._request = request
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
            TooManyRecordsError: more records arrived than a job can cause.
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
            is_new = record.at > self._latest.get(type(record), -1.0)
            self._latest[type(record)] = max(record.at, self._latest.get(type(record), -1.0))
        else:
            is_new = self._is_unseen(repr(record).encode("utf-8", "surrogateescape"))
        return (record, payload) if is_new else None

    def _is_unseen(self, text: bytes) -> bool:
        key = blake2b(text, digest_size=16).digest()
        if key in self._seen:
            return False
        self._seen.add(key)
        self._seen_bytes += len(text)
        if len(self._seen) > MOST_RECORDS or self._seen_bytes > MOST_BYTES:
            raise TooManyRecordsError
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
            those that did had lost their peers. A host that answers, but whose supervisor does not, is given up
            after sixty seconds if another host has reported an end and no other can still report one.
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
        names = {host.name for host, _ in requests}
        self._terms = _Terms(names, reopen, Queue(names), give_up_s, silence_s, replaced, check, tasks)
        open_clients = clients or {}
        self._lines = [_Line(host, request, open_clients.get(host.name), self._terms) for host, request in requests]
        for line in self._lines:
            line.thread.start()

    def add(self, host: Host, request: Follow) -> None:
        """Follow another host, which has joined the job; nothing happens if it is followed already."""
        if self._terms.closed.is_set() or any(line.host.name == host.name for line in self._lines):
            return
        self._terms.queue.add_sender(host.name)
        self._terms.expect(host.name, is_new=True)
        line = _Line(host, request, None, self._terms)
        self._lines.append(line)
        line.thread.start()

    @property
    def incomplete(self) -> dict[str, Position]:
        """Return the positions in the logs of hosts that were given up, by host."""
        return {line.host.name: line.position for line in self._lines if line.failure is not None}

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Item]:
        while (item := self._terms.queue.get()) is not None:
            yield item
        if self._terms.closed.is_set():
            return
        for line in self._lines:
            if line.bug is not None:
                raise line.bug
        if self._terms.ended_at < math.inf:
            return
        for line in self._lines:
            if isinstance(line.failure, NotFoundError):
                raise line.failure
        raise_failures(
            [Outcome(line.host, error=line.failure) for line in self._lines if line.failure], "follow the job"
        )

    def close(self) -> None:
        """Stop at once, from any thread; drop undelivered items."""
        self._terms.closed.set()
        self._terms.over.set()
        self._terms.queue.close()
        for line in self._lines:
            line.sever()
        end = time.monotonic() + _CLOSE_S
        for line in self._lines:
            line.thread.join(max(0.0, end - time.monotonic()))


@dataclass
class _Terms:
    """Settings and state that the hosts' threads share.

    Attributes:
        awaited: Hosts that can still report the end of the job.
        closed: The items are no longer read.
        over: The end is confirmed by a host that had not lost its peers, or no host is left that can report it.
        ended_at: Time at which a host reported the end of the job.
        confirmed_at: Time at which the end was confirmed.
        unanswered_s: Time for which the supervisor of a host has not answered its agent, by host.
    """

    awaited: set[str]
    reopen: Callable[[Host], AgentClient]
    queue: Queue
    give_up_s: float
    silence_s: float
    replaced: bool
    check: Callable[[], None]
    tasks: Collection[str]
    closed: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)
    ended_at: float = math.inf
    confirmed_at: float = math.inf
    unanswered_s: dict[str, float] = field(default_factory=dict)
    _reported: set[str] = field(default_factory=set)  # hosts that have reported the end of the job
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._size = len(self.awaited)

    def add_result(self, name: str, result: JobResult) -> None:
        """Add the report of a host about the end of the job.

        A host that had not lost its peers ended together with more than half of them, so at least half of the hosts
        will report that; until they do, it only counts as the report of a lone host.
        """
        with self._lock:
            now = time.monotonic()
            self._reported.add(name)
            self.ended_at = min(self.ended_at, now)
            if not result.isolated and 2 * len(self._reported) >= self._size:
                self.confirmed_at = min(self.confirmed_at, now)
                self.over.set()

    def settle(self, name: str) -> None:
        """Expect no further records from a host, unless it joins the job again."""
        with self._lock:
            self.awaited.discard(name)
            if not self.awaited:
                self.over.set()

    def expect(self, name: str, *, is_new: bool = False) -> None:
        """Expect further records from a host that has joined the job, by default again."""
        with self._lock:
            self.awaited.add(name)
            self._size += is_new

    def deadline(self, lost_at: float) -> float:
        """Return the time at which a host is given up that was lost at `lost_at`."""
        after_result = max(lost_at, self.confirmed_at) + AFTER_RESULT_S
        after_lone_result = max(lost_at, self.ended_at) + AFTER_LONE_RESULT_S
        return min(lost_at + self.give_up_s, after_result, after_lone_result)

    def is_hopeless(self, name: str, news_at: float) -> bool:
        """Return whether a host will not report the end of the job, although its agent may answer.

        Args:
            name: The host.
            news_at: Time of its last new record.
        """
        now = time.monotonic()
        if now > self.confirmed_at + _NO_NEWS_S and now > news_at + AFTER_RESULT_S:
            return True
        with self._lock:
            is_lone = now > self.ended_at + AFTER_LONE_RESULT_S and not self.over.is_set() and name in self.awaited
            return is_lone and all(self.unanswered_s.get(other, 0.0) > _UNANSWERED_S for other in self.awaited)


class _Line:
    """The connection to one host: its thread, its position, and its current client."""

    def __init__(self, host: Host, request: Follow, client: AgentClient | None, terms: _Terms) -> None:
        self.host = host
        self.position = Position(request)
        self.failure: FleetError | None = None
        self.bug: Exception | None = None
        self.thread = threading.Thread(target=self._run, name=f"follow-{host.name}", daemon=True)
        self._request = request
        self._client = client
        self._external = client  # owned by the caller; left open if the conversation ends normally
        self._terms = terms
        self._lost_at: float | None = None
        self._is_supervised = True
        self._is_warned = False
        self._news_at = time.monotonic()
        self._retry_s = _FIRST_RETRY_S

    def sever(self) -> None:
        """End the current wait of the thread."""
        client = self._client
        if client is not None:
            client.transport.sever()

    def _run(self) -> None:
        try:
            while not self._terms.closed.is_set():
                try:
                    self._converse()
                    if self._client is self._external and not self._terms.closed.is_set():
                        self._client = None
                    return
                except FleetError as error:
                    if not self._again(error):
                        return
        except Exception as error:  # noqa: BLE001 - raised again by the iteration
            self.bug = error
        finally:
            self._terms.settle(self.host.name)
            self._hang_up()
            self._terms.queue.remove_sender(self.host.name)

    def _converse(self) -> None:
        """Follow the task until the agent has sent everything, and no further records can come."""
        while not self._terms.closed.is_set():
            if self._client is None:
                self._terms.check()
                self._client = self._terms.reopen(self.host)
            if self._terms.closed.is_set():
                return
            is_last = self._terms.over.is_set()
            result: JobResult | None = None
            transport, received = self._client.transport, self._client.transport.received
            for record, payload in self._client.follow(self.position.request(), self._terms.silence_s):
                size, received = transport.received - received, transport.received
                if not self._take(record, payload, size):
                    return
                result = record if isinstance(record, JobResult) else result
            if is_last or not self._request.follow or result is None or result.outcome is not JobOutcome.LOST:
                return
            self._await_supervisor(result)

    def _take(self, record: Record, payload: bytes, size: int) -> bool:
        """Deliver what is new in a record of `size` bytes; return False if the items are no longer read."""
        self._check_owner(record)
        self._note_supervisor(record)
        if self._lost_at is not None:
            self._lost_at = None
            self._retry_s = _FIRST_RETRY_S
            if self._is_supervised:
                self._report(ConnectionRestored(self.host.name))
        new = self._new(record, payload)
        is_result = isinstance(record, JobResult) and record.outcome is not JobOutcome.LOST
        is_news = bool(new) and not isinstance(record, (Progress, Usage, Beat))
        if is_news and not self._is_supervised and (is_result or not isinstance(record, JobResult)):
            self._is_supervised = True
            self._terms.expect(self.host.name)
            self._report(ConnectionRestored(self.host.name))
        if new and not self._terms.queue.put(self.host.name, new, size):
            return False
        if is_news:
            self._news_at = time.monotonic()  # a slow reader may have read the items before late
        if isinstance(record, JobResult) and is_result:
            self._terms.add_result(self.host.name, record)
        elif self._terms.is_hopeless(self.host.name, self._news_at):
            raise UnreachableError(
                f"{where(self.host)} does not report the end of the job", next_steps=[Step("status")]
            )
        return True

    def _new(self, record: Record, payload: bytes) -> list[Item]:
        """Return the new parts of a record, each with its time."""
        try:
            pieces = split(record, payload) if isinstance(record, Log) else [(record, payload)]
            passed = [self.position.passed(*piece) for piece in pieces]
        except TooManyRecordsError:
            raise ForeignReportError(
                f"{where(self.host)} reports more than a job can cause: over {MOST_RECORDS:,} changes, or "
                f"{readable_size(MOST_BYTES)} of them",
                next_steps=[Step("status")],
            ) from None
        return [Item(self.host.name, *new) for new in passed if new is not None]

    def _check_owner(self, record: Record) -> None:
        """Raise an error if a host reports on another slot, on another job, or on a task that cannot exist."""
        request = self._request
        slot, job = getattr(record, "slot", request.slot), getattr(record, "job", request.job)
        task = getattr(record, "task", "")
        if (slot, job) != (request.slot, request.job) or (task and task not in (self._terms.tasks or {task})):
            other = one_line(" ".join(filter(None, (task, f"on {slot} of job {job}"))), 100)
            raise ForeignReportError(
                f"{where(self.host)} reports on {other} instead of {request.slot} of job {request.job}",
                next_steps=[Step("status")],
            )

    def _note_supervisor(self, record: Record) -> None:
        """Record how long the supervisor has not answered its host, and warn once if that is long."""
        unanswered_s = record.unanswered_s if isinstance(record, Beat) else 0.0
        self._terms.unanswered_s[self.host.name] = unanswered_s
        if unanswered_s <= _UNANSWERED_S:
            self._is_warned = False
        elif not self._is_warned:
            self._is_warned = True
            text = (
                f"{where(self.host)} answers, but the agent that supervises {self._request.slot} has not "
                f"answered for {unanswered_s:.0f} s: it is stopped, or the host's disk or memory is exhausted"
            )
            self._report(Note(text, Level.WARNING))

    def _await_supervisor(self, result: JobResult) -> None:
        """Wait after the host has lost its supervisor: it may join the job again, or the job may end."""
        self._terms.check()
        if self._is_supervised:
            self._is_supervised = False
            self._report(ConnectionLost(self.host.name, result.reason, _PROBE_AGAIN_S))
        self._terms.settle(self.host.name)
        self._terms.over.wait(_PROBE_AGAIN_S)

    def _again(self, error: FleetError) -> bool:
        """Wait before the next try; return False if there is none."""
        self._hang_up()
        if self._terms.closed.is_set():
            return False
        now = time.monotonic()
        self._lost_at = self._lost_at or now
        give_up_at = self._terms.deadline(self._lost_at)
        is_gone = isinstance(error, NotFoundError)
        is_final = isinstance(error, (RefusedError, WrongHostError, ForeignReportError)) and not self._terms.replaced
        if is_gone or is_final or self._terms.is_hopeless(self.host.name, self._news_at):
            self.failure = error
        elif now >= give_up_at:
            self.failure = UnreachableError(
                f"{where(self.host)} did not come back within {give_up_at - self._lost_at:.0f} s",
                cause=error.message,
                next_steps=[Step("status"), Step("logs", "-f")],
            )
        if self.failure is not None:
            if not is_gone:
                self._report(ConnectionLost(self.host.name, error.message, 0.0))
            return False
        retry_s = min(self._retry_s, max(_LAST_RETRY_S, give_up_at - now))
        self._retry_s = min(2 * self._retry_s, _LONGEST_RETRY_S)
        self._report(ConnectionLost(self.host.name, error.message, retry_s))
        return not self._terms.closed.wait(retry_s)

    def _hang_up(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _report(self, event: ConnectionLost | ConnectionRestored | Note) -> None:
        self._terms.queue.put(self.host.name, [Item(self.host.name, event)])
