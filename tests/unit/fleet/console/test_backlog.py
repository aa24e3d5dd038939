from __future__ import annotations

from fleet.console.live import Backlog
from fleet.events import LogChunk


def chunk(task: str, data: bytes, attempt: int = 1) -> LogChunk:
    return LogChunk(task, task, attempt, 0, data)


def numbered(first: int, last: int) -> bytes:
    return b"".join(b"line %d\n" % number for number in range(first, last))


def test_lines_in_the_order_in_which_they_came() -> None:
    backlog = Backlog()
    backlog.add(chunk("worker-0", b"a\nb"))
    backlog.add(chunk("worker-1", b"c\n"))
    backlog.add(chunk("worker-0", b"b\n"))
    assert backlog.take() == ([("worker-0", "a"), ("worker-1", "c"), ("worker-0", "bb")], 0)
    assert backlog.take() == ([], 0)


def test_noise_is_counted_and_left_out() -> None:
    backlog = Backlog()
    backlog.add(chunk("worker-0", b"I0000 00:00:1795228844.7 58 a.cc:1] text\nEpoch 1/2\n"))
    assert backlog.take() == ([("worker-0", "Epoch 1/2")], 0)
    assert backlog.hidden == 1


def test_a_flood_leaves_the_end_of_each_task() -> None:
    backlog = Backlog()
    for start in range(0, 10_000, 100):
        backlog.add(chunk("worker-0", numbered(start, start + 100)))
    backlog.add(chunk("worker-1", b"quiet\n"))
    backlog.add(chunk("worker-0", b"unfin"))
    expected = [("worker-0", f"line {number}") for number in range(9980, 10_000)]
    assert backlog.take() == ([*expected, ("worker-1", "quiet")], 9980)
    backlog.add(chunk("worker-0", b"ished\n"))
    assert backlog.take() == ([("worker-0", "unfinished")], 0)


def test_every_line_of_a_flood_is_shown_or_counted() -> None:
    backlog = Backlog()
    data = numbered(0, 3000)
    for place in range(0, len(data), 777):  # cut anywhere
        backlog.add(chunk("worker-0", data[place : place + 777]))
    lines, dropped = backlog.take()
    assert len(lines) + dropped == 3000
    assert lines[-1] == ("worker-0", "line 2999")


def test_memory_is_bounded_while_nothing_is_taken() -> None:
    backlog = Backlog()
    piece = b"x" * 99_999 + b"\n"
    for _ in range(1000):
        backlog.add(chunk("worker-0", piece))  # 100 MB in all
    lines, dropped = backlog.take()
    assert len(lines) * len(piece) <= 8 * 1024 * 1024
    # The line in which the gap lies may be neither: here the gap lies between two.
    assert len(lines) + dropped in (1000, 999)


def test_a_new_attempt_starts_a_new_line() -> None:
    backlog = Backlog()
    backlog.add(chunk("worker-0", b"killed in the mid"))
    backlog.add(chunk("worker-0", b"first\n", attempt=2))
    assert [line for _, line in backlog.take()[0]] == ["killed in the mid", "first"]


def test_the_rest_comes_at_the_end() -> None:
    backlog = Backlog()
    backlog.add(chunk("worker-0", b"no newline"))
    assert backlog.take() == ([], 0)
    assert backlog.take(last=True) == ([("worker-0", "no newline")], 0)


def test_bars() -> None:
    backlog = Backlog()
    backlog.add(chunk("worker-0", b"\r 45%"))
    backlog.add(chunk("worker-1", b"text"))
    backlog.take()
    assert backlog.bars() == {"worker-0": " 45%"}
