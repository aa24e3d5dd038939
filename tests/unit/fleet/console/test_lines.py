from __future__ import annotations

import io
import threading
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.console.lines import LinesSink
from fleet.console.reports import format_report
from fleet.events import (
    BootstrapProgress,
    CommandOutput,
    Event,
    JobStarted,
    LogChunk,
    Member,
    Phase,
    Progress,
    PushProgress,
    ResultsAtRisk,
    ResultsFound,
    TaskState,
)
from tests.unit.fleet.console.samples import HANG_INSPECTION, ONE_OF_EACH, exited


class Reader:
    """A sink and the streams that it writes to."""

    def __init__(
        self, *, prefix: bool = True, color: bool = False, terminal: bool = False, raw: bool = False
    ) -> None:
        self.raw = io.BytesIO()
        self.err = io.StringIO()
        self.sink = LinesSink(self.raw, self.err, prefix=prefix, color=color, terminal=terminal, raw=raw)

    def log(self, data: bytes, task: str = "worker-0", attempt: int = 1, at: float = -1.0) -> None:
        self.sink.emit(LogChunk(task, task, attempt, 0, data, at))

    @property
    def out(self) -> bytes:
        return self.raw.getvalue()


def test_lines_have_their_task() -> None:
    reader = Reader()
    reader.log(b"one\ntwo\n\n")
    reader.log(b"three\n", "worker-1")
    assert reader.out == b"worker-0 | one\nworker-0 | two\nworker-0 | \nworker-1 | three\n"


def test_after_the_prefix_nothing_is_changed_if_raw() -> None:
    reader = Reader(raw=True)
    line = b"\xff\x00 50%\r100%\x1b[31m\r \x85 \xe2\x80\xa8 \x0b\x0c"
    reader.log(line + b"\r\n")
    assert reader.out == b"worker-0 | " + line + b"\r\n"


def test_a_line_is_written_when_it_is_complete() -> None:
    reader = Reader()
    reader.log(b"one\ntw")
    assert reader.out == b"worker-0 | one\n"
    reader.log(b"else\n", "worker-1")
    reader.log(b"o\n")
    assert reader.out == b"worker-0 | one\nworker-1 | else\nworker-0 | two\n"


def test_the_rest_is_written_when_the_task_ends() -> None:
    reader = Reader()
    reader.log(b"killed in the mid")
    reader.sink.emit(exited("worker-0", signal=9))
    assert reader.out == b"worker-0 | killed in the mid"
    reader.log(b"dle\n")  # the end of the log may arrive after the exit of its task
    reader.log(b"more")
    reader.sink.close()
    assert reader.out == b"worker-0 | killed in the middle\nworker-0 | more\n"


def test_other_phases_do_not_flush_unfinished_lines() -> None:
    reader = Reader()
    reader.log(b"partial")
    reader.sink.emit(TaskState("worker-0", "worker-0", 1, Phase.STOPPING, 1.0))
    assert reader.out == b""


def test_a_long_line_is_written_in_pieces_that_join() -> None:
    reader = Reader()
    for _ in range(10):
        reader.log(b"x" * 50_000)
    assert len(reader.out) >= 400_000
    reader.log(b"end\nnext\n")
    assert reader.out == b"worker-0 | " + b"x" * 500_000 + b"end\nworker-0 | next\n"


def test_between_pieces_of_a_long_line_another_task_gets_a_line_of_its_own() -> None:
    reader = Reader()
    reader.log(b"x" * 70_000)
    reader.log(b"short\n", "worker-1")
    reader.log(b"rest\n")
    assert reader.out == b"worker-0 | " + b"x" * 70_000 + b"\nworker-1 | short\nworker-0 | rest\n"


def test_a_new_attempt_starts_a_new_line() -> None:
    reader = Reader()
    reader.log(b"killed", attempt=1)
    reader.log(b"again\n", attempt=2)
    assert reader.out == b"worker-0 | killed\nworker-0 | again\n"


@given(st.lists(st.binary(max_size=50), max_size=20))
def test_without_prefix_every_byte_and_no_other_if_raw(chunks: list[bytes]) -> None:
    reader = Reader(prefix=False, raw=True)
    for chunk in chunks:
        reader.log(chunk)
    reader.sink.emit(exited("worker-0", code=0))
    reader.sink.close()
    assert reader.out == b"".join(chunks)


@given(st.lists(st.tuples(st.sampled_from(["worker-0", "worker-1"]), st.binary(max_size=50)), max_size=20))
def test_with_prefix_every_byte_of_each_task_if_raw(chunks: list[tuple[str, bytes]]) -> None:
    reader = Reader(raw=True)
    for task, data in chunks:
        reader.log(data, task)
    reader.sink.close()
    for task in ("worker-0", "worker-1"):
        prefix = task.encode() + b" | "
        written = [line for line in reader.out.split(b"\n") if line.startswith(prefix)]
        whole = b"".join(data for name, data in chunks if name == task)
        expected = whole.split(b"\n")[: None if whole[-1:] != b"\n" else -1] if whole else []
        assert [line[len(prefix) :] for line in written] == expected


def test_a_prefix_may_have_a_colour() -> None:
    reader = Reader(color=True)
    reader.log(b"one\ntwo\n")
    assert reader.out == b"\x1b[36mworker-0 |\x1b[0m one\n\x1b[36mworker-0 |\x1b[0m two\n"


def test_events_are_reported_next_to_the_log() -> None:
    reader = Reader()
    events: list[Event] = [event for event in ONE_OF_EACH if not isinstance(event, (LogChunk, CommandOutput))]
    for event in events:
        reader.sink.emit(event)
    aside = (ResultsFound, ResultsAtRisk)
    reports = "".join(format_report(event) for event in events if not isinstance(event, aside))
    assert "worker-0 on 10.0.0.2\n  command" in reports  # the output of the command only
    assert reader.out == reports.encode()
    assert all(format_report(event) in reader.err.getvalue() for event in events if isinstance(event, aside))
    reports_on_stderr = reader.err.getvalue().splitlines()
    assert [
        line for line in reports_on_stderr if "failed" in line
    ] == [  # the error at the end of the command reports that of the job
        "attempt 1 failed: worker-1 was killed by SIGKILL; attempt 2 starts in 0.5 s (of at most 4)"
    ]
    assert "worker-0: connection lost (timed out); retrying in 2 s" in reports_on_stderr


def test_a_stack_is_printed_in_full_below_its_message() -> None:
    reader = Reader()
    reader.sink.emit(replace(HANG_INSPECTION, kernel="now 0 % of a core, in tcp_recvmsg"))
    assert reader.err.getvalue().splitlines() == [
        "no progress: worker-1 is in user code (data.py:31 in fetch) (state S)",
        "worker-1, its stack:",
        *(f"  {line}" for line in HANG_INSPECTION.stack.splitlines()),
        "worker-1, its connections:",
        "  10.0.0.3:2222 > 10.0.0.2:41234 ESTABLISHED 0 unsent 12 unread",
        "worker-1, its process:",
        "  now 0 % of a core, in tcp_recvmsg",
    ]
    reader.sink.emit(replace(HANG_INSPECTION, stack="", sockets=(), activity="worker-1 shows no stack"))
    assert reader.err.getvalue().endswith("\nno progress: worker-1 shows no stack (state S)\n")


def test_each_step_of_a_host_is_reported_once() -> None:
    reader = Reader()
    for part in range(3):
        for host in ("worker-0", "worker-1"):
            reader.sink.emit(BootstrapProgress(host, "resolving packages"))
            reader.sink.emit(BootstrapProgress(host, "downloading packages", "a.whl", part, 2))
    reader.sink.emit(BootstrapProgress("worker-0", "ready", "Python 3.12.3", done=True))
    assert reader.err.getvalue().splitlines() == [
        "worker-0: resolving packages",
        "worker-0: downloading packages (a.whl)",
        "worker-1: resolving packages",
        "worker-1: downloading packages (a.whl)",
        "worker-0: ready (Python 3.12.3)",
    ]


def test_a_push_is_reported_once() -> None:
    reader = Reader()
    for sent in (0, 5, 10, 10):
        reader.sink.emit(PushProgress("worker-0", sent, 10, 1))
    assert reader.err.getvalue() == "worker-0: 1 file pushed, 10 B\n"


def test_a_terminal_is_safe_from_what_a_task_writes() -> None:
    reader = Reader(terminal=True)
    reader.log(b"50%\r100%\n\x1b]0;title\x07\x1b[2Jtext\nrest")
    assert reader.out == b"worker-0 | 100%\nworker-0 | text\n"
    reader.sink.close()
    assert reader.out == b"worker-0 | 100%\nworker-0 | text\nworker-0 | rest\n"


class Gone(io.BytesIO):
    def write(self, data: object) -> int:
        raise BrokenPipeError


def test_a_reader_that_closes_the_pipe_is_reported_once() -> None:
    sink = LinesSink(Gone(), io.StringIO(), prefix=True, color=False)
    with pytest.raises(BrokenPipeError):
        sink.emit(LogChunk("worker-0", "worker-0", 1, 0, b"one\n"))
    sink.emit(LogChunk("worker-0", "worker-0", 1, 4, b"two\nthree"))
    sink.close()


def test_close_succeeds_after_the_reader_closed_the_pipe() -> None:
    sink = LinesSink(Gone(), io.StringIO(), prefix=True, color=False)
    sink.emit(LogChunk("worker-0", "worker-0", 1, 0, b"partial"))
    sink.close()


class Nowhere(io.BytesIO):
    count = 0

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self.count += len(data)
        return len(data)


def test_a_million_lines_a_second() -> None:
    out = Nowhere()
    sink = LinesSink(out, io.StringIO(), prefix=True, color=False)
    chunk = LogChunk("worker-0", "worker-0", 1, 0, (b"x" * 99 + b"\n") * 655)
    begin = time.process_time()
    for _ in range(1000):
        sink.emit(chunk)
    spent = time.process_time() - begin
    assert out.count == 655 * 1000 * 111
    assert 655_000 / spent > 1_000_000


def test_output_of_commands_has_the_names_of_its_hosts() -> None:
    reader = Reader()
    reader.sink.emit(CommandOutput(("worker-0", "worker-1"), "stdout", b"one\ntwo"))
    reader.sink.emit(CommandOutput(("worker-2",), "stderr", b"\x1b[2Jno\n"))
    reader.sink.close()
    assert reader.out == b"worker-[0-1] | one\nworker-[0-1] | two\n"
    assert reader.err.getvalue() == "worker-2 | no\n"


def test_an_activity_of_all_tasks_is_one_line() -> None:
    reader = Reader()
    members = tuple(Member(name, name, "", "") for name in ("worker-0", "worker-1"))
    reader.sink.emit(JobStarted("j-1", "task.py", 1, members, 0.0))
    for member in members:
        reader.sink.emit(Progress(member.slot, member.task, 1, activity="importing tensorflow"))
    assert reader.err.getvalue().splitlines()[1:] == ["worker-[0-1]: importing tensorflow"]


PAIR = tuple(Member(name, name, "", "") for name in ("worker-0", "worker-1"))
STARTUP = b"I0000 00:00:1700000000.000000 123 cuda.cc:1] text\n"


def started_pair(**options: bool) -> Reader:
    reader = Reader(**options)
    reader.sink.emit(JobStarted("j-1", "task.py", 1, PAIR, 0.0))
    return reader


def test_a_redrawn_line_is_written_once_in_its_final_state() -> None:
    reader = Reader()
    for step in range(400):
        reader.log(f"\r{step}/400 [===>..]".encode())
        reader.log(b"\x08" * 4 * bool(step) + b"%4d" % step, "worker-1")
    assert reader.out == b""
    reader.log(b"\r400/400 [=====]\r\n\xff\x1b[31m\n")
    reader.sink.emit(exited("worker-1", code=0))
    assert reader.out == b"worker-0 | 400/400 [=====]\nworker-0 | \xff\x1b[31m\nworker-1 |  399"


def test_a_redrawn_line_of_any_length_is_held_in_its_latest_state() -> None:
    for prefix in (True, False):
        reader = Reader(prefix=prefix)
        for number in range(3000):
            reader.log(b"\x08" * 200 + b"\r" + "━".encode() * 100 + b"%04d" % number)
        reader.log(b"\n")
        assert reader.out == b"worker-0 | " * prefix + "━".encode() * 100 + b"2999\n"


def test_a_line_of_all_tasks_is_written_once() -> None:
    reader = started_pair()
    reader.log(b"Epoch 1/2\n1/1 - 5ms/step\nshard 0\n", at=10.0)
    reader.log(b"Epoch 1/2\n1/1 - 7ms/step\nshard 1\n", "worker-1", at=10.1)
    reader.log(b"later\n", at=11.0)
    reader.sink.close()
    assert reader.out.decode().splitlines() == [
        "all 2 | Epoch 1/2",
        "all 2 | 1/1 - 5ms/step",
        "worker-0 | shard 0",
        "worker-1 | shard 1",
        "worker-0 | later",
    ]


def test_a_line_of_all_tasks_but_one_is_written_once() -> None:
    reader = Reader()
    names = [f"worker-{index}" for index in range(8)]
    members = tuple(Member(name, name, "", "") for name in names)
    reader.sink.emit(JobStarted("j-1", "task.py", 1, members, 0.0))
    for name in names:
        reader.log(b"mine\n" if name == "worker-3" else b"Epoch 1/2\n", name, at=10.0)
    reader.sink.close()
    assert reader.out == b"7 of 8 | Epoch 1/2\nworker-3 | mine\n"


def test_equal_lines_of_different_times_are_written_twice() -> None:
    reader = started_pair()
    reader.log(b"ready\n", at=10.0)
    reader.log(b"ready\n", "worker-1", at=20.0)
    reader.sink.close()
    assert reader.out == b"worker-0 | ready\nworker-1 | ready\n"


def test_a_line_that_waits_for_other_tasks_is_written_without_a_further_event() -> None:
    written = threading.Event()

    class Output(io.BytesIO):
        def write(self, data: object) -> int:
            written.set()
            return 0

    sink = LinesSink(Output(), io.StringIO(), prefix=True, color=False)
    sink.emit(JobStarted("j-1", "task.py", 1, PAIR, 0.0))
    sink.emit(LogChunk("worker-0", "worker-0", 1, 0, b"alone\n", 10.0))
    assert written.wait(60)
    sink.close()


def test_startup_messages_are_counted_instead() -> None:
    reader = started_pair()
    reader.log(STARTUP + b"text\n" + STARTUP)
    reader.sink.close()
    assert reader.out == b"worker-0 | text\n"
    assert "2 TensorFlow startup lines hidden; --raw shows everything" in reader.err.getvalue()
    reader = started_pair(raw=True)
    reader.log(STARTUP)
    reader.log(STARTUP, "worker-1")
    reader.sink.close()
    assert reader.out == b"worker-0 | " + STARTUP + b"worker-1 | " + STARTUP


@given(st.lists(st.tuples(st.sampled_from(["worker-0", "worker-1"]), st.text("ab\n", max_size=9), st.floats(0, 0.2))))
def test_folded_output_has_every_line_of_each_task(chunks: list[tuple[str, str, float]]) -> None:
    reader, at = started_pair(), 0.0
    for task, text, pause in chunks:
        at += pause
        reader.log(text.encode(), task, at=at)
    reader.sink.close()
    shown = [line.split(" | ") for line in reader.out.decode().splitlines()]
    for task in ("worker-0", "worker-1"):
        expected = "".join(text for name, text, _ in chunks if name == task).splitlines()
        assert [text for name, text in shown if name in (task, "all 2")] == expected
