"""Merge what several hosts report: stored items by their times, new ones as they come.

The order of each host is kept. Between hosts, the earliest item comes first, and among equals that of the first host.
An item that has no time has that of the item before it. Clocks are those of the hosts.
"""

from __future__ import annotations

import heapq
import math
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fleet.events import ConnectionLost, ConnectionRestored, Note
from train.agent.files.times import MOST_MARKS
from train.agent.protocol.records import (
    LATEST_S,
    AttemptEnded,
    Beat,
    HangInspection,
    JobResult,
    Log,
    Notice,
    Record,
    TaskState,
)

_QUEUE_BYTES = 2 * 1024 * 1024
_QUEUE_ITEMS = 10_000
_TIMED = (Log, TaskState, AttemptEnded, HangInspection, Notice)
_AT_ONCE = -math.inf


class Item(NamedTuple):
    """An event of the task of a host, or of the connection to the host.

    A connection that is lost permanently is reported with ``retry_s`` 0.
    """

    host: str
    record: Record | ConnectionLost | ConnectionRestored | Note
    payload: bytes = b""


@dataclass
class _Sender:
    """The items of one host that were not read yet, each with its time (-inf: at once) and its size in bytes.

    Attributes:
        number: Place of the host among the hosts.
        is_behind: It sends stored items, so that the other hosts wait for its next one.
        at: Time of its last item.
    """

    number: int
    is_behind: bool
    items: deque[tuple[float, Item, int]] = field(default_factory=deque)
    size: int = 0
    at: float = 0.0


class Queue:
    """The items of several hosts in the order of their times, with a limit on their number and bytes.

    While hosts send stored items, the order is exact: an item is returned once every other host has sent its next
    one, or has none. The others do not wait for a host whose connection is lost, and new items wait for no host.

    Args:
        hosts: Names of the hosts that put items until they are removed.
    """

    def __init__(self, hosts: Iterable[str]) -> None:
        self._senders: dict[str, _Sender] = {}
        self._active: set[str] = set()  # names of the hosts that will put further items
        self._awaited: set[str] = set()  # names of those that the others wait for
        self._first: list[tuple[float, int, str]] = []  # heap of the first item of each host: time, number, name
        self._closed = False
        lock = threading.Lock()
        self._filled, self._drained = threading.Condition(lock), threading.Condition(lock)
        for host in sorted(hosts, key=lambda name: (len(name), name)):
            self.add_sender(host, is_behind=True)

    def add_sender(self, host: str, *, is_behind: bool = False) -> None:
        """Add a host that puts items from now on, by default new ones."""
        with self._filled:
            self._senders[host] = _Sender(len(self._senders), is_behind)
            self._active.add(host)
            self._update(host)

    def remove_sender(self, host: str) -> None:
        """Record that a host has put its last item."""
        with self._filled:
            self._active.discard(host)
            self._update(host)
            self._filled.notify()

    def put(self, host: str, items: Sequence[Item], size: int = 0) -> bool:
        """Add items of `size` bytes when the host has room for them; return False if the queue was closed."""
        with self._filled:
            sender = self._senders[host]
            self._drained.wait_for(lambda: self._closed or self._has_room(sender))
            if self._closed:
                return False
            for item in items:
                self._add(sender, item, size // len(items))
            self._update(host)
            self._filled.notify()
            return True

    def get(self) -> Item | None:
        """Return the next item when there is one; None if there will be no more."""
        with self._filled:
            while not self._closed:
                if self._first and (not self._awaited or self._first[0][0] == _AT_ONCE):
                    return self._take()
                if not self._first and not self._active:
                    return None
                self._filled.wait()
            return None

    def close(self) -> None:
        """Drop all items, and wake the reader and the hosts."""
        with self._filled:
            self._closed = True
            self._filled.notify_all()
            self._drained.notify_all()

    def _has_room(self, sender: _Sender, share: float = 1.0) -> bool:
        """Return whether a host has not used this part of its share of the queue."""
        part = share / len(self._senders)
        return not sender.items or (sender.size < _QUEUE_BYTES * part and len(sender.items) < _QUEUE_ITEMS * part)

    def _add(self, sender: _Sender, item: Item, size: int) -> None:
        record, at = item.record, _AT_ONCE
        if isinstance(record, ConnectionRestored):
            sender.is_behind = True
        elif isinstance(record, (ConnectionLost, JobResult, Beat)):
            sender.is_behind = False
        elif isinstance(record, _TIMED):
            at = sender.at = record.at or sender.at
        if not sender.items:
            heapq.heappush(self._first, (at, sender.number, item.host))
        sender.items.append((at, item, size))
        sender.size += size

    def _take(self) -> Item:
        host = heapq.heappop(self._first)[2]
        sender = self._senders[host]
        _, item, size = sender.items.popleft()
        sender.size -= size
        if sender.items:
            heapq.heappush(self._first, (sender.items[0][0], sender.number, host))
        self._update(host)
        if self._has_room(sender, 0.5):
            self._drained.notify_all()
        return item

    def _update(self, host: str) -> None:
        """Record whether the other hosts wait for the next item of a host."""
        sender = self._senders[host]
        if sender.is_behind and not sender.items and host in self._active:
            self._awaited.add(host)
        else:
            self._awaited.discard(host)


def split(record: Log, payload: bytes) -> list[tuple[Log, bytes]]:
    """Return the pieces of a record of output, each with its time."""
    pieces: list[tuple[Log, bytes]] = []
    begin, at_us = 0, round(record.at * 1e6) if 0 <= record.at < LATEST_S else 0
    base = record._replace(marks=[])
    marks = record.marks if len(record.marks) <= 2 * MOST_MARKS else []  # more are not from our agent
    for length, elapsed_us in zip(marks[::2], marks[1::2], strict=False):
        if not 0 < length < len(payload) - begin:  # neither
            break
        pieces.append(_piece(base, payload, begin, begin + length, at_us))
        begin, at_us = begin + length, at_us + elapsed_us
    return [*pieces, _piece(base, payload, begin, len(payload), at_us)]


def _piece(base: Log, payload: bytes, begin: int, end: int, at_us: int) -> tuple[Log, bytes]:
    at = at_us / 1e6 if 0 <= at_us < LATEST_S * 1_000_000 else 0.0
    return base._replace(offset=base.offset + begin, payload=end - begin, at=at), payload[begin:end]
