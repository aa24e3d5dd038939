from __future__ import annotations

import re
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import UsageError
from fleet.events import LogChunk, Note
from fleet.jobs.following import log_view
from fleet.jobs.following.log_view import EVERYTHING, LogView, Selection, format_time

STARTUP = b"2026-11-22 19:30:00.123456: I tensorflow/core/util/port.cc:153] oneDNN custom operations are on.\n"
QUIET = Selection(startup=False)


def chunks_of(task: str, *pieces: bytes, at: float = 1.0, attempt: int = 1, offset: int = 0) -> list[LogChunk]:
    """Return consecutive chunks, each one second after the one before."""
    chunks = []
    for number, data in enumerate(pieces):
        chunks.append(LogChunk(task, task, attempt, offset, data, at + number))
        offset += len(data)
    return chunks


def show(selection: Selection, chunks: Iterable[LogChunk]) -> tuple[bytes, LogView]:
    view = LogView(selection)
    shown = [chunk for given in chunks for chunk in view.add(given)]
    shown += view.finish()
    return b"".join(chunk.data for chunk in shown), view


@given(st.lists(st.text("ab\n\r", max_size=5).map(str.encode)), st.booleans())
def test_output_without_startup_messages_is_unchanged(pieces: list[bytes], by_line: bool) -> None:
    selection = Selection(pattern=re.compile("")) if by_line else QUIET
    view = LogView(selection)
    position = 0
    shown = [chunk for given in chunks_of("worker-0", *pieces) for chunk in view.add(given)] + view.finish()
    for chunk in shown:
        assert chunk.offset == position
        position += len(chunk.data)
    assert b"".join(chunk.data for chunk in shown) == b"".join(pieces)


@given(st.integers(1, 200))
def test_startup_messages_are_hidden_wherever_chunks_end(size: int) -> None:
    log = b"first\n" + STARTUP + b"second\n" + STARTUP + b"\xff third"
    pieces = [log[begin : begin + size] for begin in range(0, len(log), size)]
    text, view = show(QUIET, chunks_of("worker-0", *pieces))
    assert text == b"first\nsecond\n\xff third"
    assert view.notes() == [Note("2 TensorFlow startup lines hidden; --raw shows everything")]


NOISE = """\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795228844.740084    5800 port.cc:153] oneDNN custom operations are on. You may see different results
I0000 00:00:1795228844.740421    5800 cudart_stub.cc:31] Could not find cuda drivers on your machine, GPU not used.
To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow with the appropriate compiler flags.
E0000 00:00:1795228847.362245    5800 cuda_platform.cc:52] failed call to cuInit: INTERNAL: UNKNOWN ERROR (303)
I0000 00:00:1795228847.438592    5812 coordination_service.h:529] /job:worker/task:0 has connected
W0000 00:00:1795228847.675245    5800 dataset.cc:997] Input of GeneratorDatasetOp::Dataset will not be optimized because
/job:worker/replica:0/task:1
2024-05-09 12:34:56.123456: I tensorflow/core/util/port.cc:113] oneDNN custom operations are on.
2024-05-09 12:34:56.123456: I external/local_tsl/tsl/cuda/cudart_stub.cc:32] Could not find cuda drivers on your machine
2024-05-09 12:34:56.1: E external/local_xla/xla/cuda_dnn.cc:9261] Unable to register cuDNN factory: Attempting to register factory for plugin cuDNN
"""  # noqa: E501

SIGNAL = """\
Epoch 1/5
I0509 12:34:56.789012 140123456 train.py:12] step 10 loss 0.5
INFO:tensorflow:Using MirroredStrategy with devices
E0000 00:00:1795228847.362245    5800 cuda_platform.cc:52] failed call to cuInit: CUDA_ERROR_NO_DEVICE (100)
2024-05-09 12:34:56.123456: W tensorflow/core/framework/op_kernel.cc:1839] OP_REQUIRES failed
2024-05-09 12:34:56.123456: E tensorflow/core/distributed_runtime/worker.cc:1] UNAVAILABLE: connection refused
WARNING:tensorflow:AutoShardPolicy
"""


def test_startup_messages_are_hidden_and_what_a_script_prints_and_what_fails_is_not() -> None:
    text, view = show(QUIET, chunks_of("worker-0", NOISE.encode() + SIGNAL.encode() + NOISE.encode()))
    assert text == SIGNAL.encode()
    assert view.notes() == [
        Note(f"{2 * NOISE.count(chr(10))} TensorFlow startup lines hidden; --raw shows everything")
    ]
    for line in NOISE.splitlines(keepends=True):
        assert show(QUIET, chunks_of("worker-0", b"step 1: [=]\n" * 9 + line.encode()))[0] == b"step 1: [=]\n" * 9


def test_a_progress_bar_is_shown_before_its_line_ends() -> None:
    view = LogView(QUIET)
    first, second, third = chunks_of("worker-0", b"1/9 [=", b"==>..]\r", b"2/9\nnext\n")
    assert view.add(first) == []
    assert [chunk.data for chunk in view.add(second)] == [b"1/9 [===>..]\r"]
    assert b"".join(chunk.data for chunk in view.add(third)) == b"2/9\nnext\n"


def test_only_matching_lines_are_shown_and_colors_are_ignored() -> None:
    log = b"loss 1\n\x1b[31mlo\x1b[0mss\x1b[0m 2\naccuracy\nloss 3"
    text, view = show(Selection(pattern=re.compile("^loss")), chunks_of("worker-0", log))
    assert text == b"loss 1\n\x1b[31mlo\x1b[0mss\x1b[0m 2\nloss 3"
    assert view.notes() == []
    text, view = show(Selection(pattern=re.compile("none")), chunks_of("worker-0", log))
    assert (text, view.notes()) == (b"", [Note("no line matches 'none'")])


def test_each_line_has_the_time_of_its_first_byte() -> None:
    text, _ = show(Selection(timestamps=True), chunks_of("worker-0", b"a\nb", b"b\nc", b"c", at=1795228844.5))
    assert text == (b"2026-11-21T02:40:44.500Z a\n2026-11-21T02:40:44.500Z bb\n2026-11-21T02:40:45.500Z cc")
    text, _ = show(Selection(timestamps=True), chunks_of("worker-0", b"\r1/2\r", b"\r2/2\r\n", at=1.0))
    first, second = b"1970-01-01T00:00:01.000Z ", b"1970-01-01T00:00:02.000Z "
    assert text == first + b"\r" + first + b"1/2\r\r" + second + b"2/2\r\n"
    assert format_time(-1.0) == format_time(1e30) == format_time(float("nan")) == "-" + " " * 23


def test_the_last_lines_are_those_of_all_tasks() -> None:
    merged = [
        *chunks_of("worker-0", b"a1\na2\n", at=1.0),
        *chunks_of("worker-1", b"b1\n", at=2.0),
        *chunks_of("worker-0", b"a3\n", at=3.0, offset=6),
    ]
    assert show(Selection(lines=2), merged)[0] == b"b1\na3\n"
    assert show(Selection(lines=9), merged)[0] == b"a1\na2\nb1\na3\n"
    assert show(Selection(lines=0), merged)[0] == b""
    assert show(Selection(lines=2, pattern=re.compile("a")), merged)[0] == b"a2\na3\n"
    with_startup = [*merged, *chunks_of("worker-1", STARTUP, offset=3)]
    assert show(Selection(lines=2, startup=False), with_startup)[0] == b"b1\na3\n"


def test_new_output_follows_the_last_whole_lines() -> None:
    for lines, stored in ((1, [b"stored\n"]), (0, [])):
        view = LogView(Selection(lines=lines))
        first, second, third = chunks_of("worker-0", b"old\nstored\nhal", b"f\n", b"new\n")
        assert view.add(first) == []
        assert [chunk.data for chunk in view.release()] == stored
        assert [chunk.data for chunk in [*view.add(second), *view.add(third)]] == [b"half\n", b"new\n"]
        assert view.finish() == []


def test_an_unfinished_line_ends_with_its_attempt() -> None:
    view = LogView(QUIET)
    (first,) = chunks_of("worker-0", b"cut")
    (second,) = chunks_of("worker-0", b"new\n", attempt=2)
    assert [(chunk.attempt, chunk.data) for given in (first, second) for chunk in view.add(given)] == [
        (1, b"cut"),
        (2, b"new\n"),
    ]
    assert view.add(first._replace(attempt=3)) == []
    assert [chunk.data for chunk in view.end("worker-0")] == [b"cut"]


def test_a_very_long_line_is_neither_held_nor_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_view, "_LINE_BYTES", 4)
    matches, misses = b"yes" + b"x" * 9 + b"\n", b"no" + b"x" * 9 + b"yes\n"
    for log in (matches, misses):
        pieces = [log[begin : begin + 3] for begin in range(0, len(log), 3)]
        text, view = show(Selection(pattern=re.compile("yes")), chunks_of("worker-0", *pieces))
        assert text == (log if log is matches else b"")
        assert not any(held.chunk for held in view._texts.values())


def test_the_last_lines_are_bounded_in_bytes_and_a_loss_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_view, "_TAIL_BYTES", 1000)
    for lines, is_cut in ((100, True), (2, False)):
        text, view = show(Selection(lines=lines), chunks_of("worker-0", b"1234\n" * 50))
        assert (text, len(view.notes())) == (b"1234\n" * 2, is_cut)


def test_hosts_are_asked_for_as_few_lines_as_possible() -> None:
    assert EVERYTHING.tail_lines == Selection(lines=5, pattern=re.compile("a")).tail_lines == -1
    assert [Selection(lines=lines, startup=startup).tail_lines for lines, startup in ((5, True), (0, False))] == [
        5,
        0,
    ]
    assert Selection(lines=5, startup=False).tail_lines == 5 + 256


@pytest.mark.parametrize("end", [b"\n", b""])
def test_a_pattern_that_takes_too_long_ends_in_a_sentence(end: bytes) -> None:
    line = b"L" * 60 + b"!" + end
    with pytest.raises(UsageError, match=r"--grep '\(L\+\)\+x' cannot be evaluated: it takes more than"):
        show(Selection(pattern=re.compile("(L+)+x")), chunks_of("worker-0", line))
