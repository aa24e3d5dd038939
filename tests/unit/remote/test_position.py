from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fleet.remote.position import Position
from train.agent.records import Beat, Follow, JobResult, Log, Outcome, Phase, Progress, TaskState, Usage

ASK = Follow("job", "worker-0")


def log(offset: int, data: bytes, attempt: int = 1) -> tuple[Log, bytes]:
    return Log("worker-0", attempt, offset, len(data)), data


def state(at: float, phase: Phase = Phase.RUNNING) -> TaskState:
    return TaskState("worker-0", 1, phase, at)


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


def test_a_new_attempt_begins_at_its_beginning() -> None:
    position = Position(ASK)
    assert position.passed(*log(0, b"abc")) == log(0, b"abc")
    assert position.passed(*log(0, b"xyz", attempt=2)) == log(0, b"xyz", attempt=2)
    assert position.request().log_offset == 3


def test_a_tail_is_asked_for_once() -> None:
    position = Position(ASK._replace(tail_lines=10))
    assert position.request() == ASK._replace(tail_lines=10)
    position.passed(*log(500, b"last"))
    assert position.request() == ASK._replace(log_offset=504)


def test_a_beat_tells_how_far_we_are_and_is_not_passed_on() -> None:
    position = Position(ASK._replace(tail_lines=3))
    assert position.passed(Beat(1.0, 200, 900), b"") is None
    assert position.request() == ASK._replace(log_offset=900, record_offset=200)


def test_states_and_results_pass_once() -> None:
    position = Position(ASK)
    first, second = state(1.0), state(2.0, Phase.EXITED)
    result = JobResult("job", 1, Outcome.SUCCEEDED, 3.0)
    for record in (first, second, result):
        assert position.passed(record, b"") == (record, b"")
    for record in (first, second, result):
        assert position.passed(record, b"") is None


def test_progress_and_usage_pass_when_they_are_newer() -> None:
    position = Position(ASK)
    assert position.passed(Progress("worker-0", 1, 5.0), b"") is not None
    assert position.passed(Progress("worker-0", 1, 4.0), b"") is None
    assert position.passed(Usage("worker-0", 4.0, 1.0, 1), b"") is not None
