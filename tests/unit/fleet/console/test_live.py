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


def test_the_log_is_above_the_table() -> None:
    screen = LiveScreen()
    result = JobResult("j-1", 1, Outcome.SUCCEEDED, START)
    play(screen, opened(2, price=0.7), started(2), *running(2), log(b"one\ntwo\n"), log(b"three", "worker-1"), result)
    lines = screen.plain
    assert lines[0] == "job 20260102-101112-ab3d started: custom_training_loop.py on worker-[0-1]"
    assert lines[1:4] == ["worker-0 | one", "worker-0 | two", "worker-1 | three"]
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
        for event in running(2):
            screen.sink.emit(event)
        screen.sink.emit(log(b"line\n"))
        time.sleep(0.002)
    screen.sink.close()
    assert 1 <= screen.text.count("demo") <= (time.monotonic() - begin) * 2 + 3


def test_a_flood_is_summed_up_and_its_end_is_shown() -> None:
    screen = LiveScreen()
    screen.sink.emit(opened(1))
    screen.sink.emit(started(1))
    for _ in range(100):
        screen.sink.emit(log(b"".join(b"line %d\n" % number for number in range(1000))))
    screen.sink.emit(log(b"Traceback: the reason\n"))
    screen.sink.close()
    lines = screen.plain
    shown = [line for line in lines if line.startswith("worker-0 |")]
    summaries = [line for line in lines if "not shown" in line]
    hidden = sum(int(re.sub(r"\D", "", summary.split("lines")[0])) for summary in summaries)
    assert hidden + len(shown) == 100_001
    assert shown[-1] == "worker-0 | Traceback: the reason"
    assert all(re.fullmatch(r"… [\d,]+ lines not shown; fleet logs has them all", summary) for summary in summaries)
    assert hidden > 0


def test_without_colours_none_at_all() -> None:
    screen = LiveScreen(color=False)
    play(screen, opened(1), started(1), *running(1), log(b"\x1b[31mred\x1b[0m\n"))
    assert "worker-0 | red\n" in screen.text
    assert not re.search(r"\x1b\[[0-9;]*m", screen.text)


def test_output_of_a_task_cannot_control_the_terminal() -> None:
    screen = LiveScreen()
    play(screen, started(1), log(b"\x1b]0;title\x07\x1b[1;1H\x1b[6nsafe\n"), Note("\x1b[5Anote\x07"))
    assert "worker-0 | safe" in screen.plain
    for evil in ("\x1b]", "\x1b[1;1H", "\x1b[6n", "\x1b[5A", "\x07"):
        assert evil not in screen.text


def test_a_progress_bar_of_a_task_is_in_its_row_and_not_in_the_log() -> None:
    screen = LiveScreen()
    for event in (started(1), running(1)[0], log(b"\rDownloading 45%")):
        screen.sink.emit(event)
    screen.until("Downloading 45%")
    assert "| Downloading" not in screen.text
    screen.sink.close()
    assert "worker-0 | Downloading 45%" in screen.plain


def test_a_line_that_waits_for_other_tasks_is_shown_without_a_further_event() -> None:
    screen = LiveScreen()
    for event in (started(2), *running(2), log(b"mine\n")):
        screen.sink.emit(event)
    screen.until("mine")
    screen.sink.close()


def test_lines_that_all_tasks_print_are_shown_once() -> None:
    screen = LiveScreen()
    both = [log(b"Epoch 1/2\n", name) for name in names(2)]
    play(screen, opened(2), started(2), *running(2), log(b"mine\n"), *both, log(b"yours\n", "worker-1"), Note("end"))
    assert screen.plain[1:4] == ["worker-0 | mine", "all 2    | Epoch 1/2", "worker-1 | yours"]
    assert screen.plain[-1] == ""


def test_the_last_output_is_under_the_table() -> None:
    screen = LiveScreen()
    play(screen, opened(2), FleetDown("demo", names(2), 0, 0.0, 60.0))
    assert screen.plain[-2] == "fleet demo: 2 instances deleted, 0 left, uptime 1 min"


@pytest.mark.parametrize(("outcome", "count"), [(Outcome.FAILED, 0), (Outcome.SUCCEEDED, 1)])
def test_the_last_table_has_no_result_that_an_error_reports(outcome: Outcome, count: int) -> None:
    screen = LiveScreen()
    play(screen, opened(2), started(2), JobResult("j-1", 1, outcome, START, "worker-0"))
    screen.sink.close()
    results = [line for line in screen.plain if line.startswith(("job j-1 failed", "job j-1 succeeded"))]
    assert len(results) == count


def gone(screen: LiveScreen, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def write(text: str) -> int:
        raise error

    monkeypatch.setattr(screen.file, "write", write)


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
    gone(screen, monkeypatch, OSError(5, "Input/output error"))
    until_raised(lambda: screen.sink.emit(log(b"x\n")), OSError)
    screen.sink.emit(log(b"more\n"))
    screen.sink.close()


def test_a_terminal_that_is_stopped_does_not_hold_up_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = LiveScreen()
    go = threading.Event()
    write = screen.file.write

    def slow(text: str) -> int:
        assert go.wait(120)  # until all was emitted
        return write(text)

    monkeypatch.setattr(screen.file, "write", slow)
    screen.sink.emit(opened(1))
    for _ in range(2000):
        screen.sink.emit(log(b"x" * 9_999 + b"\n"))
    go.set()
    screen.sink.close()
    assert "not shown" in screen.text


def test_a_pause_gives_the_terminal_back_and_the_next_event_takes_it_again() -> None:
    screen = LiveScreen()
    screen.sink.emit(QUOTED)
    screen.sink.close()
    assert screen.text.count(SHOW) == screen.text.count(HIDE) == 1
    assert "us-central1-a" in screen.text
    screen.take("Proceed? [Y/n] y\n")
    screen.sink.emit(ZoneTried("us-central1-a", "no capacity"))
    screen.sink.emit(Note("all done"))
    screen.until("all done")
    screen.sink.close()
    text = "\n".join(screen.plain)
    assert screen.text.count(SHOW) == screen.text.count(HIDE) == 2
    assert [text.count(words) for words in ("us-central1-a  n1", "Proceed?", "no capacity", "all done")] == [
        1,
        1,
        1,
        1,
    ]
    assert text.index("Proceed?") < text.index("no capacity") < text.index("all done")


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
    titles, *tasks = rows[-4:-1]
    assert [row.split()[:2] for row in tasks] == [["worker-0", "running"], ["worker-1", "running"]]
    for title, cell in (("EPOCH", "2/5"), ("STEP", "840/1200"), ("LOSS", "0.3412"), ("MEM", "1.1G")):
        end = re.search(rf"\b{title}(?!\S)", titles)
        assert end is not None
        assert all(row[: end.end()].endswith(cell) for row in tasks), title
    screen.resize(width // 2, height)
    screen.sink.emit(log(b"narrow\n"))
    screen.until("narrow")
    screen.sink.close()
    rows = screen.plain
    assert sum("── demo" in row for row in rows[rows.index("worker-0 | narrow") :]) == 1
    assert "Ctrl-C detaches" not in rows[-3:]
