from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable

import pytest

from fleet.console.lines import LogStyle
from fleet.console.live import LiveSink
from fleet.events import Event, FleetDown, JobResult, LogChunk, Note, Outcome, ZoneTried
from tests.screen import Screen
from tests.unit.fleet.console.samples import QUOTED, START, names, opened, running, started

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


class LiveScreen(Screen):
    """A terminal with a live console."""

    def __init__(self, width: int = 80, height: int = 24, *, color: bool = True) -> None:
        super().__init__(width, height)
        style = LogStyle(color=color, terminal=True)
        self.sink = LiveSink(self.file, style, size=self.read_size, clock=lambda: START + 754, hint="Ctrl-C detaches")


def log(data: bytes, task: str = "worker-0") -> LogChunk:
    return LogChunk(task, task, 1, 0, data)


def play(screen: LiveScreen, *events: Event) -> None:
    for event in events:
        screen.sink.emit(event)
    screen.sink.close()


def test_the_log_is_above_the_table_and_lines_of_all_tasks_are_shown_once() -> None:
    screen = LiveScreen()
    play(
        screen,
        opened(2, price=0.7),
        started(2),
        *running(2),
        log(b"one\n"),
        *(log(b"Epoch 1/2\n", name) for name in names(2)),
        log(b"two", "worker-1"),
        JobResult("j-1", 1, Outcome.SUCCEEDED, START),
    )
    lines = screen.plain
    assert lines[0] == "job 20260102-101112-ab3d started: custom_training_loop.py on worker-[0-1]"
    assert lines[1:4] == ["worker-0 | one", "all 2    | Epoch 1/2", "worker-1 | two"]
    assert lines[4].startswith("── demo ──")
    assert lines[-2:] == ["job j-1 succeeded", ""]


def test_nothing_is_drawn_without_events_and_no_table_without_rows() -> None:
    screen = LiveScreen()
    screen.sink.close()
    assert screen.text == ""
    play(screen, Note("only a note"))
    assert screen.plain == ["only a note", ""]


def test_redrawn_at_most_twice_a_second() -> None:
    screen = LiveScreen()
    begin = time.monotonic()
    screen.sink.emit(opened(2))
    screen.sink.emit(started(2))
    while time.monotonic() - begin < 1.0:
        for event in (*running(2), log(b"line\n")):
            screen.sink.emit(event)
        time.sleep(0.002)
    screen.sink.close()
    assert 1 <= screen.text.count("demo") <= (time.monotonic() - begin) * 2 + 3


def test_a_terminal_that_is_stopped_does_not_hold_up_the_job_and_a_flood_is_summed_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen, go = LiveScreen(), threading.Event()
    write = screen.file.write

    def slow(text: str) -> int:
        assert go.wait(120)  # until all was emitted
        return write(text)

    monkeypatch.setattr(screen.file, "write", slow)
    screen.sink.emit(opened(1))
    screen.sink.emit(started(1))
    for _ in range(100):
        screen.sink.emit(log(b"".join(b"line %d\n" % number for number in range(1000))))
    screen.sink.emit(log(b"Traceback: the reason\n"))
    go.set()
    screen.sink.close()
    shown = [line for line in screen.plain if line.startswith("worker-0 |")]
    (summary,) = [line for line in screen.plain if "not shown" in line]
    assert re.fullmatch(r"… [\d,]+ lines not shown; fleet logs has them all", summary)
    assert int(re.sub(r"\D", "", summary)) + len(shown) == 100_001
    assert shown[-1] == "worker-0 | Traceback: the reason"


def test_output_of_a_task_cannot_control_the_terminal_and_has_no_colors_without_them() -> None:
    screen = LiveScreen(color=False)
    play(
        screen,
        started(1),
        *running(1),
        log(b"\x1b]0;title\x07\x1b[1;1H\x1b[6n\x1b[31msafe\n"),
        Note("\x1b[5Anote\x07"),
    )
    assert "worker-0 | safe\n" in screen.text
    for evil in ("\x1b]", "\x1b[1;1H", "\x1b[6n", "\x1b[5A", "\x07"):
        assert evil not in screen.text
    assert not re.search(r"\x1b\[[0-9;]*m", screen.text)


def test_a_progress_bar_of_a_task_is_in_its_row_and_not_in_the_log() -> None:
    screen = LiveScreen()
    for event in (started(1), running(1)[0], log(b"\rDownloading 45%")):
        screen.sink.emit(event)
    screen.until("Downloading 45%")
    assert "| Downloading" not in screen.text
    screen.sink.close()
    assert "worker-0 | Downloading 45%" in screen.plain


@pytest.mark.parametrize(("outcome", "count"), [(Outcome.FAILED, 0), (Outcome.SUCCEEDED, 1)])
def test_the_last_output_is_under_the_table_without_a_result_that_an_error_reports(
    outcome: Outcome, count: int
) -> None:
    screen = LiveScreen()
    play(screen, opened(2), started(2), JobResult("j-1", 1, outcome, START, "worker-0"))
    screen.sink.close()
    assert sum(line.startswith(("job j-1 failed", "job j-1 succeeded")) for line in screen.plain) == count
    play(screen, FleetDown("demo", names(2), 0, 0.0, 60.0))
    assert screen.plain[-2] == "fleet demo: 2 instances deleted, 0 left, uptime 1 min"


def until_raised(emit: Callable[[], None], kind: type[Exception]) -> None:
    deadline = time.monotonic() + 90

    def again_and_again() -> None:
        while time.monotonic() < deadline:
            emit()
            time.sleep(0.01)

    with pytest.raises(kind):
        again_and_again()


def test_a_terminal_that_disappears_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = LiveScreen()
    screen.sink.emit(opened(1))

    def write(_: str) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(screen.file, "write", write)
    until_raised(lambda: screen.sink.emit(log(b"x\n")), OSError)
    play(screen, log(b"more\n"))


def test_a_pause_gives_the_terminal_back_and_the_next_event_takes_it_again() -> None:
    screen = LiveScreen()
    play(screen, QUOTED)
    assert screen.text.count(SHOW) == screen.text.count(HIDE) == 1
    screen.take("Proceed? [Y/n] y\n")
    screen.sink.emit(ZoneTried("us-central1-a", "no capacity"))
    screen.sink.emit(Note("all done"))
    screen.until("all done")
    screen.sink.close()
    text = "\n".join(screen.plain)
    assert screen.text.count(SHOW) == screen.text.count(HIDE) == 2
    words = ("us-central1-a  n1", "Proceed?", "no capacity", "all done")
    assert [text.count(each) for each in words] == [1, 1, 1, 1]
    assert sorted(words, key=text.index) == list(words)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (160, 50)])
def test_cells_of_the_screen(width: int, height: int) -> None:
    screen = LiveScreen(width, height)
    for event in (opened(2), started(2), *running(2), log(b"line\n" * 100)):
        screen.sink.emit(event)
    screen.until(lambda: screen.emulator.lines.count("worker-0 | line") == 100)
    screen.until("180%")
    rows = screen.emulator.display
    head = next(number for number, row in enumerate(rows) if row.startswith("── demo"))
    assert len(rows[head]) == width
    assert set(rows[:head]) == {"worker-0 | line"}
    assert rows[-1] == "Ctrl-C detaches"
    assert [row.split()[:2] for row in rows[-3:-1]] == [["worker-0", "running"], ["worker-1", "running"]]
    screen.resize(width // 2, height)
    screen.sink.emit(log(b"narrow\n"))
    screen.until("narrow")
    screen.sink.close()
    rows = screen.plain
    assert sum("── demo" in row for row in rows[rows.index("worker-0 | narrow") :]) == 1
    assert "Ctrl-C detaches" not in rows[-3:]
