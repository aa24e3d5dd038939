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

_RANGES = {
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint64": (0, 2**64 - 1),
}
_ANY_LENGTH = (-1, "")
_DURATION = re.compile(r"-?\d+(\.\d{1,9})?s")


@dataclass(frozen=True)
class Method:
    """One method of an API.

    Attributes:
        id: ``compute.instances.insert``.
        verb: ``POST``.
        template: Path below the service's root, its parameters in braces, each without slashes.
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

    @property
    def takes_any_path(self) -> bool:
        """Return whether a parameter of its path may have any number of slashes."""
        return any(each.get("pattern") == "^.*$" for each in self.parameters.values() if each["location"] == "path")


_WITHOUT_BODY = ("storage.objects.rewrite",)
"""Methods that accept a request without a body."""


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
        self._routes: dict[tuple[str, int, str], list[Method]] = {}
        for method in self.methods.values():
            route = (method.verb, method.template.count("/"), _tail(method.template))
            route = (method.verb, *_ANY_LENGTH) if method.takes_any_path else route
            self._routes.setdefault(route, []).append(method)

    def match(self, verb: str, path: str) -> tuple[Method, dict[str, str]] | None:
        """Return the method for `verb` on a path, and the parameters of the path, unescaped; None: no such method."""
        if not path.startswith(self.root):
            return None
        rest = path[len(self.root) :]
        count = rest.count("/")
        for length in ((count, _tail(rest)), (count, ""), _ANY_LENGTH):
            for method in self._routes.get((verb, *length), ()):
                match = method.path.fullmatch(rest)
                if match:
                    return method, {name: unquote(value) for name, value in match.groupdict().items()}
        return None

    def check_parameters(self, method: Method, given: Mapping[str, str]) -> list[str]:
        """Return the errors in the parameters of path and query; unknown ones are ignored, as in the real API."""
        problems: list[str] = []
        for name, parameter in method.parameters.items():
            if name in given:
                problems += _check_parameter(name, parameter, given[name])
            elif parameter.get("required"):
                problems.append(f"required parameter {name} is missing")
        return problems

    def check_request(self, method: Method, body: Any) -> list[str]:
        """Return the errors in the body of a request for `method`; None: it came without a body."""
        if not method.request:
            return [] if body in (None, {}) else ["a body where none belongs"]
        if body is None:
            return [] if method.id in _WITHOUT_BODY else ["no body"]
        return list(self._check_ref(method.request, body, "", method.id))

    def check_response(self, method: Method, body: Any) -> list[str]:
        """Return the errors in the body of a response of `method`."""
        return list(self._check_ref(method.response, body, "", "")) if method.response else []

    def properties(self, schema: str) -> Mapping[str, Json]:
        """Return the fields of a schema by name."""
        fields: Mapping[str, Json] = self._schemas[schema].get("properties", {})
        return fields

    def items(self, method: Method) -> str:
        """Return the name of the schema of the items of a list `method`; empty: it is not a list."""
        items = self.properties(method.response).get("items", {}) if method.response else {}
        if "$ref" in items.get("items", {}):
            return str(items["items"]["$ref"])
        scoped = items.get("additionalProperties", {}).get("$ref")
        if not scoped:
            return ""
        [name] = [
            field["items"]["$ref"] for field in self.properties(scoped).values() if "$ref" in field.get("items", {})
        ]
        return str(name)

    def _check_ref(self, name: str, value: Any, at: str, method: str) -> Iterator[str]:
        yield from self._check(self._schemas[name], value, at or name, method)

    def _check(self, schema: Json, value: Any, at: str, method: str) -> Iterator[str]:
        reference = schema.get("$ref")
        if reference:
            yield from self._check_ref(reference, value, at, method)
            return
        kind = schema.get("type", "any")
        if kind == "object":
            yield from self._check_object(schema, value, at, method)
        elif kind == "array":
            yield from self._check_array(schema, value, at, method)
        elif kind != "any":
            yield from _check_scalar(schema, value, at)

    def _check_object(self, schema: Json, value: Any, at: str, method: str) -> Iterator[str]:
        if not isinstance(value, dict):
            yield f"{at}: {value!r} is not an object"
            return
        fields = schema.get("properties", {})
        others = schema.get("additionalProperties")
        for name, part in value.items():
            if name in fields:
                yield from self._check(fields[name], part, f"{at}.{name}", method)
            elif others is not None:
                yield from self._check(others, part, f"{at}.{name}", method)
            else:
                yield f"{at}: unknown field {name!r}"
        if method:
            for name, field in fields.items():
                if name not in value and method in field.get("annotations", {}).get("required", ()):
                    yield f"{at}: required field {name!r} is missing"

    def _check_array(self, schema: Json, value: Any, at: str, method: str) -> Iterator[str]:
        if not isinstance(value, list):
            yield f"{at}: {value!r} is not a list"
            return
        for index, part in enumerate(value):
            yield from self._check(schema["items"], part, f"{at}[{index}]", method)


def discovery(name: str = "compute.v1") -> Discovery:
    """Return the document of an API, by the name of its file, such as ``compute.v1``.

    Raises:
        FileNotFoundError: google-api-python-client is not installed.
    """
    return _load(name)


@cache
def _load(name: str) -> Discovery:
    spec = importlib.util.find_spec("googleapiclient")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("google-api-python-client, which carries the discovery documents, is not installed")
    documents = Path(spec.origin).parent / "discovery_cache" / "documents"
    return Discovery(json.loads((documents / f"{name}.json").read_bytes()))


def _methods(resource: Json) -> Iterator[Method]:
    for method in resource.get("methods", {}).values():
        parameters = method.get("parameters", {})
        yield Method(
            method["id"],
            method["httpMethod"],
            method.get("flatPath", method["path"]),
            _path(method["path"], parameters),
            parameters,
            method.get("request", {}).get("$ref", ""),
            method.get("response", {}).get("$ref", ""),
        )
    for child in resource.get("resources", {}).values():
        yield from _methods(child)


def _path(template: str, parameters: Mapping[str, Json]) -> re.Pattern[str]:
    """Return ``projects/{project}/zones`` as a pattern; the value of ``{+name}`` may have slashes."""
    pattern = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/:]+)", template)
    return re.compile(re.sub(r"\{\+(\w+)\}", lambda name: f"(?P<{name[1]}>{_form(parameters[name[1]])})", pattern))


def _form(parameter: Json) -> str:
    """Return the pattern of a parameter's values, without a verb such as ``:enable`` after them."""
    return str(parameter.get("pattern", ".+")).strip("^$").replace("[^/]+", "[^/:]+")


def _tail(path: str) -> str:
    """Last segment of a path or template; empty where it is, or holds, something other than a plain word."""
    tail = path.rsplit("/", 1)[-1]
    return tail if tail.isalpha() else ""


def _check_parameter(name: str, parameter: Json, text: str) -> Iterator[str]:
    kind = parameter["type"]
    value: Any = text
    if kind == "boolean":
        value = {"true": True, "false": False}.get(text.lower(), text)
    elif kind in ("integer", "number") and re.fullmatch(r"-?\d+", text):
        value = int(text)
    yield from _check_scalar(parameter, value, f"parameter {name}")


def _check_scalar(schema: Json, value: Any, at: str) -> Iterator[str]:
    kind = schema["type"]
    if kind == "boolean":
        if not isinstance(value, bool):
            yield f"{at}: {value!r} is not a boolean"
    elif kind == "integer":
        yield from _check_integer(schema.get("format", "int32"), value, at)
    elif kind == "number":
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            yield f"{at}: {value!r} is not a number"
    elif not isinstance(value, str):
        # A 64-bit integer is sent as a string, but is also accepted as a number.
        if not schema.get("format", "").endswith("int64") or isinstance(value, bool) or not isinstance(value, int):
            yield f"{at}: {value!r} is not a string"
    else:
        yield from _check_string(schema, value, at)


def _check_integer(form: str, value: Any, at: str) -> Iterator[str]:
    low, high = _RANGES[form]
    if isinstance(value, bool) or not isinstance(value, int):
        yield f"{at}: {value!r} is not an integer"
    elif not low <= value <= high:
        yield f"{at}: {value} is not a valid {form}"


def _check_string(schema: Json, value: str, at: str) -> Iterator[str]:
    form = schema.get("format", "")
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at}: {value!r} is none of {', '.join(schema['enum'])}"
    if "pattern" in schema and not re.fullmatch(schema["pattern"], value):
        yield f"{at}: {value!r} does not match {schema['pattern']}"
    if form.endswith("int64") and not re.fullmatch(r"-?\d+", value):
        yield f"{at}: {value!r} is not a valid {form}"
    if form == "byte" and not _is_base64(value):
        yield f"{at}: {value!r} is not base64"
    if form == "google-duration" and not _DURATION.fullmatch(value):
        yield f"{at}: {value!r} is not a duration"


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
    except binascii.Error:
        return False
    return True
