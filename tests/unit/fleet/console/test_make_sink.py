from __future__ import annotations

import io
from itertools import pairwise
from typing import Literal

import pytest

from fleet.console import make_sink
from fleet.console.formatting import accepts_color, choose_color
from fleet.console.jsonl import JsonSink
from fleet.console.lines import LinesSink
from fleet.console.live import LiveSink
from fleet.events import LogChunk
from tests.unit.fleet.console.samples import names


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
        ("json", False, "xterm", JsonSink),
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
def test_lines_suit_the_stream(terminal: bool, environ: dict[str, str], written: bytes) -> None:
    stream = Stream(terminal)
    sink = make_sink("lines", stdout=stream, stderr=io.StringIO(), environ=environ)
    sink.emit(LogChunk("worker-0", "worker-0", 1, 0, b"a\x1b[2J\n"))
    assert stream.raw_bytes.getvalue() == written


def test_an_empty_no_color_has_no_effect() -> None:
    assert accepts_color(Stream(True), {"TERM": "xterm", "NO_COLOR": ""})
    assert not accepts_color(Stream(False), {"TERM": "xterm"})


def test_neighbours_have_different_colours_and_always_the_same() -> None:
    colors = [choose_color(name) for name in names(20)]
    assert all(previous != other for previous, other in pairwise(colors))
    assert choose_color("worker-0") == "cyan"
    assert choose_color("chief-0") == choose_color("chief-0")
    assert choose_color("alpha") == choose_color("alpha")
