from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from fleet.remote.follower import Position
from train.agent.protocol.records import (
    Beat,
    Follow,
    HangInspection,
    JobResult,
    Log,
    Outcome,
    Phase,
    Progress,
    Record,
    TaskState,
    Usage,
)

ASK = Follow("job", "worker-0", attempt=1)
TAIL = Follow("job", "worker-0", tail_lines=10)


def log(offset: int, data: bytes, attempt: int = 1) -> tuple[Log, bytes]:
    return Log("worker-0", "worker-0", attempt, offset, len(data)), data


def state(at: float, phase: Phase = Phase.RUNNING, attempt: int = 1) -> TaskState:
    return TaskState("worker-0", "worker-0", attempt, phase, at)


@given(st.binary(max_size=200), st.lists(st.tuples(st.integers(0, 200), st.integers(1, 60), st.integers(0, 9))))
def test_every_byte_passes_once_whatever_is_repeated(data: bytes, breaks: list[tuple[int, int, int]]) -> None:
    position = Position(ASK)
    passed = b""

    def converse(piece: int, pieces: int, back: int) -> None:
        nonlocal passed
        at = max(0, position.request().log_offset - back)  # an agent that repeats more than it was asked for
        for _ in range(pieces):
            new = position.passed(*log(at, data[at : at + piece]))
            if new is not None:
                record, payload = new
                assert isinstance(record, Log)
                assert (record.offset, record.payload) == (len(passed), len(payload))
                passed += payload
            at += len(data[at : at + piece])

    for back, piece, pieces in breaks:
        converse(piece, pieces, back)
    converse(7, len(data), 0)
    assert passed == data


class Disk:
    """The stored records of an agent over several attempts: their logs, and two states of each."""

    def __init__(self, logs: dict[int, bytes]) -> None:
        self.logs = logs
        self.states = {
            attempt: [state(attempt * 10.0, Phase.RUNNING, attempt), state(attempt * 10.0 + 1, Phase.EXITED, attempt)]
            for attempt in logs
        }

    def records_for(self, request: Follow, piece: int, back: int, beat_every: int) -> Iterator[tuple[Record, bytes]]:
        """Yield the records that an agent sends, with `back` bytes more than requested."""
        first = min((attempt for attempt in self.logs if attempt >= request.attempt), default=0)
        for attempt in sorted(attempt for attempt in self.logs if attempt >= first):
            asked = attempt == request.attempt
            at = max(0, request.log_offset - back) if asked else 0
            states_sent = request.record_offset if asked else 0
            data = self.logs[attempt]
            sent = 0
            if states_sent == 0:
                yield self.states[attempt][0], b""
                states_sent = 1
            yield (
                Progress("worker-0", "worker-0", max(self.logs), 1.0),
                b"",
            )  # comes past all others, from the supervisor
            while at < len(data):
                yield log(at, data[at : at + piece], attempt)
                at = min(len(data), at + piece)
                sent += 1
                if sent % beat_every == 0:
                    yield Beat(1.0, states_sent, at, attempt), b""
            if states_sent == 1:
                yield self.states[attempt][1], b""
                states_sent = 2
            yield Beat(1.0, states_sent, len(data), attempt), b""


@given(
    st.dictionaries(st.integers(1, 5), st.binary(max_size=60), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 40), st.integers(0, 9), st.integers(1, 4))),
)
def test_attempts_pass_whole_and_once_wherever_the_connection_breaks(
    logs: dict[int, bytes], breaks: list[tuple[int, int, int, int]]
) -> None:
    disk = Disk(logs)
    position = Position(ASK)
    received: dict[int, bytes] = dict.fromkeys(logs, b"")
    states: list[TaskState] = []

    def converse(records: int, piece: int, back: int, beat_every: int) -> None:
        for _, (record, payload) in zip(
            range(records), disk.records_for(position.request(), piece, back, beat_every), strict=False
        ):
            new = position.passed(record, payload)
            if new is None:
                continue
            if isinstance(new[0], Log):
                assert new[0].offset == len(received[new[0].attempt])
                assert new[0].attempt == max(
                    attempt for attempt in logs if received[attempt] or attempt == new[0].attempt
                )
                received[new[0].attempt] += new[1]
            elif isinstance(new[0], TaskState):
                assert new[0].phase is not Phase.EXITED or received[new[0].attempt] == logs[new[0].attempt]
                states.append(new[0])

    for records, piece, back, beat_every in breaks:
        converse(records, piece, back, beat_every)
    converse(10_000, 7, 0, 3)
    assert received == logs
    assert states == [record for attempt in sorted(logs) for record in disk.states[attempt]]


def test_the_log_of_an_older_attempt_is_never_taken_for_that_of_a_newer_one() -> None:
    position = Position(ASK)
    position.passed(*log(0, b"abc"))
    assert position.passed(*log(0, b"xyz", attempt=2)) == log(0, b"xyz", attempt=2)
    assert position.passed(*log(3, b"def", attempt=1)) is None
    assert position.passed(Beat(1.0, 70, 900, 1), b"") is None
    assert position.request() == ASK._replace(attempt=2, log_offset=3)


def test_a_tail_is_asked_for_once() -> None:
    position = Position(TAIL)
    assert position.request() == TAIL
    position.passed(state(1.0, attempt=4), b"")
    assert position.request() == TAIL._replace(attempt=4)
    position.passed(*log(500, b"last", attempt=4))
    assert position.request() == TAIL._replace(attempt=4, log_offset=504, tail_lines=-1)


def test_a_beat_sets_the_position_once_there_is_an_attempt() -> None:
    position = Position(TAIL)
    assert position.passed(Beat(1.0), b"") is None
    assert position.request() == TAIL
    assert position.passed(Beat(1.0, 200, 900, 2), b"") is None
    assert position.request() == TAIL._replace(attempt=2, log_offset=900, record_offset=200, tail_lines=-1)


def test_states_and_results_pass_once() -> None:
    position = Position(ASK)
    first, second = state(1.0), state(2.0, Phase.EXITED)
    inspection = HangInspection("worker-0", "worker-0", 1, 2.5, "S", "stack", [])
    result = JobResult("job", 1, Outcome.SUCCEEDED, 3.0)
    for record in (first, second, inspection, result):
        assert position.passed(record, b"") == (record, b"")
    for record in (first, second, inspection, result):
        assert position.passed(record, b"") is None


def test_progress_and_usage_pass_when_they_are_newer() -> None:
    position = Position(ASK)
    assert position.passed(Progress("worker-0", "worker-0", 1, 5.0), b"") is not None
    assert position.passed(Progress("worker-0", "worker-0", 1, 4.0), b"") is None
    assert position.passed(Usage("worker-0", "worker-0", 4.0, 1.0, 1), b"") is not None
