from __future__ import annotations

import os

import pytest

from fleet.console.columns import Span
from fleet.console.live.terminal import Frame, compose_update, make_frame, reflows
from tests.screen import Emulator

WIDE, NARROW = os.terminal_size((80, 24)), os.terminal_size((30, 24))


def frame(*lines: str, size: os.terminal_size = WIDE) -> Frame:
    return make_frame([(Span(line),) for line in lines], size, color=False)


def test_text_scrolls_above_the_frame() -> None:
    emulator, before = Emulator(), Frame()
    for number in range(30):
        after = frame(f"row {number}", "second", *(["third"] if number % 2 else []))
        emulator.feed(compose_update(before, after, f"line {number}\n" if number % 3 else "", reflows=True))
        before = after
    assert emulator.lines == [*(f"line {number}" for number in range(30) if number % 3), "row 29", "second", "third"]


@pytest.mark.parametrize("text", ["", "log 2\n", "x" * 200 + "\n"])
def test_a_frame_that_the_terminal_wrapped_is_replaced_whole(text: str) -> None:
    emulator = Emulator()
    before = frame("a" * 80, "b" * 31, "short")
    emulator.feed(compose_update(Frame(), before, "log 1\n", reflows=True))
    emulator.resize(*NARROW)
    assert emulator.lines[1:4] == ["a" * 30, "a" * 30, "a" * 20]
    emulator.feed(compose_update(before, frame("c", "d", size=NARROW), text, reflows=True))
    wrapped = [text[start : start + 30] for start in range(0, len(text.strip()), 30)]
    assert emulator.lines == ["log 1", *(line.strip() for line in wrapped), "c", "d"]


def test_on_a_terminal_that_does_not_wrap_again_nothing_above_the_frame_is_erased() -> None:
    before, after = frame("a" * 80, "b" * 80), frame("c", size=NARROW)
    assert compose_update(before, after, "", reflows=False).count("\x1b[1A") == 1
    assert compose_update(before, after, "", reflows=True).count("\x1b[1A") == 5


def test_nothing_is_written_for_nothing() -> None:
    assert compose_update(Frame(), Frame(), "", reflows=True) == ""


def test_a_frame_is_not_higher_than_the_terminal_and_has_no_tabs() -> None:
    assert frame("a\tb", *("x" * 30), size=os.terminal_size((80, 5))).lines == ("a b", "x", "x", "x", "x")


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"TERM": "xterm-256color"}, True),
        ({"TERM": "xterm", "XTERM_VERSION": "XTerm(379)"}, False),
        ({"TERM": "screen.xterm-256color"}, False),
        ({"TERM": "screen-256color", "TMUX": "/tmp/tmux-0/default,1,0"}, True),
        ({"TERM": "linux"}, False),
    ],
)
def test_terminals_that_wrap_lines_again(environ: dict[str, str], expected: bool) -> None:
    assert reflows(environ) is expected
