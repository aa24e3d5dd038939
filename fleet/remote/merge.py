"""Merge what several hosts report: stored items by their times, new ones as they come.

The order of each host is kept. Between hosts, the earliest item comes first, and among equals that of the first host.
An item that has no time has that of the item before it. Clocks are those of the hosts.
"""

from __future__ import annotations

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
        is_behind: It sends stored items, so that the other hosts wait for its next one.
        is_active: It will put further items.
        at: Time of its last item.
    """

    is_behind: bool
    is_active: bool = True
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
        ordered = sorted(hosts, key=lambda name: (len(name), name))
        self._senders = {host: _Sender(is_behind=True) for host in ordered}
        self._closed = False
        self._changed = threading.Condition()

    def add_sender(self, host: str) -> None:
        """Add a host that puts new items from now on."""
        with self._changed:
            self._senders[host] = _Sender(is_behind=False)

    def is_behind(self, host: str) -> bool:
        """Return whether a host sends stored items, which are ordered by their times."""
        return self._senders[host].is_behind

    def remove_sender(self, host: str) -> None:
        """Record that a host has put its last item."""
        with self._changed:
            self._senders[host].is_active = False
            self._changed.notify_all()

    def put(self, host: str, items: Sequence[Item], size: int = 0) -> bool:
        """Add items of `size` bytes when the host has room for them; return False if the queue was closed."""
        with self._changed:
            sender = self._senders[host]
            self._changed.wait_for(lambda: self._closed or self._has_room(sender))
            for item in () if self._closed else items:
                at = _AT_ONCE
                if isinstance(item.record, ConnectionRestored):
                    sender.is_behind = True
                elif isinstance(item.record, (ConnectionLost, JobResult, Beat)):
                    sender.is_behind = False
                elif isinstance(item.record, _TIMED):
                    at = sender.at = item.record.at or sender.at
                sender.items.append((at, item, size // len(items)))
                sender.size += size // len(items)
            self._changed.notify_all()
            return not self._closed

    def get(self) -> Item | None:
        """Return the next item when there is one; None if there will be no more."""
        with self._changed:
            while not self._closed:
                filled = [sender for sender in self._senders.values() if sender.items]
                first = min(filled, key=lambda sender: sender.items[0][0], default=None)
                if first is not None and (first.items[0][0] == _AT_ONCE or not self._is_any_awaited()):
                    _, item, size = first.items.popleft()
                    first.size -= size
                    if self._has_room(first, 0.5):
                        self._changed.notify_all()
                    return item
                if first is None and not any(sender.is_active for sender in self._senders.values()):
                    break
                self._changed.wait()
            return None

    def close(self) -> None:
        """Drop all items, and wake the reader and the hosts."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _is_any_awaited(self) -> bool:
        """Return whether the other hosts wait for the next item of a host."""
        return any(each.is_behind and each.is_active and not each.items for each in self._senders.values())

    def _has_room(self, sender: _Sender, share: float = 1.0) -> bool:
        """Return whether a host has not used this part of its share of the queue."""
        part = share / len(self._senders)
        return not sender.items or (sender.size < _QUEUE_BYTES * part and len(sender.items) < _QUEUE_ITEMS * part)


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
