"""Follows a job on all its hosts at once, through lost connections."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import NamedTuple

from fleet.errors import FleetError, UnreachableError
from fleet.events import ConnectionLost, ConnectionRestored
from fleet.remote.causes import WrongHostError
from fleet.remote.channel import ANSWER_S, AgentChannel
from fleet.remote.fanout import Outcome, raise_failures, where
from fleet.remote.job import RefusedError, follow
from fleet.remote.position import Position
from provision.model import Host
from train.agent.records import Follow, JobResult, Record
from train.agent.records import Outcome as JobOutcome

GIVE_UP_S = 300.0
_FIRST_RETRY_S = 0.5
_LONGEST_RETRY_S = 5.0
_LAST_RETRY_S = 0.05
_QUEUE_BYTES = 16 * 1024 * 1024
_QUEUE_ITEMS = 10_000
_AFTER_RESULT_S = 10.0
_AFTER_ALONE_S = 60.0
_CLOSE_S = 2.0


class Item(NamedTuple):
    """Something that happened to the task of a host, or to the connection with it.

    A connection that is lost for good is told with ``retry_s`` 0.
    """

    host: str
    record: Record | ConnectionLost | ConnectionRestored
    payload: bytes = b""


class Follower:
    """Delivers what the agents of several hosts tell, nothing lost and nothing twice.

    Iterate over it for the items; the iteration ends when every host has told all, or after close(). A
    connection that breaks, or on which nothing comes for `silence_s`, is opened anew and goes on at the byte at
    which the last one broke. A slow reader slows the hosts' senders down, never their tasks.

    Args:
        requests: What to follow, by host.
        reopen: Opens a channel to a host's agent.
        channels: Channels that are open already, by name of host; the follower owns and closes them.
        give_up_s: How long a host may stay away, in seconds; ten at most once another has told how the job ended, or
            sixty where that one had lost sight of its peers.
        silence_s: Longest time without a word from a living agent, in seconds.
        replaced: Other hosts may take the places of those that are lost: one that is not the host it was, or does
            not know of the job yet, is waited for like one that does not answer.

    Raises:
        FleetError: by the iteration at its end, if no host told how the job ended, for those that refused or did
            not come back.
    """

    def __init__(
        self,
        requests: Sequence[tuple[Host, Follow]],
        reopen: Callable[[Host], AgentChannel],
        *,
        channels: Mapping[str, AgentChannel] | None = None,
        give_up_s: float = GIVE_UP_S,
        silence_s: float = ANSWER_S,
        replaced: bool = False,
    ) -> None:
        self._queue = _Queue(len(requests))
        self._terms = _Terms(reopen, self._queue, give_up_s, silence_s, replaced=replaced)
        open_channels = channels or {}
        self._lines = [_Line(host, request, open_channels.get(host.name), self._terms) for host, request in requests]
        self._terms.on_told = threading.Thread(target=self._sever_silent, daemon=True).start
        for line in self._lines:
            line.thread.start()

    def _sever_silent(self) -> None:
        """Once it is known how the job ended, a host that is gone without a word is waited for no longer."""
        while any(line.thread.is_alive() for line in self._lines) and not self._terms.closed.wait(1.0):
            for line in self._lines:
                if line.silent_s > self._terms.patience_s:
                    line.sever()

    def __enter__(self) -> Follower:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Item]:
        while (item := self._queue.get()) is not None:
            yield item
        if self._terms.closed.is_set():
            return
        for line in self._lines:
            if line.bug is not None:
                raise line.bug
        if self._terms.known.is_set():
            return
        raise_failures(
            [Outcome(line.host, error=line.failure) for line in self._lines if line.failure], "follow the job"
        )

    def close(self) -> None:
        """Stop at once, from any thread; what was not yet delivered is dropped."""
        self._terms.closed.set()
        self._queue.close()
        for line in self._lines:
            line.sever()
        end = time.monotonic() + _CLOSE_S
        for line in self._lines:
            line.thread.join(max(0.0, end - time.monotonic()))


class _Terms:
    """What the hosts' threads have in common."""

    def __init__(
        self,
        reopen: Callable[[Host], AgentChannel],
        queue: _Queue,
        give_up_s: float,
        silence_s: float,
        *,
        replaced: bool,
    ) -> None:
        self.reopen = reopen
        self.queue = queue
        self.give_up_s = give_up_s
        self.silence_s = silence_s
        self.replaced = replaced
        self.closed = threading.Event()
        self.known = threading.Event()  # a host knew how the job ended
        self.told = threading.Event()  # it had not lost sight of the others
        self.on_told: Callable[[], None] = lambda: None

    @property
    def patience_s(self) -> float:
        """How long a host may stay away now, in seconds."""
        longest_s = _AFTER_RESULT_S if self.told.is_set() else _AFTER_ALONE_S if self.known.is_set() else math.inf
        return min(self.give_up_s, longest_s)


class _Line:
    """One host: its thread, its position and the channel of the moment."""

    def __init__(self, host: Host, request: Follow, channel: AgentChannel | None, terms: _Terms) -> None:
        self.host = host
        self.failure: FleetError | None = None
        self.bug: Exception | None = None
        self.thread = threading.Thread(target=self._run, name=f"follow-{host.name}", daemon=True)
        self._position = Position(request)
        self._channel = channel
        self._terms = terms
        self._lost_at: float | None = None
        self._heard_at = time.monotonic()
        self._retry_s = _FIRST_RETRY_S

    @property
    def silent_s(self) -> float:
        """Seconds since anything came from the host."""
        return time.monotonic() - self._heard_at

    def sever(self) -> None:
        """End the wait of the thread, whatever it waits for."""
        channel = self._channel
        if channel is not None:
            channel.connection.sever()

    def _run(self) -> None:
        try:
            while not self._terms.closed.is_set():
                try:
                    self._converse()
                    return
                except FleetError as error:
                    if not self._again(error):
                        return
        except Exception as error:  # noqa: BLE001 - raised again by the iteration
            self.bug = error
        finally:
            self._hang_up()
            self._terms.queue.leave()

    def _converse(self) -> None:
        """One conversation with the agent, up to its end."""
        if self._channel is None:
            self._channel = self._terms.reopen(self.host)
        if self._terms.closed.is_set():
            return
        for record, payload in follow(self._channel, self._position.request(), self._terms.silence_s):
            self._heard_at = time.monotonic()
            if self._lost_at is not None:
                self._lost_at = None
                self._retry_s = _FIRST_RETRY_S
                self._put(ConnectionRestored(self.host.name))
            new = self._position.passed(record, payload)
            if new is not None and not self._put(*new):
                return
            if isinstance(record, JobResult) and record.outcome is not JobOutcome.LOST:
                self._terms.known.set()
                if not record.alone and not self._terms.told.is_set():
                    self._terms.told.set()
                    self._terms.on_told()

    def _again(self, error: FleetError) -> bool:
        """Wait before the next try; False if there is none."""
        self._hang_up()
        if self._terms.closed.is_set():
            return False
        now = time.monotonic()
        if self._lost_at is None:
            self._lost_at = self._heard_at if self._terms.told.is_set() else now
        give_up_s = self._terms.patience_s
        if isinstance(error, (RefusedError, WrongHostError)) and not self._terms.replaced:
            self.failure = error
        elif now - self._lost_at >= give_up_s:
            self.failure = UnreachableError(
                f"{where(self.host)} did not come back within {give_up_s:g} s",
                cause=error.sentence,
                next_step="fleet status, then fleet logs -f",
            )
        if self.failure is not None:
            self._put(ConnectionLost(self.host.name, error.sentence, 0.0))
            return False
        retry_s = min(self._retry_s, max(_LAST_RETRY_S, self._lost_at + give_up_s - now))
        self._retry_s = min(2 * self._retry_s, _LONGEST_RETRY_S)
        self._put(ConnectionLost(self.host.name, error.sentence, retry_s))
        return not self._terms.closed.wait(retry_s)

    def _hang_up(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _put(self, record: Record | ConnectionLost | ConnectionRestored, payload: bytes = b"") -> bool:
        return self._terms.queue.put(Item(self.host.name, record, payload))


class _Queue:
    """Items of several senders, bounded in number and bytes.

    Args:
        senders: Number of threads that put items and then leave.
    """

    def __init__(self, senders: int) -> None:
        self._items: deque[Item] = deque()
        self._bytes = 0
        self._senders = senders
        self._closed = False
        lock = threading.Lock()
        self._filled = threading.Condition(lock)
        self._emptied = threading.Condition(lock)

    def put(self, item: Item) -> bool:
        """Add an item once there is room; False if the queue was closed."""
        with self._emptied:
            self._emptied.wait_for(self._has_room)
            if self._closed:
                return False
            self._items.append(item)
            self._bytes += len(item.payload)
            self._filled.notify()
            return True

    def _has_room(self) -> bool:
        return self._closed or (self._bytes < _QUEUE_BYTES and len(self._items) < _QUEUE_ITEMS)

    def get(self) -> Item | None:
        """The next item once there is one; None if there will be none any more."""
        with self._filled:
            self._filled.wait_for(lambda: self._items or self._closed or not self._senders)
            if self._closed or not self._items:
                return None
            item = self._items.popleft()
            self._bytes -= len(item.payload)
            self._emptied.notify()
            return item

    def leave(self) -> None:
        """A sender has put its last item."""
        with self._filled:
            self._senders -= 1
            self._filled.notify_all()

    def close(self) -> None:
        """Drop everything, and let nobody wait any longer."""
        with self._filled:
            self._closed = True
            self._items.clear()
            self._filled.notify_all()
            self._emptied.notify_all()
