"""Cost of the instances of a fleet, from what their provider listed at several times.

A journal has an entry for each list that differs from the one before. From them follow the times at which each
instance ran or was stopped, also of instances that have been deleted since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from provision.model import Instance, InstanceState

LISTED = "listed"
"""Intent of the entries of a journal with a complete list of the instances of a fleet."""

BILLED_MIN_S = 60.0
"""Time that is billed at least for each start of an instance: https://cloud.google.com/compute/vm-instance-pricing."""


@dataclass(frozen=True)
class Interval:
    """A time in which an instance had one price.

    Attributes:
        id: Identifier of the instance.
        name: Its name within the fleet.
        start: Seconds since the epoch.
        usd_h: Estimated price in US dollars an hour.
        running: Whether it ran; otherwise it was stopped.
        delete_at: When its provider deletes it, in seconds since the epoch; 0: never.
        end: Seconds since the epoch; 0: it is not over.
        stopped_usd_h: Estimated price while it is stopped.
    """

    id: str
    name: str
    start: float
    usd_h: float
    running: bool
    delete_at: float = 0.0
    end: float = 0.0
    stopped_usd_h: float = 0.0

    def cost_usd(self, now: float) -> float:
        """Return the cost until `now`, in US dollars."""
        end = self.end or (min(now, self.delete_at) if self.delete_at else now)
        return self.usd_h * max(BILLED_MIN_S if self.running else 0.0, end - self.start) / 3600


def entry(instances: Iterable[Instance], at: float) -> dict[str, Any]:
    """Return the entry of a fleet's journal with a complete list of its instances at a time, except queued ones."""
    items = [
        {
            "id": instance.id,
            "name": instance.name,
            "running": instance.state is not InstanceState.STOPPED,
            "usd_h": instance.price_usd_h,
            "stopped_usd_h": instance.stopped_usd_h,
            "created_at": instance.created_at,
            "started_at": instance.started_at,
            "stopped_at": instance.stopped_at,
            "delete_at": instance.delete_at,
        }
        for instance in instances
        if instance.state is not InstanceState.QUEUED
    ]
    return {"at": at, "intent": LISTED, "instances": items}


def is_new(listed: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a list of instances must be added to a journal: it differs, or something was begun since."""
    if not entries:
        return bool(listed["instances"])
    return bool(entries[-1]["intent"] != LISTED or listed["instances"] != entries[-1]["instances"])


def intervals(entries: Iterable[Mapping[str, Any]]) -> list[Interval]:
    """Return the times in which the instances of a fleet ran or were stopped.

    The end of an instance that is not listed any more is the time of the first list without it, or the time at which
    its provider deletes it, if that is earlier.

    Args:
        entries: Entries of the fleet's journal, oldest first; those of other intents are left out.
    """
    over: list[Interval] = []
    current: dict[str, Interval] = {}
    for entry in entries:
        if entry["intent"] != LISTED:
            continue
        at, existing = float(entry["at"]), {str(item["id"]): item for item in entry["instances"]}
        over += [_ended(current.pop(number), at) for number in list(current) if number not in existing]
        for number, item in existing.items():
            past, current[number] = _advance(current.get(number), item, at)
            over += past
    return [*over, *current.values()]


def cost_usd(billed: Iterable[Interval], now: float) -> float:
    """Return the estimated cost of a fleet until `now`, in US dollars."""
    return sum(interval.cost_usd(now) for interval in billed)


def price_usd_h(billed: Iterable[Interval], now: float) -> float:
    """Return the estimated price of a fleet in US dollars an hour, of what is left of it at `now`."""
    return sum(each.usd_h for each in billed if not each.end and not 0 < each.delete_at <= now)


def _ended(interval: Interval, at: float) -> Interval:
    end = min(at, interval.delete_at) if interval.delete_at else at
    return replace(interval, end=max(interval.start, end))


def _advance(before: Interval | None, item: Mapping[str, Any], at: float) -> tuple[list[Interval], Interval]:
    """Return the intervals of an instance that ended since the last list, and the present one.

    Args:
        before: Its interval in that list; None: it was not listed.
        item: The instance as it is listed now.
        at: The time of this list.
    """
    changes = [*_changes(item), (at, bool(item["running"]))]
    current = before or _begin(item, *changes[0])
    over: list[Interval] = []
    for start, running in changes:
        if start > current.start and running != current.running:
            over.append(_ended(current, start))
            current = _begin(item, start, running)
    return over, replace(current, delete_at=float(item["delete_at"]) if current.running else 0.0)


def _begin(item: Mapping[str, Any], start: float, running: bool) -> Interval:
    usd_h, stopped_usd_h = float(item["usd_h"]), float(item["stopped_usd_h"])
    return Interval(
        str(item["id"]),
        str(item["name"]),
        start,
        usd_h if running else stopped_usd_h,
        running,
        stopped_usd_h=stopped_usd_h,
    )


def _changes(item: Mapping[str, Any]) -> list[tuple[float, bool]]:
    """Return the times at which an instance was started (True) or stopped, as far as its provider reports them."""
    started = float(item["started_at"] or item["created_at"])
    changes = [(started, True)] if started else []
    if stopped := float(item["stopped_at"]):
        first = [(float(item["created_at"]), True)] if stopped < started else []
        changes = sorted([*first, *changes, (stopped, False)])
    return changes
