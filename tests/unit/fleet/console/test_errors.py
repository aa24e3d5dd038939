from __future__ import annotations

import io
import json

import pytest

from fleet.console.jsonl import JsonSink
from fleet.console.messages import format_error, print_error
from fleet.errors import NotFoundError, NotReadyError, UsageError
from fleet.steps import Step
from tests.next_steps import next_lines


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (UsageError("there is no script task.py"), "error: there is no script task.py\n"),
        (
            NotFoundError("no fleet is up", cause="none was started", next_steps=[Step("up", "--workers", "2")]),
            "error: no fleet is up\ncause: none was started\nnext:  fleet up --workers 2\n",
        ),
        (
            NotReadyError("two hosts cannot run the job", cause="worker-0: disk full\nworker-1: busy\n"),
            "error: two hosts cannot run the job\ncause: worker-0: disk full\n       worker-1: busy\n",
        ),
        (
            UsageError("no room", hint="use a larger disk", next_steps=[Step("down"), Step("up")]),
            "error: no room\nhint:  use a larger disk\nnext:  fleet down\n       fleet up\n",
        ),
        (UsageError("really?"), "error: really?\n"),
        (UsageError("bad\x1b[2J name"), "error: bad name\n"),
    ],
)
def test_error_text(error: UsageError, text: str) -> None:
    assert format_error(error, next_lines(error).splitlines()) == text


def test_colours_mark_the_labels_alone() -> None:
    text = format_error(UsageError("no"), ["fleet up"], color=True)
    assert text == "\x1b[1;31merror:\x1b[0m no\n\x1b[2mnext:\x1b[0m  fleet up\n"


def test_prose_is_wrapped_between_words_and_commands_are_not() -> None:
    error = UsageError(
        "worker-1 raised ModuleNotFoundError",
        cause="raised:\n  indented line of a traceback",
        hint="list it",
        next_steps=[Step("train", "--requirements", "requirements.txt", "task.py")],
    )
    assert format_error(error, next_lines(error).splitlines(), width=30).splitlines() == [
        "error: worker-1 raised",
        "       ModuleNotFoundError",
        "cause: raised:",
        "         indented line of a",
        "       traceback",
        "hint:  list it",
        "next:  fleet train --requirements requirements.txt task.py",
    ]


def test_in_json_mode_both_streams_get_the_error() -> None:
    out, err = io.BytesIO(), io.StringIO()
    print_error(NotFoundError("no fleet is up"), err, json=JsonSink(out))
    assert err.getvalue() == "error: no fleet is up\n"
    assert json.loads(out.getvalue().splitlines()[-1])["kind"] == "not_found"


class Gone(io.BytesIO):
    def write(self, data: object) -> int:
        raise BrokenPipeError


def test_the_error_is_printed_even_if_the_reader_of_the_json_has_ended() -> None:
    err = io.StringIO()
    print_error(NotFoundError("no fleet is up"), err, json=JsonSink(Gone()))
    assert err.getvalue() == "error: no fleet is up\n"
