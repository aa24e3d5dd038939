"""Check what passes of the records of a host, and what the next connection asks for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.remote.follower import ForeignReportError, Position
from train.agent.protocol.records import Beat, Follow, Log, Phase, Progress, Record, TaskState, Usage

ASK = Follow("job", "worker-0", attempt=1)
TAIL = Follow("job", "worker-0", tail_lines=10)


def log(offset: int, data: bytes, attempt: int = 1) -> tuple[Log, bytes]:
    return Log("worker-0", "worker-0", attempt, offset, len(data)), data


def state(attempt: int, phase: Phase = Phase.RUNNING) -> TaskState:
    return TaskState("worker-0", "worker-0", attempt, phase, 1.0)


def answer(logs: dict[int, bytes], request: Follow, piece: int, back: int) -> Iterator[tuple[Record, bytes]]:
    """Yield what an agent sends, with `back` bytes more than requested; each attempt has two states."""
    for attempt in sorted(attempt for attempt in logs if attempt >= request.attempt):
        is_first, data = attempt == request.attempt, logs[attempt]
        if not (is_first and request.record_offset):
            yield state(attempt), b""
        yield Progress("worker-0", "worker-0", max(logs), 1.0), b""  # past all others, from the supervisor
        for at in range(max(0, request.log_offset - back) if is_first else 0, len(data), piece):
            yield log(at, data[at : at + piece], attempt)
            yield Beat(1.0, 1, min(len(data), at + piece), attempt), b""
        yield state(attempt, Phase.EXITED), b""
        yield Beat(1.0, 2, len(data), attempt), b""


@given(
    st.dictionaries(st.integers(1, 5), st.binary(max_size=60), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 40), st.integers(0, 9))),
)
def test_attempts_pass_whole_and_once_wherever_the_connection_breaks(
    logs: dict[int, bytes], breaks: list[tuple[int, int, int]]
) -> None:
    position = Position(ASK)
    received: dict[int, bytes] = dict.fromkeys(logs, b"")
    states: list[TaskState] = []
    for records, piece, back in [*breaks, (10_000, 7, 0)]:
        sent = answer(logs, position.request(), piece, back)
        for _, (record, payload) in zip(range(records), sent, strict=False):
            new, data = position.passed(record, payload) or (None, b"")
            if isinstance(new, Log):
                assert (new.offset, new.payload) == (len(received[new.attempt]), len(data))
                received[new.attempt] += data
            elif isinstance(new, TaskState):
                assert new.phase is not Phase.EXITED or received[new.attempt] == logs[new.attempt]
                states.append(new)
    assert received == logs
    assert states == [state(attempt, phase) for attempt in sorted(logs) for phase in (Phase.RUNNING, Phase.EXITED)]


def test_the_log_of_an_older_attempt_is_never_taken_for_that_of_a_newer_one() -> None:
    position = Position(ASK)
    position.passed(*log(0, b"abc"))
    assert position.passed(*log(0, b"xyz", attempt=2)) == log(0, b"xyz", attempt=2)
    assert position.passed(*log(3, b"def", attempt=1)) is None
    assert position.passed(Beat(1.0, 70, 900, 1), b"") is None
    assert position.request() == ASK._replace(attempt=2, log_offset=3)


def test_a_tail_is_asked_for_once() -> None:
    position = Position(TAIL)
    position.passed(Beat(1.0), b"")
    assert position.request() == TAIL
    position.passed(state(4), b"")
    assert position.request() == TAIL._replace(attempt=4)
    position.passed(*log(500, b"last", attempt=4))
    assert position.request() == TAIL._replace(attempt=4, log_offset=504, tail_lines=-1)


def test_progress_and_usage_pass_when_they_are_newer() -> None:
    position = Position(ASK)
    assert position.passed(Progress("worker-0", "worker-0", 1, 5.0), b"") is not None
    assert position.passed(Progress("worker-0", "worker-0", 1, 4.0), b"") is None
    assert position.passed(Usage("worker-0", "worker-0", 4.0, 1.0, 1), b"") is not None


def test_a_host_that_reports_more_than_a_job_can_cause_is_given_up() -> None:
    position = Position(ASK, "worker-0 (10.0.0.2)")
    for number in range(63):
        assert position.passed(state(1)._replace(reason=f"{number}" + "x" * (1 << 20)), b"")
    with pytest.raises(ForeignReportError, match=r"worker-0 \(10.0.0.2\) reports more than a job can cause: over 64"):
        position.passed(state(1)._replace(reason="y" * (1 << 20)), b"")
