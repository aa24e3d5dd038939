"""The log as lines for pipes, files, and CI; which sink fits a stream; and which lines are folded."""

from __future__ import annotations

import io
import threading
from itertools import pairwise
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.console import make_sink
from fleet.console.formatting import accepts_color, choose_color
from fleet.console.jsonl import JsonSink
from fleet.console.lines import LinesSink, LogStyle
from fleet.console.live import LiveSink
from fleet.console.reports import format_report
from fleet.events import CommandOutput, LogChunk, ResultsAtRisk, ResultsFound
from tests.unit.fleet.console.samples import HANG_INSPECTION, ONE_OF_EACH, names, started

BOTH = ("worker-0", "worker-1")
"""Tasks whose lines are folded."""


class Reader:
    """A sink and the streams that it writes to."""

    def __init__(self, *, prefix: bool = True, terminal: bool = False, raw: bool = False, tasks: int = 0) -> None:
        self.raw = io.BytesIO()
        self.err = io.StringIO()
        self.sink = LinesSink(self.raw, self.err, LogStyle(prefix, False, terminal, raw))
        if tasks:
            self.sink.emit(started(tasks))

    def log(self, data: bytes, task: str = "worker-0", attempt: int = 1, at: float = -1.0) -> None:
        self.sink.emit(LogChunk(task, task, attempt, 0, data, at))

    @property
    def out(self) -> bytes:
        return self.raw.getvalue()

    @property
    def whole(self) -> bytes:
        """Return all output after the end of the command."""
        self.sink.close()
        return self.out


def test_a_line_has_its_task_and_is_written_when_it_is_complete_or_its_attempt_ends() -> None:
    reader = Reader()
    reader.log(b"one\n\ntw")
    assert reader.out == b"worker-0 | one\nworker-0 | \n"
    reader.log(b"else\n", "worker-1")
    reader.log(b"o\nkilled")
    assert reader.out.endswith(b"\nworker-1 | else\nworker-0 | two\n")
    reader.log(b"again\nrest", attempt=2)
    assert reader.whole.endswith(b"worker-0 | killed\nworker-0 | again\nworker-0 | rest\n")


@pytest.mark.parametrize("prefix", [True, False])
def test_long_lines_are_written_in_pieces_and_redrawn_ones_once_in_their_final_state(prefix: bool) -> None:
    name = b"worker-0 | " * prefix
    reader = Reader(prefix=prefix)
    for number in range(3000):
        reader.log(b"\x08" * 200 + b"\r" + "━".encode() * 100 + b"%04d" % number)
    assert reader.out == b""
    reader.log(b"\r\n" + b"x" * 70_000)
    reader.log(b"rest\n")
    end = b"\n" + name if prefix else b""
    assert reader.out == name + "━".encode() * 100 + b"2999\n" + name + b"x" * 70_000 + end + b"rest\n"


@given(st.lists(st.tuples(st.sampled_from(BOTH), st.binary(max_size=50)), max_size=20))
def test_every_byte_of_each_task_if_raw(chunks: list[tuple[str, bytes]]) -> None:
    bare, reader = Reader(prefix=False, raw=True), Reader(raw=True, tasks=2)
    for task, data in chunks:
        bare.log(data, task)
        reader.log(data, task)
    assert bare.whole == b"".join(data for _, data in chunks)
    for task in BOTH:
        prefix = task.encode() + b" | "
        written = [line for line in reader.whole.split(b"\n") if line.startswith(prefix)]
        whole = b"".join(data for name, data in chunks if name == task)
        expected = whole.split(b"\n")[: None if whole[-1:] != b"\n" else -1] if whole else []
        assert [line[len(prefix) :] for line in written] == expected


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=6), st.booleans())
def test_how_bytes_are_cut_into_chunks_does_not_matter(data: bytes, cuts: list[int], terminal: bool) -> None:
    whole, cut = Reader(terminal=terminal), Reader(terminal=terminal)
    whole.log(data)
    for start, end in pairwise([0, *sorted(cuts), len(data)]):
        cut.log(data[start:end])
    assert cut.whole == whole.whole


def test_events_are_reported_next_to_the_log() -> None:
    reader = Reader()
    events = [event for event in ONE_OF_EACH if not isinstance(event, (LogChunk, CommandOutput))]
    for event in events:
        reader.sink.emit(event)
    aside = (ResultsFound, ResultsAtRisk)
    assert reader.out == "".join(format_report(event) for event in events if not isinstance(event, aside)).encode()
    assert all(format_report(event) in reader.err.getvalue() for event in events if isinstance(event, aside))
    lines = reader.err.getvalue().splitlines()
    attempt = "attempt 1 failed: worker-1 was killed by SIGKILL; attempt 2 starts in 0.5 s (of at most 4)"
    assert [line for line in lines if "failed" in line] == [attempt]  # the error at the end reports that of the job
    reader.sink.emit(HANG_INSPECTION)
    assert reader.err.getvalue().splitlines()[len(lines) + 1] == "worker-1, its stack:"


class Gone(io.BytesIO):
    def write(self, data: object) -> int:
        raise BrokenPipeError


def test_a_reader_that_closes_the_pipe_is_reported_once_and_not_at_the_end() -> None:
    sink = LinesSink(Gone(), io.StringIO(), LogStyle())
    with pytest.raises(BrokenPipeError):
        sink.emit(LogChunk("worker-0", "worker-0", 1, 0, b"one\n"))
    sink.emit(LogChunk("worker-0", "worker-0", 1, 4, b"two\nthree"))
    sink.close()


def test_output_of_commands_has_the_names_of_its_hosts() -> None:
    reader = Reader()
    reader.sink.emit(CommandOutput(BOTH, "stdout", b"one\ntwo"))
    reader.sink.emit(CommandOutput(("worker-2",), "stderr", b"\x1b[2Jno\n"))
    assert reader.whole == b"worker-[0-1] | one\nworker-[0-1] | two\n"
    assert reader.err.getvalue() == "worker-2 | no\n"


# --- lines of all tasks ---------------------------------------------------------------------------------------------


def test_a_line_of_all_tasks_is_written_once_also_if_durations_differ() -> None:
    reader = Reader(tasks=2)
    reader.log(b"Epoch 1/2\n1/1 - 5ms/step\nloss 0\n", at=10.0)
    reader.log(b"Epoch 1/2\n1/1 - 7ms/step\nloss 1\n", "worker-1", at=10.1)
    reader.log(b"later\n", at=11.0)
    lines = ["all 2 | Epoch 1/2", "all 2 | 1/1 - 5ms/step"]
    lines += ["worker-0 | loss 0", "worker-1 | loss 1", "worker-0 | later"]
    assert reader.whole.decode().splitlines() == lines


def test_a_line_of_all_tasks_but_one_is_written_once() -> None:
    reader = Reader(tasks=32)
    for name in names(32):
        reader.log(b"mine\n" if name == "worker-3" else b"Epoch 1/2\n", name, at=10.0)
    assert reader.whole == b"31 of 32 | Epoch 1/2\nworker-3 | mine\n"


def test_a_line_that_waits_for_other_tasks_is_written_without_a_further_event() -> None:
    written = threading.Event()

    class Output(io.BytesIO):
        def write(self, data: object) -> int:
            written.set()
            return 0

    sink = LinesSink(Output(), io.StringIO(), LogStyle())
    sink.emit(started(2))
    sink.emit(LogChunk("worker-0", "worker-0", 1, 0, b"alone\n", 10.0))
    assert written.wait(60)
    sink.close()


@given(st.lists(st.tuples(st.sampled_from(BOTH), st.text("ab\n", max_size=9), st.floats(0, 0.2))))
def test_folded_output_has_every_line_of_each_task_in_its_order(chunks: list[tuple[str, str, float]]) -> None:
    reader, at = Reader(tasks=2), 0.0
    for task, text, pause in chunks:
        at += pause
        reader.log(text.encode(), task, at=at)
    shown = [line.split(" | ") for line in reader.whole.decode().splitlines()]
    for task in BOTH:
        expected = "".join(text for name, text, _ in chunks if name == task).splitlines()
        assert [text for name, text in shown if name in (task, "all 2")] == expected


# --- streams --------------------------------------------------------------------------------------------------------


class Stream(io.TextIOWrapper):
    """A stream that reports to be a terminal or not, as given."""

    def __init__(self, terminal: bool) -> None:
        self.raw_bytes = io.BytesIO()
        super().__init__(self.raw_bytes, "utf-8")
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@pytest.mark.parametrize(
    ("output", "terminal", "term", "kind"),
    [
        ("auto", True, "xterm-256color", LiveSink),
        ("auto", True, "dumb", LinesSink),
        ("auto", True, "", LinesSink),
        ("auto", False, "xterm", LinesSink),
        ("lines", True, "xterm", LinesSink),
        ("json", True, "xterm", JsonSink),
    ],
)
def test_the_sink_fits_the_stream(
    output: Literal["auto", "lines", "json"], terminal: bool, term: str, kind: type
) -> None:
    stream = Stream(terminal)
    sink = make_sink(output, stdout=stream, stderr=io.StringIO(), environ={"TERM": term})
    assert type(sink) is kind
    sink.close()


@pytest.mark.parametrize(
    ("terminal", "environ", "written"),
    [
        (False, {"TERM": "xterm"}, b"worker-0 | a\x1b[2J\n"),
        (True, {"TERM": "xterm"}, b"\x1b[36mworker-0 |\x1b[0m a\n"),
        (True, {"TERM": "xterm", "NO_COLOR": "1"}, b"worker-0 | a\n"),
        (True, {"TERM": "dumb"}, b"worker-0 | a\n"),
    ],
)
def test_lines_suit_the_stream_and_a_terminal_is_safe_from_what_a_task_writes(
    terminal: bool, environ: dict[str, str], written: bytes
) -> None:
    stream = Stream(terminal)
    sink = make_sink("lines", stdout=stream, stderr=io.StringIO(), environ=environ)
    sink.emit(LogChunk("worker-0", "worker-0", 1, 0, b"50%\ra\x1b[2J\n\x1b]0;title\x07rest"))
    assert stream.raw_bytes.getvalue() == written
    sink.close()
    assert b"\x1b]" not in stream.raw_bytes.getvalue() or not terminal
    assert accepts_color(Stream(True), {"TERM": "xterm", "NO_COLOR": ""})


def test_neighbours_have_different_colors_and_always_the_same() -> None:
    colors = [choose_color(name) for name in names(20)]
    assert all(previous != other for previous, other in pairwise(colors))
    assert choose_color("worker-0") == "cyan"
