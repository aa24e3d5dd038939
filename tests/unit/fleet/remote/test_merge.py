from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.events import ConnectionLost, ConnectionRestored
from fleet.remote.merge import Item, Queue, split
from train.agent.protocol.records import Beat, JobResult, Log, Outcome, Progress

HOSTS = ("worker-0", "worker-1", "worker-2")


def log(host: str, at: float, data: bytes = b"x\n") -> Item:
    return Item(host, Log(host, host, 1, 0, len(data), at), data)


def ended(host: str) -> Item:
    return Item(host, JobResult("j", 1, Outcome.SUCCEEDED, 9.0))


def read_all(queue: Queue) -> Iterator[Item]:
    while (item := queue.get()) is not None:
        yield item


def texts(items: Sequence[Item]) -> list[bytes]:
    return [item.payload for item in items if isinstance(item.record, Log)]


@given(
    st.lists(st.lists(st.integers(1, 9), max_size=6).map(sorted), min_size=3, max_size=3),
    st.randoms(use_true_random=False),
)
def test_stored_items_are_in_one_order_however_they_arrive(times: list[list[int]], random: object) -> None:
    """The order is that of the times; among equals, of the hosts; and of each host, its own."""
    queue, shown = Queue(HOSTS), list[Item]()
    reader = threading.Thread(target=lambda: shown.extend(read_all(queue)), daemon=True)
    reader.start()
    waiting = [
        [log(host, at, b"%d" % number) for number, at in enumerate(stream)] + [ended(host)]
        for host, stream in zip(HOSTS, times, strict=True)
    ]
    while any(waiting):
        items = random.choice([items for items in waiting if items])  # type: ignore[attr-defined]
        item = items.pop(0)
        queue.put(item.host, [item])
        if not items:
            queue.remove_sender(item.host)
    reader.join()
    expected = sorted(
        (at, host, b"%d" % number)
        for host, stream in zip(HOSTS, times, strict=True)
        for number, at in enumerate(stream)
    )
    logs = [item for item in shown if isinstance(item.record, Log)]
    assert [(item.record.at, item.host, item.payload) for item in logs] == expected  # type: ignore[attr-defined]
    assert len(shown) == len(expected) + 3


def test_new_items_and_those_without_a_time_wait_for_no_host() -> None:
    queue = Queue(HOSTS)
    progress = Item("worker-0", Progress("worker-0", "worker-0", 1, 99.0))
    never_seen = Item("worker-1", ConnectionLost("worker-1", "timed out", 1.0))
    for item in (progress, never_seen, Item("worker-0", Beat(5.0)), Item("worker-2", Beat(5.0))):
        queue.put(item.host, [item])
        assert queue.get() == item
    for item in (log("worker-0", 6.0), log("worker-2", 5.0)):
        queue.put(item.host, [item])
        assert queue.get() == item


def test_a_host_that_is_back_is_awaited_again() -> None:
    queue = Queue(HOSTS[:2])
    queue.put("worker-0", [Item("worker-0", ConnectionLost("worker-0", "timed out", 1.0))])
    queue.put("worker-0", [Item("worker-0", ConnectionRestored("worker-0"))])
    queue.put("worker-1", [log("worker-1", 3.0, b"later"), ended("worker-1")])
    queue.remove_sender("worker-1")
    assert [type(queue.get().record) for _ in range(2)] == [ConnectionLost, ConnectionRestored]  # type: ignore[union-attr]
    queue.put("worker-0", [log("worker-0", 2.0, b"earlier"), ended("worker-0")])
    queue.remove_sender("worker-0")
    assert texts([*read_all(queue)]) == [b"earlier", b"later"]


def test_a_slow_reader_holds_up_a_host_whose_share_is_used() -> None:
    queue, sent = Queue(HOSTS[:1]), threading.Event()

    def send() -> None:
        for _ in range(5):
            queue.put("worker-0", [log("worker-0", 1.0)], 1 << 20)
        sent.set()
        queue.remove_sender("worker-0")

    threading.Thread(target=send, daemon=True).start()
    assert not sent.wait(0.2)
    assert len([*read_all(queue)]) == 5
    assert sent.is_set()
    queue.close()
    assert not queue.put("worker-0", [log("worker-0", 1.0)])


@pytest.mark.parametrize(
    ("at", "marks"),
    [
        (50.0, [4, 1_500_000, 3, -250_000]),
        *((at, marks) for at in (-7.0, 1e300) for marks in ([1, 1] * 5000, [0, 5], [9, 1], [2, 2**60, 2, 1], [4])),
    ],
)
def test_a_record_is_split_at_its_times_and_false_ones_lose_nothing(at: float, marks: list[int]) -> None:
    pieces = split(Log("worker-0", "ps-0", 2, 100, 9, at, marks), b"one\nbc\nd\n")
    assert b"".join(data for _, data in pieces) == b"one\nbc\nd\n"
    ends = [record.offset + record.payload for record, _ in pieces]
    assert [100, *ends] == [*(record.offset for record, _ in pieces), 109]
    assert all(0 <= record.at < 1 << 36 for record, _ in pieces)
    if at == 50.0:
        assert [(record.at, data) for record, data in pieces] == [(50.0, b"one\n"), (51.5, b"bc\n"), (51.25, b"d\n")]
