"""The JSON Schema of the events of `-o json`, generated from their classes: docs/schema/events.json.

Descriptions are the docstrings of the classes, and their section ``Attributes`` or the comments of the fields.

Run this module to write the file. `check_event` validates a line that a test reads.
"""

from __future__ import annotations

import ast
import collections.abc
import functools
import inspect
import io
import json
import re
import textwrap
import tokenize
import types
import typing
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from jsonschema import Draft202012Validator

from fleet import errors, events
from fleet.console.jsonl import SCHEMA_VERSION, error_to_json, name_event
from train.diagnosis.verdict import Verdict
from train.lint.finding import Finding

_PARTS = {
    "DiskUse", "Exit", "GpuUse", "HostFacts", "HostResult", "HostStatus", "JobStatus", "Member", "Orphan",
    "PushedHost", "ResultLocation", "StoredResults", "StoredStatus", "TaskStatus",
}  # fmt: skip
"""Classes of the fields of events."""
EVENTS: tuple[Any, ...] = (
    Finding,
    *(
        kind
        for name, kind in vars(events).items()
        if hasattr(kind, "_fields") and name not in _PARTS and name[0] != "_"
    ),
)
"""The events, and the snapshot of `fleet status`."""

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
    return _object(_properties(hint)) | {"description": _summary(hint)}


def _container(origin: Any, arguments: tuple[Any, ...]) -> dict[str, Any]:
    if origin in (types.UnionType, typing.Union):
        return {"anyOf": [_schema_of(argument) for argument in arguments]}
    if origin in (dict, collections.abc.Mapping):
        return {"type": "object", "additionalProperties": _schema_of(arguments[1])}
    return {"type": "array", "items": _schema_of(arguments[0])}


def _properties(kind: type) -> dict[str, dict[str, Any]]:
    hints = get_type_hints(kind, localns={"Verdict": Verdict})
    texts = _descriptions(kind)
    return {name: _field(hint, texts.get(name, "")) for name, hint in hints.items() if hint is not bytes}


def _field(hint: Any, description: str) -> dict[str, Any]:
    """Return the schema of a field; an unknown number is null."""
    schema = _schema_of(hint)
    schema = {"anyOf": [schema, _NULL]} if hint in (int, float) else schema
    return {**schema, "description": description} if description else schema


def _summary(kind: type) -> str:
    return _in_json((inspect.getdoc(kind) or "").partition("\n\n")[0])


def _in_json(text: str) -> str:
    """Return a description on one line, with the words of JSON for values of Python."""
    for pattern, word in ((r"\bNone\b|-1(?=: unknown)", "null"), (r"\bTrue\b", "true"), (r"\bFalse\b", "false")):
        text = re.sub(pattern, word, text)
    return " ".join(text.replace("``", "`").split())


def _descriptions(kind: type) -> dict[str, str]:
    """Return what the source of a class says about its fields, by name."""
    section = (inspect.getdoc(kind) or "").partition("Attributes:\n")[2].partition("\n\n")[0]
    items = re.split(r"^(\w+): ", textwrap.dedent(section), flags=re.MULTILINE)[1:]
    texts = dict(zip(items[::2], map(_in_json, items[1::2]), strict=True))
    source = textwrap.dedent(inspect.getsource(kind))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.end_lineno in comments:
            texts[node.target.id] = _in_json(comments[node.end_lineno])
    return texts


def _object(properties: dict[str, Any], optional: tuple[str, ...] = ()) -> dict[str, Any]:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required}


def _event(name: str, properties: dict[str, Any], optional: tuple[str, ...] = ()) -> dict[str, Any]:
    return _object({"event": {"const": name}, "time": {"type": "number"}, **properties}, optional)


def generate() -> dict[str, Any]:
    """Return the schema: one definition for each event."""
    defined = {}
    for kind in EVENTS:
        name = name_event(kind)
        data = (
            {"text": {"type": "string"}, "base64": {"type": "string"}}
            if kind in (events.LogChunk, events.CommandOutput)
            else {}
        )
        defined[name] = _event(name, {**_properties(kind), **data}, tuple(data)) | {"description": _summary(kind)}
    error = {name: {"type": "string"} for name in error_to_json(errors.UsageError("")) if name != "event"}
    defined["error"] = _event("error", {**error, "exit_code": {"type": "integer"}})
    defined["schema"] = _object({"event": {"const": "schema"}, "version": {"const": SCHEMA_VERSION}})
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A line of fleet -o json",
        "oneOf": [{"$ref": f"#/$defs/{name}"} for name in sorted(defined)],
        "$defs": dict(sorted(defined.items())),
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
