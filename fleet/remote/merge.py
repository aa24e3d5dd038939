"""Merge what several hosts report: stored items by their times, new ones as they come; pure.

The order of each host is kept. Between hosts, the earliest item comes first, and among equals that of the first host.
An item that has no time has that of the item before it. Clocks are those of the hosts.
"""

from __future__ import annotations

import heapq
import math
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

LOST_S = 10.0
"""Longest time for which the other hosts wait for a lost host that was sending stored items, in seconds."""

_TIMED = (TaskState, AttemptEnded, HangInspection, Notice)
_AT_ONCE = -math.inf


class Item(NamedTuple):
    """An event of the task of a host, or of the connection to the host.

    A connection that is lost permanently is reported with ``retry_s`` 0.
    """

    host: str
    record: Record | ConnectionLost | ConnectionRestored | Note
    payload: bytes = b""


@dataclass
class _Stream:
    """The items of one host.

    Attributes:
        number: Place of the host among the hosts.
        held: Items that have not been returned yet, each with its time; -inf: at once.
        await_until: The other hosts wait for its next item until this time: inf while it sends stored items, -inf
            if it has sent all of them.
    """

    number: int
    held: deque[tuple[float, Item]] = field(default_factory=deque)
    await_until: float = math.inf
    has_sent: bool = False
    at: float = 0.0  # of the last item


class Merge:
    """Items of several hosts in the order of their times.

    While hosts send stored items, the order is exact: an item is returned once every other host has sent its next
    one, or has none. New items of a running job wait for no other host.

    Args:
        hosts: Names of the hosts.
    """

    def __init__(self, hosts: Iterable[str]) -> None:
        self._streams = {host: _Stream(number) for number, host in enumerate(hosts)}
        self._order = list(self._streams.values())  # by number
        self._first: list[tuple[float, int]] = []  # heap of the first items: key, number of the host
        self._awaited = dict.fromkeys(range(len(self._order)))  # numbers of hosts that the others wait for, or did

    def add_host(self, host: str) -> None:
        """Add a host, whose first items are new ones."""
        if host not in self._streams:
            self._streams[host] = _Stream(len(self._order), await_until=-math.inf)
            self._order.append(self._streams[host])

    def add(self, items: Sequence[Item], now: float) -> None:
        """Add the next items of a host.

        Args:
            items: The items, all of one host.
            now: The current time, by a monotonic clock.
        """
        for item in items:
            stream, record = self._streams[item.host], item.record
            if isinstance(record, ConnectionLost):
                if stream.await_until == math.inf:
                    stream.await_until = now + LOST_S if stream.has_sent else -math.inf
            elif isinstance(record, ConnectionRestored):
                stream.await_until = math.inf
            elif isinstance(record, (JobResult, Beat)):
                stream.await_until = -math.inf
            else:
                stream.has_sent = True
            key = _AT_ONCE
            if isinstance(record, (Log, *_TIMED)):
                key = stream.at = record.at or stream.at
            if not stream.held:
                heapq.heappush(self._first, (key, stream.number))
            stream.held.append((key, item))
            if stream.await_until > -math.inf:
                self._awaited[stream.number] = None

    def remove(self, host: str) -> None:
        """Record that a host sends no more items."""
        self._streams[host].await_until = -math.inf

    def next(self, now: float) -> tuple[Item | None, float]:
        """Return the next item, or None and the time to wait for it unless items are added; inf: until then."""
        due_at = self.due_at()
        if due_at > now:
            return None, due_at - now
        stream = self._order[heapq.heappop(self._first)[1]]
        _, item = stream.held.popleft()
        if stream.held:
            heapq.heappush(self._first, (stream.held[0][0], stream.number))
        return item, 0.0

    def due_at(self) -> float:
        """Return the time from which `next` returns an item unless items are added; inf: not until then."""
        if not self._first:
            return math.inf
        until = -math.inf
        if self._first[0][0] == _AT_ONCE:
            return until
        for number in list(self._awaited):
            stream = self._order[number]
            if stream.await_until == -math.inf:
                del self._awaited[number]
            elif not stream.held:
                until = max(until, stream.await_until)
        return until


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
