"""Follows a job on all its hosts at once, through lost connections."""

from __future__ import annotations

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
from train.agent.records import Follow, Record

GIVE_UP_S = 300.0
_FIRST_RETRY_S = 0.5
_LONGEST_RETRY_S = 5.0
_LAST_RETRY_S = 0.05
_QUEUE_BYTES = 16 * 1024 * 1024
_QUEUE_ITEMS = 10_000
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
        give_up_s: How long a host may stay away, in seconds.
        silence_s: Longest time without a word from a living agent, in seconds.

    Raises:
        FleetError: by the iteration at its end, for hosts that refused or did not come back.
    """

    def __init__(
        self,
        requests: Sequence[tuple[Host, Follow]],
        reopen: Callable[[Host], AgentChannel],
        *,
        channels: Mapping[str, AgentChannel] | None = None,
        give_up_s: float = GIVE_UP_S,
        silence_s: float = ANSWER_S,
    ) -> None:
        self._queue = _Queue(len(requests))
        self._closed = threading.Event()
        open_channels = channels or {}
        self._lines = [
            _Line(
                host, request, open_channels.get(host.name), reopen, self._queue, self._closed, give_up_s, silence_s
            )
            for host, request in requests
        ]
        for line in self._lines:
            line.thread.start()

    def __enter__(self) -> Follower:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Item]:
        while (item := self._queue.get()) is not None:
            yield item
        if self._closed.is_set():
            return
        for line in self._lines:
            if line.bug is not None:
                raise line.bug
        raise_failures(
            [Outcome(line.host, error=line.failure) for line in self._lines if line.failure], "follow the job"
        )

    def close(self) -> None:
        """Stop at once, from any thread; what was not yet delivered is dropped."""
        self._closed.set()
        self._queue.close()
        for line in self._lines:
            line.sever()
        end = time.monotonic() + _CLOSE_S
        for line in self._lines:
            line.thread.join(max(0.0, end - time.monotonic()))


class _Line:
    """One host: its thread, its position and the channel of the moment."""

    def __init__(
        self,
        host: Host,
        request: Follow,
        channel: AgentChannel | None,
        reopen: Callable[[Host], AgentChannel],
        queue: _Queue,
        closed: threading.Event,
        give_up_s: float,
        silence_s: float,
    ) -> None:
        self.host = host
        self.failure: FleetError | None = None
        self.bug: Exception | None = None
        self.thread = threading.Thread(target=self._run, name=f"follow-{host.name}", daemon=True)
        self._position = Position(request)
        self._channel = channel
        self._reopen = reopen
        self._queue = queue
        self._closed = closed
        self._give_up_s = give_up_s
        self._silence_s = silence_s
        self._lost_at: float | None = None
        self._retry_s = _FIRST_RETRY_S

    def sever(self) -> None:
        """End the wait of the thread, whatever it waits for."""
        channel = self._channel
        if channel is not None:
            channel.connection.sever()

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
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
            self._queue.leave()

    def _converse(self) -> None:
        """One conversation with the agent, up to its end."""
        if self._channel is None:
            self._channel = self._reopen(self.host)
        if self._closed.is_set():
            return
        for record, payload in follow(self._channel, self._position.request(), self._silence_s):
            if self._lost_at is not None:
                self._lost_at = None
                self._retry_s = _FIRST_RETRY_S
                self._put(ConnectionRestored(self.host.name))
            new = self._position.passed(record, payload)
            if new is not None and not self._put(*new):
                return

    def _again(self, error: FleetError) -> bool:
        """Wait before the next try; False if there is none."""
        self._hang_up()
        if self._closed.is_set():
            return False
        now = time.monotonic()
        if self._lost_at is None:
            self._lost_at = now
        reason = error.sentence
        if isinstance(error, (RefusedError, WrongHostError)):
            self.failure = error
        elif now - self._lost_at >= self._give_up_s:
            self.failure = UnreachableError(
                f"{where(self.host)} did not come back within {self._give_up_s:g} s",
                cause=reason,
                next_step="fleet status, then fleet logs -f",
            )
        if self.failure is not None:
            self._put(ConnectionLost(self.host.name, reason, 0.0))
            return False
        retry_s = min(self._retry_s, max(_LAST_RETRY_S, self._lost_at + self._give_up_s - now))
        self._retry_s = min(2 * self._retry_s, _LONGEST_RETRY_S)
        self._put(ConnectionLost(self.host.name, reason, retry_s))
        return not self._closed.wait(retry_s)

    def _hang_up(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _put(self, record: Record | ConnectionLost | ConnectionRestored, payload: bytes = b"") -> bool:
        return self._queue.put(Item(self.host.name, record, payload))


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
