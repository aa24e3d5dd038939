"""Limit the cost of a fleet by the lifetimes of its instances, without side effects.

Each running instance has a deadline at which its provider deletes it. So it is known in advance what a fleet costs at
most: what has ended, and each instance until its deadline. An instance may be stopped at any time, which
clears its deadline; until the last deadline of the fleet, its disk is paid from what the instance would have cost.
An instance that other hosts start again counts as if it ran all the time, because lists show only its last start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from provision.ledger import BILLED_MIN_S, LISTED, Interval, intervals
from provision.model import Price

CREATE, CREATED = "insert", "inserted"
"""Intents of a journal: instances will be created; that request has ended."""
START = "start"
"""Intent of a journal: stopped instances will be started."""

MARGIN_S = 90.0
"""Time beyond its deadline for which an instance may be billed.

The deletion begins up to 30 s late and takes a while: https://cloud.google.com/compute/docs/instances/limit-vm-runtime.
"""
USEFUL_S = 600.0
"""Shortest lifetime for which an instance is created."""


@dataclass(frozen=True)
class Budget:
    """Highest cost of a fleet, and its limit.

    Attributes:
        limit_usd: Limit of its cost in US dollars.
        used_usd: Cost of what has ended, and of each existing instance until its deadline.
        end: The last deadline of its instances, in seconds since the epoch; 0: none of them runs.
        unlimited: Names of running instances without a deadline, or whose price is unknown.
        is_new: The fleet has not had any instances.
    """

    limit_usd: float
    used_usd: float = 0.0
    end: float = 0.0
    unlimited: tuple[str, ...] = ()
    is_new: bool = True

    @property
    def left_usd(self) -> float:
        """Return what further instances may cost."""
        return self.limit_usd - self.used_usd

    def lifetime_s(self, price: Price, count: int, now: float) -> float:
        """Return the longest lifetime of `count` new instances, in seconds; 0 or less: the rest pays for none.

        They end no later than the existing ones, whose disks need not be paid for longer then.

        Args:
            price: Price of one of them.
            count: Number of instances; 1 or more.
            now: Time of their start, in seconds since the epoch.
        """
        running, stopped = count * price.usd_h / 3600, count * price.stopped_usd_h / 3600
        left = self.left_usd - running * MARGIN_S
        if not self.end:
            return left / running
        longest = self.end - now
        return min(longest, (left - stopped * longest) / (running - stopped))


def budget_of(limit_usd: float, entries: Sequence[Mapping[str, Any]], now: float, *, ending: bool = False) -> Budget:
    """Return what a fleet costs at most, from the entries of its journal.

    Args:
        limit_usd: Limit of its cost in US dollars.
        entries: The entries, oldest first.
        now: Seconds since the epoch.
        ending: The running instances are about to be stopped, so that their deadlines do not count.
    """
    billed = [*intervals(entries), *_unlisted(entries)]
    running = [interval for interval in billed if interval.running and not interval.end]
    unlimited = tuple(each.name for each in running if not each.usd_h or not (each.delete_at or ending))
    end = 0.0 if ending else max((interval.delete_at for interval in running), default=0.0)
    used = sum(_most_usd(interval, end, now, ending=ending) for interval in billed)
    return Budget(limit_usd, used, end if end > now else 0.0, unlimited, is_new=not billed)


def _most_usd(interval: Interval, end: float, now: float, *, ending: bool) -> float:
    """Return what an instance costs at most from the start of an interval until the end of the fleet."""
    if interval.end:
        is_late = interval.running and 0 < interval.delete_at <= interval.end
        return interval.cost_usd(now) + (interval.usd_h * MARGIN_S / 3600 if is_late else 0.0)
    if not interval.running:
        return interval.usd_h * (max(now, end) - interval.start) / 3600
    until = now if ending else interval.delete_at
    runs_s = max(BILLED_MIN_S, until - interval.start + MARGIN_S)
    return (interval.usd_h * runs_s + interval.stopped_usd_h * max(0.0, end - until)) / 3600


def _unlisted(entries: Iterable[Mapping[str, Any]]) -> list[Interval]:
    """Return intervals of instances that were requested and not listed since, although they may have run.

    They count from the request until the first list without them, at most for their lifetime.
    """
    over: list[Interval] = []
    pending: dict[str, _Request] = {}
    ids: set[str] = set()
    for entry in entries:
        number = str(entry.get("request_id", ""))
        if entry["intent"] in (CREATE, START) and "usd_h" in entry:
            pending[number] = _Request(entry, tuple(entry["workers"]), entry["intent"] == START)
        elif entry["intent"] == CREATED and number in pending:
            pending[number] = replace(pending[number], is_over=True, created=entry.get("created"))
        elif entry["intent"] == LISTED:
            names = {str(item["name"]) for item in entry["instances"]}
            new = {str(item["name"]) for item in entry["instances"] if str(item["id"]) not in ids}
            ids |= {str(item["id"]) for item in entry["instances"]}
            for key, request in list(pending.items()):
                pending[key] = request.without(names if request.entry["intent"] == START else new)
                if request.is_over:
                    over += pending.pop(key).intervals(float(entry["at"]))
    return [*over, *(each for request in pending.values() for each in request.intervals(0.0))]


@dataclass(frozen=True)
class _Request:
    """A request to create or start instances.

    Attributes:
        entry: Its entry in the journal.
        names: The instances that have not been listed since.
        is_over: It has ended.
        created: Number of instances that it created and that were not listed; None: unknown.
    """

    entry: Mapping[str, Any]
    names: tuple[str, ...]
    is_over: bool
    created: int | None = None

    def without(self, names: Iterable[str]) -> _Request:
        """Return the request without instances that have been listed."""
        left = tuple(name for name in self.names if name not in names)
        created = None if self.created is None else max(0, self.created - (len(self.names) - len(left)))
        return replace(self, names=left, created=created)

    def intervals(self, listed_at: float) -> list[Interval]:
        """Return intervals of the instances, which a list does not have; 0: there has been no list since."""
        start, usd_h, stopped_usd_h = (float(self.entry[name]) for name in ("at", "usd_h", "stopped_usd_h"))
        until = start + float(self.entry["lifetime_s"])
        end = min(listed_at, until) if listed_at else 0.0
        return [
            Interval("", name, start, usd_h, True, until, end, stopped_usd_h) for name in self.names[: self.created]
        ]
