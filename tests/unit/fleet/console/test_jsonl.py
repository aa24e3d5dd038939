from __future__ import annotations

import base64
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, ValidationError

from fleet import errors
from fleet.console.jsonl import JsonSink, error_to_json, name_event, to_json
from fleet.events import Event, FleetStatus, HostStatus, JobStatus, LogChunk, Note, Progress, TaskStatus
from tests.docs.schema import EVENTS, FILE, check_event, generate, text
from tests.unit.fleet.console.samples import ONE_OF_EACH, exited
from train.diagnosis.verdict import Cause, Verdict

DOCUMENT = Path(__file__).parents[4] / "docs" / "json.md"
STATUS = FleetStatus(
    "demo",
    "local",
    (HostStatus("worker-0", "127.0.0.2", 22, True),),
    JobStatus(
        "j", "t.py", 1, 1.0, (TaskStatus("w", "w"),), verdict=Verdict("w", Cause.KILLED, "w was killed", ("x",))
    ),
)


def written(*events: Event | FleetStatus) -> list[dict[str, Any]]:
    out = io.BytesIO()
    sink = JsonSink(out, clock=lambda: 12.5)
    for event in events:
        sink.emit(event)
    sink.close()
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_the_samples_are_one_of_each() -> None:
    assert {type(event) for event in (*ONE_OF_EACH, STATUS)} == {*EVENTS}


@pytest.mark.parametrize("event", [*ONE_OF_EACH, STATUS], ids=lambda event: type(event).__name__)
def test_every_event_is_one_line(event: Event) -> None:
    schema, line = written(event)
    assert schema == {"event": "schema", "version": 1}
    assert list(line)[:2] == ["event", "time"]
    assert line["event"] == name_event(type(event))
    assert line["time"] == 12.5


def test_nested_values_are_plain() -> None:
    assert to_json(exited("worker-0", signal=9))["exit"] == {"code": None, "signal": 9}
    assert to_json(exited("worker-0", signal=9))["phase"] == "exited"
    job = to_json(STATUS)["job"]
    assert job["tasks"][0]["task"] == "w"
    assert job["result"] is None
    assert (job["verdict"]["kind"], job["verdict"]["lines"]) == ("killed", ["x"])


def test_text_and_base64() -> None:
    assert to_json(LogChunk("worker-0", "worker-0", 1, 7, "é\r\n".encode(), 8.5)) == {
        "event": "log_chunk", "slot": "worker-0", "task": "worker-0", "attempt": 1, "offset": 7, "text": "é\r\n",
        "at": 8.5,
    }  # fmt: skip
    fields = to_json(LogChunk("worker-0", "worker-0", 1, 7, b"\xff\x00"))
    assert base64.b64decode(fields["base64"]) == b"\xff\x00"
    assert "text" not in fields
    assert fields["at"] is None


def test_a_character_in_two_chunks_stays_text() -> None:
    data = "a━b".encode()
    lines = written(
        LogChunk("worker-0", "worker-0", 1, 0, data[:2]), LogChunk("worker-0", "worker-0", 1, 2, data[2:])
    )
    assert [(line["offset"], line["text"]) for line in lines[1:]] == [(0, "a"), (1, "━b")]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.binary(max_size=9) | st.text(max_size=3).map(str.encode))))
def test_the_pieces_are_the_log(chunks: list[tuple[str, bytes]]) -> None:
    logs = {"a": b"", "b": b""}
    events = []
    for task, data in chunks:
        events.append(LogChunk(task, task, 1, len(logs[task]), data))
        logs[task] += data
    contents = {"a": b"", "b": b""}
    for line in written(*events)[1:]:
        assert line["offset"] == len(contents[line["task"]])
        contents[line["task"]] += line["text"].encode() if "text" in line else base64.b64decode(line["base64"])
    assert contents == logs


def test_an_error_is_the_last_line() -> None:
    out = io.BytesIO()
    sink = JsonSink(out, clock=lambda: 1.0)
    sink.emit(LogChunk("worker-0", "worker-0", 1, 0, b"a\xe2"))
    sink.error(errors.NotReadyError("no", cause="why", hint="wait"), ["fleet stop"])
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["event"] for line in lines] == ["schema", "log_chunk", "log_chunk", "error"]
    assert lines[-1] == {
        "event": "error", "time": 1.0, "kind": "not_ready", "message": "no", "cause": "why", "hint": "wait",
        "next_step": "fleet stop", "exit_code": 14,
    }  # fmt: skip


class Gone(io.BytesIO):
    def write(self, data: object) -> int:
        raise BrokenPipeError


def test_a_reader_that_closes_the_pipe_is_reported_once() -> None:
    sink = JsonSink(Gone())
    with pytest.raises(BrokenPipeError):
        sink.emit(Note("one"))
    sink.emit(Note("two"))
    sink.error(errors.UsageError("three"))
    sink.close()


def test_unknown_numbers_are_null_and_what_json_lacks_is_text() -> None:
    metrics = {"a": float("nan"), "b": float("inf"), "c": float("-inf"), "loss": -1.0}
    line = written(Progress("worker-0", "worker-0", 1, 1.0, epoch=0, step=-1, metrics=metrics))[1]
    assert line["metrics"] == {"a": "NaN", "b": "Infinity", "c": "-Infinity", "loss": -1.0}
    assert (line["epoch"], line["step"], line["steps_per_s"]) == (0, None, None)
    assert written(Note("broken \udcff\u2028 name"))[1]["text"] == "broken ?\u2028 name"


# --- docs/json.md ---------------------------------------------------------------------------------------------


def test_the_document_has_every_event_and_no_other() -> None:
    rows = re.findall(r"^\| (`.*?) \|", DOCUMENT.read_text("utf-8"), re.MULTILINE)
    names = [name for row in rows for name in re.findall(r"\w+", row)]
    assert sorted(names) == sorted(["schema", "error", *map(name_event, EVENTS)])


def test_the_examples_match_the_schema() -> None:
    for line in re.findall(r"```json\n(.*?)\n```", DOCUMENT.read_text("utf-8")):
        check_event(json.loads(line))


def test_the_published_schema_is_current_and_every_event_matches_it() -> None:
    assert FILE.read_text() == text(), "run: .venv/bin/python -m tests.docs.schema"
    Draft202012Validator.check_schema(generate())
    for event in written(*ONE_OF_EACH, STATUS):
        check_event(event)
    check_event({**error_to_json(errors.UsageError("no")), "time": 1.0})


def test_other_fields_and_values_do_not_match() -> None:
    with pytest.raises(AssertionError, match="other"):
        check_event({"event": "note", "time": 1.0, "text": "a", "level": "info", "other": 1})
    for fields in ({"text": 1, "level": "info"}, {"text": "a", "level": "loud"}, {"level": "info"}):
        with pytest.raises(ValidationError):
            check_event({"event": "note", "time": 1.0, **fields})
