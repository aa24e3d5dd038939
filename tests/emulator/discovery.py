"""Checks requests and responses against Google's discovery documents, which google-api-python-client carries."""

from __future__ import annotations

import base64
import binascii
import importlib.util
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

Json = dict[str, Any]
_RANGES = {"int32": (-(2**31), 2**31 - 1), "uint32": (0, 2**32 - 1)}
_TYPES: dict[str, tuple[type | tuple[type, ...], str]] = {
    "boolean": (bool, "a boolean"),
    "integer": (int, "an integer"),
    "number": ((int, float), "a number"),
    "string": (str, "a string"),
    "array": (list, "a list"),
    "object": (dict, "an object"),
}
_WITHOUT_BODY = ("storage.objects.rewrite",)
"""Methods that accept a request without a body."""


@dataclass(frozen=True)
class Method:
    """One method of an API.

    Attributes:
        id: ``compute.instances.insert``.
        verb: ``POST``.
        template: Path below the service's root, its parameters in braces.
        path: Matches that path; its parameters are the groups.
        parameters: Parameters of path and query by name, as the document describes them.
        request: Name of the request body's schema; empty: it has none.
        response: Name of the response body's schema; empty: it has none.
    """

    id: str
    verb: str
    template: str
    path: re.Pattern[str]
    parameters: Mapping[str, Json]
    request: str
    response: str


class Discovery:
    """One discovery document.

    Args:
        document: Its contents.
    """

    def __init__(self, document: Json) -> None:
        self.host = document["rootUrl"].removeprefix("https://").strip("/")
        self.root = "/" + document["servicePath"]
        self._schemas: dict[str, Json] = document["schemas"]
        self.methods = {method.id: method for method in _methods(document)}
        self._routes: dict[tuple[str, int], list[Method]] = {}
        for method in self.methods.values():
            lengths = range(2, 12) if "{+" in method.template else (method.template.count("/"),)
            for length in lengths:
                self._routes.setdefault((method.verb, length), []).append(method)

    def match(self, verb: str, path: str) -> tuple[Method, dict[str, str]] | None:
        """Return the method for `verb` on a path, and the parameters of the path, unescaped; None: no such method."""
        if not path.startswith(self.root):
            return None
        rest = path[len(self.root) :]
        for method in self._routes.get((verb, rest.count("/")), ()):
            match = method.path.fullmatch(rest)
            if match:
                return method, {name: unquote(value) for name, value in match.groupdict().items()}
        return None

    def check_parameters(self, method: Method, given: Mapping[str, str]) -> list[str]:
        """Return the errors in the parameters of path and query; unknown ones are ignored, as in the real API."""
        problems: list[str] = []
        for name, parameter in method.parameters.items():
            if name in given:
                value: Any = given[name]
                if parameter["type"] == "boolean":
                    value = {"true": True, "false": False}.get(value.lower(), value)
                elif parameter["type"] in ("integer", "number") and re.fullmatch(r"-?\d+", value):
                    value = int(value)
                problems += self._check(parameter, value, f"parameter {name}", "")
            elif parameter.get("required"):
                problems.append(f"required parameter {name} is missing")
        return problems

    def check_request(self, method: Method, body: Any) -> list[str]:
        """Return the errors in the body of a request for `method`; None: it came without a body."""
        if not method.request:
            return [] if body in (None, {}) else ["a body where none belongs"]
        if body is None:
            return [] if method.id in _WITHOUT_BODY else ["no body"]
        return list(self._check({"$ref": method.request}, body, method.request, method.id))

    def check_response(self, method: Method, body: Any) -> list[str]:
        """Return the errors in the body of a response of `method`."""
        return list(self._check({"$ref": method.response}, body, method.response, "")) if method.response else []

    def fields(self, method: Method) -> Mapping[str, Json]:
        """Return the fields of the items of a list `method`."""
        items = self._schemas[method.response]["properties"]["items"]
        if scoped := items.get("additionalProperties", {}).get("$ref"):
            values = self._schemas[scoped]["properties"].values()
            [items] = [value for value in values if "$ref" in value.get("items", {})]
        fields: Mapping[str, Json] = self._schemas[items["items"]["$ref"]]["properties"]
        return fields

    def _check(self, schema: Json, value: Any, at: str, method: str) -> Iterator[str]:
        """Yield the errors in a value; `method` is that of a request, whose required fields must be there."""
        if "$ref" in schema:
            schema = self._schemas[schema["$ref"]]
        kind = schema.get("type", "any")
        if kind == "any":
            return
        if not _is_of(kind, schema, value):
            yield f"{at}: {value!r} is not {_TYPES[kind][1]}"
        elif kind == "object":
            yield from self._check_object(schema, value, at, method)
        elif kind == "array":
            for index, part in enumerate(value):
                yield from self._check(schema["items"], part, f"{at}[{index}]", method)
        else:
            yield from _check_format(schema, value, at)

    def _check_object(self, schema: Json, value: Json, at: str, method: str) -> Iterator[str]:
        fields = schema.get("properties", {})
        for name, part in value.items():
            described = fields.get(name, schema.get("additionalProperties"))
            if described is None:
                yield f"{at}: unknown field {name!r}"
            else:
                yield from self._check(described, part, f"{at}.{name}", method)
        for name, described in fields.items():
            if method and name not in value and method in described.get("annotations", {}).get("required", ()):
                yield f"{at}: required field {name!r} is missing"


@cache
def discovery(name: str = "compute.v1") -> Discovery:
    """Return the document of an API, by the name of its file, such as ``compute.v1``.

    Raises:
        FileNotFoundError: google-api-python-client is not installed.
    """
    spec = importlib.util.find_spec("googleapiclient")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("google-api-python-client, which carries the discovery documents, is not installed")
    documents = Path(spec.origin).parent / "discovery_cache" / "documents"
    return Discovery(json.loads((documents / f"{name}.json").read_bytes()))


def _methods(resource: Json) -> Iterator[Method]:
    for method in resource.get("methods", {}).values():
        parameters, refs = method.get("parameters", {}), [method.get(key, {}) for key in ("request", "response")]
        path = _path(method["path"], parameters)
        names = (ref.get("$ref", "") for ref in refs)
        yield Method(method["id"], method["httpMethod"], method["path"], path, parameters, *names)
    for child in resource.get("resources", {}).values():
        yield from _methods(child)


def _path(template: str, parameters: Mapping[str, Json]) -> re.Pattern[str]:
    """Return ``projects/{project}/zones`` as a pattern; the value of ``{+name}`` may have slashes, but no verb."""

    def pattern_of(name: re.Match[str]) -> str:
        form = str(parameters[name[1]].get("pattern", ".+")).strip("^$").replace("[^/]+", "[^/:]+")
        return f"(?P<{name[1]}>{form})"

    pattern = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/:]+)", template)
    return re.compile(re.sub(r"\{\+(\w+)\}", pattern_of, pattern))


def _is_of(kind: str, schema: Json, value: Any) -> bool:
    """Return whether a value has a type; a 64-bit integer is sent as a string, but is also accepted as a number."""
    is_long = kind == "string" and schema.get("format", "").endswith("int64")
    accepted = int if is_long and isinstance(value, int) else _TYPES[kind][0]
    return isinstance(value, accepted) and (kind == "boolean" or not isinstance(value, bool))


def _check_format(schema: Json, value: Any, at: str) -> Iterator[str]:
    form = schema.get("format", "")
    if schema["type"] == "integer":
        low, high = _RANGES[form or "int32"]
        if not low <= value <= high:
            yield f"{at}: {value} is not a valid {form}"
    if not isinstance(value, str):
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at}: {value!r} is none of {', '.join(schema['enum'])}"
    if "pattern" in schema and not re.fullmatch(schema["pattern"], value):
        yield f"{at}: {value!r} does not match {schema['pattern']}"
    if form.endswith("int64") and not re.fullmatch(r"-?\d+", value):
        yield f"{at}: {value!r} is not a valid {form}"
    if form == "byte" and not _is_base64(value):
        yield f"{at}: {value!r} is not base64"
    if form == "google-duration" and not re.fullmatch(r"-?\d+(\.\d{1,9})?s", value):
        yield f"{at}: {value!r} is not a duration"


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
    except binascii.Error:
        return False
    return True
