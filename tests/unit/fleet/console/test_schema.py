"""The published schema of JSON events is current, and describes what is written."""

from __future__ import annotations

import pytest
from jsonschema import Draft202012Validator, ValidationError

from fleet import errors
from fleet.console.jsonl import error_to_json
from tests.docs.schema import FILE, check_event, generate, text
from tests.unit.fleet.console.samples import ONE_OF_EACH
from tests.unit.fleet.console.test_jsonl import STATUS, written


def test_the_published_schema_is_current() -> None:
    assert FILE.read_text() == text(), "run: .venv/bin/python -m tests.docs.schema"


def test_every_event_matches_the_schema() -> None:
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
