"""Follow a job on all its hosts at once, and reconnect after lost connections."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fleet.errors import FleetError, NotFoundError, NotReadyError, UnreachableError, WrongHostError
from fleet.events import ConnectionLost, ConnectionRestored, Level, Note
from fleet.remote.client import ANSWER_S, AgentClient, RefusedError
from fleet.remote.cursor import MOST_BYTES, MOST_RECORDS, Position, TooManyRecordsError
from fleet.remote.fanout import Outcome, raise_failures, where
from fleet.remote.merge import Item, Merge, split
from fleet.remote.quoting import one_line
from fleet.steps import Step
from provision.model import Host
from train.agent.files.disk import readable_size
from train.agent.protocol.records import Beat, Follow, JobResult, Log, Progress, Record, Usage
from train.agent.protocol.records import Outcome as JobOutcome

GIVE_UP_S = 300.0
_FIRST_RETRY_S = 0.5
_LONGEST_RETRY_S = 5.0
_LAST_RETRY_S = 0.05
_QUEUE_BYTES = 2 * 1024 * 1024
_QUEUE_ITEMS = 10_000
AFTER_RESULT_S = 10.0
AFTER_LONE_RESULT_S = 60.0
_NO_NEWS_S = 120.0
_UNANSWERED_S = 60.0
_PROBE_AGAIN_S = 5.0
_CLOSE_S = 2.0


class ForeignReportError(NotReadyError):
    """A host reported something invalid: about another task, or more than a job can cause."""


class Follower:
    """Delivers the reports of the agents of several hosts in the order of their times, without loss or duplicates.

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
            a silent connection is replaced after ten seconds, and the host is given up after ten more; after sixty if
            fewer have reported it, or those that did had lost their peers. A host that answers, but whose
            supervisor does not, is given up after sixty seconds if another host has reported an end and no other
            can still report one.
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
        self._queue = Queue(host.name for host, _ in requests)
        self._terms = Terms(names, reopen, self._queue, give_up_s, silence_s, replaced, check, tasks)
        open_clients = clients or {}
        self._lines = [_Line(host, request, open_clients.get(host.name), self._terms) for host, request in requests]
        threading.Thread(target=self._watch, name="follow-watch", daemon=True).start()
        for line in self._lines:
            line.thread.start()

    def _watch(self) -> None:
        """Once an end of the job is known, replace silent connections, and give up hosts without new reports.

        If only a lone host has reported an end, give up the others if none of their supervisors answers.
        """
        terms = self._terms
        terms.ended.wait()
        while any(line.thread.is_alive() for line in self._lines) and not terms.closed.wait(1.0):
            confirmed_s, ended_s = (time.monotonic() - at for at in (terms.confirmed_at, terms.ended_at))
            awaited = [] if terms.over.is_set() else [line for line in self._lines if terms.is_open(line.host.name)]
            all_silent = ended_s > AFTER_LONE_RESULT_S and all(line.unanswered_s > _UNANSWERED_S for line in awaited)
            for line in self._lines:
                late = confirmed_s > _NO_NEWS_S and line.without_news_s > AFTER_RESULT_S
                line.given_up = line.given_up or late or (all_silent and line in awaited)
                if line.given_up or (confirmed_s >= 0 and line.silent_s > AFTER_RESULT_S):
                    line.sever()

    def add(self, host: Host, request: Follow) -> None:
        """Follow another host, which has joined the job; nothing happens if it is followed already."""
        if self._terms.closed.is_set() or any(line.host.name == host.name for line in self._lines):
            return
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
        while (item := self._queue.get()) is not None:
            yield item
        if self._terms.closed.is_set():
            return
        for line in self._lines:
            if line.bug is not None:
                raise line.bug
        if self._terms.ended.is_set():
            return
        for line in self._lines:
            if isinstance(line.failure, NotFoundError):
                raise line.failure
        raise_failures(
            [Outcome(line.host, error=line.failure) for line in self._lines if line.failure], "follow the job"
        )

    def close(self) -> None:
        """Stop at once, from any thread; drop undelivered items."""
        for event in (self._terms.closed, self._terms.over, self._terms.ended):
            event.set()
        self._queue.close()
        for line in self._lines:
            line.resume()
            line.sever()
        end = time.monotonic() + _CLOSE_S
        for line in self._lines:
            line.thread.join(max(0.0, end - time.monotonic()))


@dataclass
class Terms:
    """Settings and state that the hosts' threads share.

    Attributes:
        awaited: Hosts that can still report the end of the job.
        closed: The items are no longer read.
        ended: A host reported the end of the job.
        over: The end is confirmed by a host that had not lost its peers, or no host is left that can report it.
    """

    awaited: set[str]
    reopen: Callable[[Host], AgentClient]
    queue: Queue
    give_up_s: float
    silence_s: float
    replaced: bool
    check: Callable[[], None]
    tasks: Collection[str] = ()
    closed: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)
    ended_at: float = math.inf
    confirmed_at: float = math.inf
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
        self.ended.set()

    def is_open(self, name: str) -> bool:
        """Return whether a host can still report the end of the job."""
        with self._lock:
            return name in self.awaited

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


class _Line:
    """The connection to one host: its thread, its position, and its current client."""

    def __init__(self, host: Host, request: Follow, client: AgentClient | None, terms: Terms) -> None:
        self.host = host
        self.position = Position(request)
        self.failure: FleetError | None = None
        self.bug: Exception | None = None
        self.given_up = False
        self.thread = threading.Thread(target=self._run, name=f"follow-{host.name}", daemon=True)
        self._follows = request.follow
        self._client = client
        self._external = client  # owned by the caller; left open if the conversation ends normally
        self._terms = terms
        self._lost_at: float | None = None
        self._supervised = True
        self._waiting = False
        self._full_at: float | None = None  # since then, the reader is slow
        self._received_at = self._news_at = time.monotonic()
        self._retry_s = _FIRST_RETRY_S
        self.unanswered_s = 0.0  # time for which the supervisor has not answered the agent
        self._is_warned = False
        self._result: JobResult | None = None
        self._room = threading.Event()
        terms.queue.add_sender(host.name, self.resume)

    @property
    def _is_paused(self) -> bool:
        return self._waiting or self._full_at is not None

    @property
    def silent_s(self) -> float:
        """Return the seconds since the last data from the host; 0 while no request is pending."""
        return 0.0 if self._is_paused else time.monotonic() - self._received_at

    @property
    def without_news_s(self) -> float:
        """Return the seconds since the last new record of the host other than Beat; 0 while no request is pending."""
        return 0.0 if self._is_paused else time.monotonic() - self._news_at

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
            last = self._terms.over.is_set()
            result = self._follow_once(self._client)
            if last or not self._follows or result is None or result.outcome is not JobOutcome.LOST:
                return
            self._unsupervised(result)

    def _follow_once(self, client: AgentClient) -> JobResult | None:
        """Deliver the records of the agent up to its end; return the result of the job according to this host."""
        self._result = None
        self._received_at = time.monotonic()
        client.pass_on(self.position.request(), self, self._terms.silence_s)
        return self._result

    def take(self, record: Record, payload: bytes, size: int) -> bool:
        """Deliver what is new in a record; return False if the items are no longer read."""
        self._received_at = time.monotonic()
        self._check_owner(record)
        self._note_supervisor(record)
        if self._lost_at is not None:
            self._lost_at = None
            self._retry_s = _FIRST_RETRY_S
            if self._supervised:
                self._report(ConnectionRestored(self.host.name))
        new = self._new(record, payload)
        is_loss = isinstance(record, JobResult) and record.outcome is JobOutcome.LOST
        if new and not isinstance(record, (Progress, Usage, Beat)):
            self._news_at = self._received_at
            if not self._supervised and not is_loss:
                self._supervised = True
                self._terms.expect(self.host.name)
                self._report(ConnectionRestored(self.host.name))
        if new and not self._terms.queue.put(self.host.name, new, size):
            return False
        if isinstance(record, JobResult):
            self._result = record
            if not is_loss:
                self._terms.add_result(self.host.name, record)
        return True

    def has_room(self) -> bool:
        """Return whether an item can be delivered; do not count the time of a slow reader as silence of the host."""
        has_room = self._terms.queue.has_room(self.host.name)
        if has_room and self._full_at is not None:
            now = time.monotonic()
            self._news_at += now - self._full_at
            self._received_at = now
            self._full_at = None
        elif not has_room and self._full_at is None:
            self._full_at = time.monotonic()
        return has_room

    def await_room(self) -> None:
        """Wait until an item can be delivered."""
        while not self.has_room():
            self._room.wait()
            self._room.clear()

    def resume(self) -> None:
        """Deliver further items: there is room for them."""
        self._room.set()

    def _new(self, record: Record, payload: bytes) -> list[Item]:
        """Return the new parts of a record, each with its time."""
        try:
            pieces = split(record, payload) if isinstance(record, Log) else [(record, payload)]
            passed = [self.position.passed(*piece) for piece in pieces]
            if isinstance(record, Beat) and record.complete:
                passed.append((record, b""))
            return [Item(self.host.name, *new) for new in passed if new is not None]
        except TooManyRecordsError:
            raise ForeignReportError(
                f"{where(self.host)} reports more than a job can cause: over {MOST_RECORDS:,} changes, or "
                f"{readable_size(MOST_BYTES)} of them",
                next_steps=[Step("status")],
            ) from None

    def _check_owner(self, record: Record) -> None:
        """Raise an error if a host reports on another slot, on another job, or on a task that cannot exist."""
        request = self.position.request()
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
        self.unanswered_s = record.unanswered_s if isinstance(record, Beat) else 0.0
        if self.unanswered_s <= _UNANSWERED_S:
            self._is_warned = False
        elif not self._is_warned:
            self._is_warned = True
            text = (
                f"{where(self.host)} answers, but the agent that supervises {self.position.request().slot} has not "
                f"answered for {self.unanswered_s:.0f} s: it is stopped, or the host's disk or memory is exhausted"
            )
            self._report(Note(text, Level.WARNING))

    def _unsupervised(self, result: JobResult) -> None:
        """Wait after the host has lost its supervisor: it may join the job again, or the job may end."""
        self._terms.check()
        if self._supervised:
            self._supervised = False
            self._report(ConnectionLost(self.host.name, result.reason, _PROBE_AGAIN_S))
        self._terms.settle(self.host.name)
        self._waiting = True
        self._terms.over.wait(_PROBE_AGAIN_S)
        self._received_at = time.monotonic()
        self._waiting = False

    def _again(self, error: FleetError) -> bool:
        """Wait before the next try; return False if there is none."""
        self._hang_up()
        if self._terms.closed.is_set():
            return False
        now = time.monotonic()
        if self._lost_at is None:
            self._lost_at = now
        give_up_at = self._terms.deadline(self._lost_at)
        gone = isinstance(error, NotFoundError)
        final = isinstance(error, (RefusedError, WrongHostError, ForeignReportError)) and not self._terms.replaced
        if gone or final or self.given_up:
            self.failure = error
        elif now >= give_up_at:
            self.failure = UnreachableError(
                f"{where(self.host)} did not come back within {give_up_at - self._lost_at:.0f} s",
                cause=error.message,
                next_steps=[Step("status"), Step("logs", "-f")],
            )
        if self.failure is not None:
            if not gone:
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
        self._terms.queue.put(self.host.name, [Item(self.host.name, event)], 0)


class Queue:
    """The items of several hosts in the order of their times, with a limit on their number and bytes.

    Args:
        hosts: Names of the hosts that put items until they are removed.
    """

    def __init__(self, hosts: Iterable[str]) -> None:
        self._senders = set(hosts)
        self._merge = Merge(sorted(self._senders, key=lambda host: (len(host), host)))
        self._sizes: dict[str, deque[int]] = {host: deque() for host in self._senders}  # of the items of each host
        self._bytes: Counter[str] = Counter()
        self._share = max(1, len(self._senders))
        self._on_room: dict[str, Callable[[], object]] = {}
        self._full: set[str] = set()
        self._closed = False
        self._waits_until = -math.inf  # time until which the reader waits unless an item is due earlier
        self._filled = threading.Condition(threading.Lock())

    def add_sender(self, host: str, on_room: Callable[[], object]) -> None:
        """Add a host that puts items from now on; `on_room` is called when it has room after `has_room` was False."""
        with self._filled:
            self._on_room[host] = on_room
            if host not in self._senders:
                self._senders.add(host)
                self._merge.add_host(host)
                self._sizes[host] = deque()
                self._share = len(self._sizes)

    def put(self, host: str, items: Sequence[Item], size: int) -> bool:
        """Add items of `size` bytes; return False if the queue was closed."""
        with self._filled:
            if self._closed:
                return False
            self._merge.add(items, time.monotonic())
            self._sizes[host].extend([size // len(items)] * len(items))
            self._bytes[host] += size // len(items) * len(items)
            if self._merge.due_at() < self._waits_until:
                self._filled.notify()
            return True

    def has_room(self, host: str) -> bool:
        """Return whether a host has not used its share of the queue; others may have to wait for its items."""
        with self._filled:
            has_room = self._closed or (
                self._bytes[host] < _QUEUE_BYTES // self._share
                and len(self._sizes[host]) < _QUEUE_ITEMS // self._share
            )
            if not has_room:
                self._full.add(host)
            return has_room

    def get(self) -> Item | None:
        """Return the next item when there is one; None if there will be no more."""
        with self._filled:
            while not self._closed:
                item, wait_s = self._merge.next(time.monotonic())
                if item is not None:
                    self._take(item.host)
                    return item
                if not self._senders and wait_s == math.inf:
                    return None
                self._waits_until = self._merge.due_at()
                self._filled.wait(None if wait_s == math.inf else wait_s)
                self._waits_until = -math.inf
            return None

    def _take(self, host: str) -> None:
        self._bytes[host] -= self._sizes[host].popleft()
        is_low = (
            self._bytes[host] <= _QUEUE_BYTES // self._share // 2
            and len(self._sizes[host]) <= _QUEUE_ITEMS // self._share // 2
        )
        if host in self._full and is_low:
            self._full.discard(host)
            self._on_room[host]()

    def remove_sender(self, host: str) -> None:
        """Record that a host has put its last item."""
        with self._filled:
            self._senders.discard(host)
            self._merge.remove(host)
            self._filled.notify_all()

    def close(self) -> None:
        """Drop all items, and wake the reader."""
        with self._filled:
            self._closed = True
            self._filled.notify_all()
