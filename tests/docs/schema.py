"""The JSON Schema of the events of `-o json`, generated from their dataclasses: docs/schema/events.json.

Run this module to write the file. `check_event` validates a line that a test reads.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import json
import types
import typing
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from jsonschema import Draft202012Validator

from fleet import errors
from fleet.console.jsonl import SCHEMA_VERSION, error_to_json, name_event
from fleet.events import CommandOutput, Event, LogChunk
from fleet.status import FleetStatus
from train.diagnosis.verdict import Verdict

FILE = Path(__file__).parents[2] / "docs" / "schema" / "events.json"
_NULL = {"type": "null"}
_SIMPLE: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}]},
    type(None): _NULL,
}


def _schema_of(hint: Any) -> dict[str, Any]:
    """Return the schema of the values that a type hint describes."""
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    if get_origin(hint) is not None:
        return _container(get_origin(hint), get_args(hint))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return {"enum": [item.value for item in hint]}
    return _object(_properties(hint))


def _container(origin: Any, arguments: tuple[Any, ...]) -> dict[str, Any]:
    if origin in (types.UnionType, typing.Union):
        return {"anyOf": [_schema_of(argument) for argument in arguments]}
    if origin in (dict, collections.abc.Mapping):
        return {"type": "object", "additionalProperties": _schema_of(arguments[1])}
    return {"type": "array", "items": _schema_of(arguments[0])}


def _properties(kind: type) -> dict[str, dict[str, Any]]:
    hints = get_type_hints(kind, localns={"Verdict": Verdict})
    return {item.name: _field(hints[item.name]) for item in dataclasses.fields(kind) if hints[item.name] is not bytes}


def _field(hint: Any) -> dict[str, Any]:
    """Return the schema of a field; an unknown number is null."""
    schema = _schema_of(hint)
    return {"anyOf": [schema, _NULL]} if hint in (int, float) else schema


def _object(properties: dict[str, Any], optional: tuple[str, ...] = ()) -> dict[str, Any]:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required}


def _event(name: str, properties: dict[str, Any], optional: tuple[str, ...] = ()) -> dict[str, Any]:
    return _object({"event": {"const": name}, "time": {"type": "number"}, **properties}, optional)


def generate() -> dict[str, Any]:
    """Return the schema: one definition for each event."""
    events = {}
    for kind in (*get_args(Event), FleetStatus):
        name = name_event(kind)
        data = {"text": {"type": "string"}, "base64": {"type": "string"}} if kind in (LogChunk, CommandOutput) else {}
        events[name] = _event(name, {**_properties(kind), **data}, tuple(data))
    error = {name: {"type": "string"} for name in error_to_json(errors.UsageError("")) if name != "event"}
    events["error"] = _event("error", {**error, "exit_code": {"type": "integer"}})
    events["schema"] = _object({"event": {"const": "schema"}, "version": {"const": SCHEMA_VERSION}})
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A line of fleet -o json",
        "oneOf": [{"$ref": f"#/$defs/{name}"} for name in sorted(events)],
        "$defs": dict(sorted(events.items())),
    }


def text() -> str:
    """Return the contents of the file."""
    return json.dumps(generate(), indent=1) + "\n"


@functools.cache
def _validators() -> dict[str, Draft202012Validator]:
    return {name: Draft202012Validator(schema) for name, schema in json.loads(FILE.read_text())["$defs"].items()}


def check_event(event: dict[str, Any]) -> None:
    """Check a line of `-o json` against the published schema.

    Raises:
        jsonschema.ValidationError: it does not match.
        AssertionError: it has a field that the schema lacks.
    """
    validator = _validators()[event["event"]]
    validator.validate(event)
    unknown = event.keys() - typing.cast("dict[str, Any]", validator.schema)["properties"].keys()
    assert not unknown, f"{event['event']}: {unknown}"


if __name__ == "__main__":
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(text())
