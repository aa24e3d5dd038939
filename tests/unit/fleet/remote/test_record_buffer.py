from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.remote.record_buffer import PAYLOAD_MAX, NotARecordError, RecordBuffer
from train.agent.protocol.records import Beat, Log, Record, encode


def log(payload: bytes) -> bytes:
    return encode(Log("worker-0", "worker-0", 1, 0, len(payload), 5.0)) + payload


@given(st.lists(st.binary(max_size=300), max_size=8), st.lists(st.integers(1, 200), min_size=1, max_size=9))
def test_records_and_payloads_do_not_depend_on_how_they_arrive(payloads: list[bytes], sizes: list[int]) -> None:
    data = b"".join(encode(Beat(1.0)) + log(payload) for payload in payloads)
    buffer, received, at = RecordBuffer(), list[tuple[Record, bytes, int]](), 0
    while at < len(data):
        buffer.feed(data[at : at + sizes[0]])
        at += sizes[0]
        sizes = [*sizes[1:], sizes[0]]
        while (each := buffer.next()) is not None:
            received.append(each)
    assert [payload for record, payload, _ in received if isinstance(record, Log)] == payloads
    assert [type(record) for record, _, _ in received] == [Beat, Log] * len(payloads)
    assert sum(size for _, _, size in received) == len(data) - 2 * len(payloads)  # without the newlines
    assert not buffer


@pytest.mark.parametrize(
    "data",
    [
        b"no JSON\n",
        b"x" * 101,
        encode(Log("worker-0", "worker-0", 1, 0, PAYLOAD_MAX + 1)),
        encode(Log("worker-0", "worker-0", 1, 0, -1)),
    ],
)
def test_what_is_not_a_record_is_reported(data: bytes) -> None:
    buffer = RecordBuffer()
    buffer.feed(data)
    with pytest.raises(NotARecordError):
        buffer.next(100 if b"\n" not in data else 4096)


def test_a_line_may_come_before_the_records() -> None:
    buffer = RecordBuffer()
    buffer.feed(b"Welcome\n" + log(b"data"))
    assert buffer.line() == b"Welcome"
    received = buffer.next()
    assert received is not None
    assert received[1] == b"data"
