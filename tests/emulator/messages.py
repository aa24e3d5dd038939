"""Requests, answers, and errors of the API and of its operations; their texts are in ``data/errors.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

Json = dict[str, Any]
_TEXTS = json.loads(Path(__file__).with_name("data").joinpath("errors.json").read_text(encoding="utf-8"))


class Broken(Exception):
    """The connection ends without an answer.

    Args:
        reset: Whether it is reset instead of closed.
    """

    def __init__(self, *, reset: bool) -> None:
        super().__init__("reset" if reset else "lost")
        self.reset = reset


@dataclass(frozen=True)
class Request:
    """An HTTP request.

    Attributes:
        verb: ``POST``.
        target: Path and query.
        body: Its bytes.
        token: Access token of the caller; empty: none.
        headers: Its headers, with names in lower case.
    """

    verb: str
    target: str
    body: bytes = b""
    token: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """Return its path."""
        return unquote(urlsplit(self.target).path)

    @property
    def query(self) -> dict[str, str]:
        """Return the parameters of its query; the last value if a name occurs several times."""
        return dict(parse_qsl(urlsplit(self.target).query, keep_blank_values=True))


@dataclass(frozen=True)
class Answer:
    """An HTTP answer.

    Attributes:
        status: HTTP status.
        body: Its bytes.
        headers: Headers in addition to those of the body.
    """

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


def encode(status: int, body: Any, headers: Mapping[str, str] | None = None) -> Answer:
    """Return an answer in JSON."""
    return Answer(status, json.dumps(body).encode(), headers or {})


class Refusal(Exception):
    """An HTTP error.

    Args:
        status: HTTP status.
        reason: ``alreadyExists``.
        message: For a person.
        domain: ``global``, ``usageLimits``.
        canonical: ``PERMISSION_DENIED``; empty: the body has no ``status``.
        details: The body's ``details``.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        domain: str = "global",
        canonical: str = "",
        details: list[Json] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        errors = [{"message": message, "domain": domain, "reason": reason}]
        error: Json = {"code": status, "message": message, "errors": errors}
        if canonical:
            error["status"] = canonical
        if details:
            error["details"] = details
        self.body: Json = {"error": error}
        self.headers = {"Retry-After": "1"} if status == HTTPStatus.TOO_MANY_REQUESTS else {}


@dataclass(frozen=True)
class Failure:
    """Why an operation failed.

    Attributes:
        errors: As in ``error.errors`` of the operation.
        http: ``httpErrorStatusCode``.
    """

    errors: tuple[Json, ...]
    http: int = 400

    def fields(self) -> Json:
        """Return the error fields of the operation."""
        phrase = HTTPStatus(self.http).phrase.upper()
        return {"error": {"errors": [*self.errors]}, "httpErrorStatusCode": self.http, "httpErrorMessage": phrase}


REFUSALS = frozenset(_TEXTS["refusals"])
"""Names of the HTTP errors."""


def refusal(kind: str, /, **values: Any) -> Refusal:
    """Return an HTTP error by its name, with `values` in its texts."""
    return Refusal(**_fill(_TEXTS["refusals"][kind], values))


def failure(kind: str, /, **values: Any) -> Failure:
    """Return the failure of an operation by its name, with `values` in its texts."""
    error = _fill(_TEXTS["failures"][kind], values)
    return Failure((error,), error.pop("http"))


def _fill(template: Any, values: Json) -> Any:
    """Return a template with its placeholders replaced; a text that is one placeholder becomes its value."""
    if isinstance(template, dict):
        return {key: _fill(value, values) for key, value in template.items()}
    if isinstance(template, list):
        return [_fill(value, values) for value in template]
    if not isinstance(template, str):
        return template
    name = template.removeprefix("{").removesuffix("}")
    return values[name] if template == f"{{{name}}}" else template.format(**values)


def not_found(path: str) -> Refusal:
    """The resource at `path` (``projects/…``) does not exist."""
    return refusal("404", resource=path)


def invalid(field: str, value: object, why: str) -> Refusal:
    """The value of a field is wrong."""
    return refusal("invalid", field=field, value=value, why=why)


def bad_request(message: str) -> Refusal:
    """The request cannot be fulfilled as it is."""
    return refusal("bad", message=message)


def quota(metric: str, limit: float, region: str) -> Failure:
    """A quota is too small; `region` empty: it is global."""
    name = metric.replace("_", "-") + ("-per-project-region" if region else "-per-project")
    return failure(
        "quota",
        metric=metric,
        lower=metric.lower(),
        limit=float(limit),
        limit_name=name,
        where=f"in region {region}" if region else "globally",
        dimensions={"region": region} if region else {"global": "global"},
    )
