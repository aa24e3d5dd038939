from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.events import ConnectionLost, ConnectionRestored
from fleet.remote.merge import LOST_S, Item, Merge, split
from train.agent.protocol.records import Beat, JobResult, Log, Outcome, Phase, Progress, TaskState

HOSTS = ("worker-0", "worker-1", "worker-2")


def log(host: str, at: float, data: bytes = b"x\n") -> Item:
    return Item(host, Log(host, host, 1, 0, len(data), at), data)


def complete(host: str, at: float = 0.0) -> Item:
    return Item(host, Beat(at, complete=True))


def ended(host: str) -> Item:
    return Item(host, JobResult("j", 1, Outcome.SUCCEEDED, 9.0))


def drain(merge: Merge, now: float = 0.0) -> list[Item]:
    items = []
    while (item := merge.next(now)[0]) is not None:
        items.append(item)
    return items


def texts(items: Sequence[Item]) -> list[bytes]:
    return [item.payload for item in items if isinstance(item.record, Log)]


@given(
    st.lists(st.lists(st.integers(1, 9), max_size=6).map(sorted), min_size=3, max_size=3),
    st.randoms(use_true_random=False),
)
def test_stored_items_are_in_one_order_however_they_arrive(times: list[list[int]], random: object) -> None:
    """The order is that of the times; among equals, of the hosts; and of each host, its own."""
    merge = Merge(HOSTS)
    queues = [
        [log(host, at, b"%d" % number) for number, at in enumerate(stream)] + [ended(host)]
        for host, stream in zip(HOSTS, times, strict=True)
    ]
    shown: list[Item] = []
    while any(queues):
        queue = random.choice([queue for queue in queues if queue])  # type: ignore[attr-defined]
        merge.add([queue.pop(0)], 0.0)
        shown += drain(merge)
    shown += drain(merge)
    expected = sorted(
        (at, host, b"%d" % number)
        for host, stream in zip(HOSTS, times, strict=True)
        for number, at in enumerate(stream)
    )
    logs = [item for item in shown if isinstance(item.record, Log)]
    assert [(item.record.at, item.host, item.payload) for item in logs] == expected  # type: ignore[union-attr]
    assert len(shown) == len(expected) + 3


def test_output_without_times_is_in_the_order_of_the_hosts() -> None:
    merge = Merge(HOSTS[:2])
    for host in reversed(HOSTS[:2]):
        merge.add([Item(host, TaskState(host, host, 1, Phase.RUNNING, 5.0)), log(host, 0.0), log(host, 0.0)], 0.0)
        merge.add([ended(host)], 0.0)
    assert [item.host for item in drain(merge) if isinstance(item.record, Log)] == [
        *["worker-0"] * 2,
        *["worker-1"] * 2,
    ]


def test_a_host_that_sends_stored_items_is_awaited_and_new_items_come_as_they_arrive() -> None:
    merge = Merge(HOSTS[:2])
    merge.add([log("worker-0", 5.0)], 0.0)
    assert merge.next(1000.0) == (None, math.inf)
    merge.add([complete("worker-1", 3.0)], 1000.0)
    assert [type(item.record) for item in drain(merge, 1000.0)] == [Beat, Log]  # it has waited for long already
    merge.add([complete("worker-0", 5.0)], 1000.0)
    drain(merge, 1000.0)
    merge.add([log("worker-0", 6.0)], 1000.0)
    assert texts(drain(merge, 1000.0)) == [b"x\n"]
    merge.add([log("worker-1", 5.5, b"earlier")], 1000.05)
    assert texts(drain(merge, 1000.1)) == [b"earlier"]


def test_an_item_is_not_held_if_the_other_hosts_have_sent_all_earlier_ones() -> None:
    merge = Merge(HOSTS[:2])
    merge.add([complete("worker-1", 7.0)], 0.0)
    merge.add([log("worker-0", 6.0)], 0.0)
    assert len(drain(merge)) == 2


def test_what_has_no_time_is_never_held() -> None:
    merge = Merge(HOSTS)
    lost = Item("worker-1", ConnectionLost("worker-1", "timed out", 1.0))
    progress = Item("worker-0", Progress("worker-0", "worker-0", 1, 99.0))
    merge.add([progress], 0.0)
    merge.add([lost], 0.0)
    assert drain(merge) == [progress, lost]


def test_a_lost_host_does_not_hold_up_the_others() -> None:
    merge = Merge(HOSTS[:2])
    merge.add([log("worker-1", 1.0), log("worker-1", 2.0)], 0.0)
    never_seen = Item("worker-0", ConnectionLost("worker-0", "timed out", 1.0))
    merge.add([never_seen], 0.0)
    assert len(drain(merge)) == 3
    lost = Item("worker-1", ConnectionLost("worker-1", "timed out", 1.0))
    merge.add([lost], 10.0)
    merge.add([Item("worker-0", ConnectionRestored("worker-0")), log("worker-0", 3.0)], 10.0)
    assert len(drain(merge, 10.0)) == 2
    assert merge.next(10.0) == (None, LOST_S)  # worker-1 was sending stored output
    assert texts(drain(merge, 10.0 + LOST_S)) == [b"x\n"]
    merge.remove("worker-1")
    merge.add([log("worker-0", 4.0)], 20.0)
    assert len(drain(merge, 20.0)) == 1


def test_a_record_is_split_at_its_times() -> None:
    record = Log("worker-0", "ps-0", 2, 100, 9, 50.0, [4, 1_500_000, 3, -250_000])
    pieces = split(record, b"one\nbc\nd\n")
    assert [(piece.offset, piece.payload, piece.at, data) for piece, data in pieces] == [
        (100, 4, 50.0, b"one\n"),
        (104, 3, 51.5, b"bc\n"),
        (107, 2, 51.25, b"d\n"),
    ]
    assert not any(piece.marks for piece, _ in pieces)


@pytest.mark.parametrize("marks", [[1, 1] * 5000, [0, 5], [9, 1], [-3, 1], [2, 2**60, 2, 1], [4], [2, 10**18]])
@pytest.mark.parametrize("at", [0.0, 5.0, -7.0, 1e300])
def test_false_times_neither_lose_nor_repeat_output(marks: list[int], at: float) -> None:
    pieces = split(Log("worker-0", "worker-0", 1, 10, 9, at, marks), b"123456789")
    assert b"".join(data for _, data in pieces) == b"123456789"
    ends = [record.offset + record.payload for record, _ in pieces]
    assert [10, *ends] == [*(record.offset for record, _ in pieces), 19]
    assert all(0 <= record.at < 1 << 36 for record, _ in pieces)
