"""Text from a host in the errors of the program."""

from __future__ import annotations

import json
from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.console.jsonl import JsonSink
from fleet.console.messages import describe_event, format_error
from fleet.errors import FleetError
from fleet.events import Note
from fleet.remote.client import refusal
from fleet.remote.publication import publish
from fleet.remote.quoting import LONGEST, one_line, show_command
from provision.model import Host
from tests.next_steps import next_lines
from train.agent.protocol.records import JobResult, Outcome, Refusal, Refused

HOST = Host("worker-1", "10.0.0.3", 22, "me", "ssh-ed25519 AAAA", "worker-1", "10.0.0.3")


@given(st.text())
def test_words_of_a_host_are_one_bounded_line_that_can_be_printed(text: str) -> None:
    line = one_line(text)
    assert line.isprintable()
    assert len(line) <= LONGEST
    line.encode()
    assert one_line("x" * 10_000) == "x" * (LONGEST - 1) + "…"
    assert one_line("a\n\tb\x1b[2J\u202e\ud800") == "a b\\x1b[2J\\u202e\\ud800"


def test_a_host_does_not_write_the_next_commands() -> None:
    refused = Refused(Refusal.FAULT, "bad\nnext: rm -rf ~", hint="sudo x\nnext: y", next_step="rm -rf ~")
    error = refusal(HOST, refused)
    assert error.message == "worker-1 (10.0.0.3): bad next: rm -rf ~"
    assert error.hint == "worker-1 suggests: sudo x next: y"
    assert next_lines(error) == ""


@pytest.mark.parametrize(
    ("kind", "suggested", "next_step"),
    [
        (Refusal.BUSY, "fleet logs -f\nfleet stop", "fleet logs -f\nfleet stop"),
        (Refusal.BUSY, "fleet stop; rm -rf ~", "fleet logs -f\nfleet stop"),
        (Refusal.GPU, "fleet logs -f\nfleet up", "fleet logs -f\nfleet up"),
        (Refusal.FAULT, "", "fleet status"),
    ],
)
def test_commands_are_those_that_this_program_knows(kind: Refusal, suggested: str, next_step: str) -> None:
    assert next_lines(refusal(HOST, Refused(kind, "busy", next_step=suggested))) == next_step


def test_no_line_of_a_text_looks_like_another_paragraph() -> None:
    text = format_error(FleetError("it failed\n  next: rm -rf ~\nmore", cause="x\nHINT : y"), ["fleet status"])
    assert text == (
        "error: it failed\n       | next: rm -rf ~\n       more\ncause: x\n       | HINT : y\nnext:  fleet status\n"
    )
    result = JobResult("j", 1, Outcome.FAILED, 1.0, reason="x\nerror: y\nz")
    assert describe_event(publish(result)) == "job j failed: x\n| error: y\nz"


def test_json_holds_no_character_that_a_terminal_obeys() -> None:
    out = BytesIO()
    text = "a\x9b31m\x9d0;t\x7f\u202eb\u2066é"
    JsonSink(out).emit(Note(text))
    printed = out.getvalue().decode()
    assert not set(printed) & set("\x7f\x9b\x9d\u202e\u2066")
    assert "é" in printed
    assert json.loads(printed.splitlines()[-1])["text"] == text


def test_control_characters_of_a_command_are_visible_and_can_be_pasted() -> None:
    assert show_command(["python", "a b", "\x1b", "it's\n", "\\\x07", ""]) == (
        r"python 'a b' $'\x1b' $'it\'s\n' $'\\\x07' ''"
    )
