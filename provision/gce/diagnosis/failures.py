"""Failures in the answers of Compute Engine.

Source of their forms: https://cloud.google.com/apis/design/errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SILENT_ZONE = "ZONE_DID_NOT_ANSWER"
"""Code of a list that lacks the resources of a zone."""


@dataclass(frozen=True)
class Failure:
    """One failure that an answer reports.

    Attributes:
        code: Code of a failed operation, ``ZONE_RESOURCE_POOL_EXHAUSTED``; reason of an HTTP error,
            ``quotaExceeded``; ``UNREACHABLE``, ``DEADLINE``, ``MISSING``, or `SILENT_ZONE` from this program.
        message: Message of the failure.
        http: HTTP status; 0: none. All failures of an operation have the same status.
        domain: Domain of the error, ``usageLimits``.
        details: Further details, unchanged.
        of_operation: An operation ended with the failure; otherwise a call was refused.
    """

    code: str = ""
    message: str = ""
    http: int = 0
    domain: str = ""
    details: tuple[Mapping[str, Any], ...] = ()
    of_operation: bool = False


def from_http(status: int, body: Mapping[str, Any] | None) -> list[Failure]:
    """Return the failures that an HTTP error reports, one or more.

    Args:
        status: HTTP status, 400 or more.
        body: JSON of the answer; None if it is not JSON.
    """
    error = mapping(mapping(body).get("error"))
    message = str(error.get("message", ""))
    details = mappings(error.get("details"))
    failures = [
        Failure(
            code=str(item.get("reason", "")),
            message=str(item.get("message", "")) or message,
            http=status,
            domain=str(item.get("domain", "")),
            details=details,
        )
        for item in mappings(error.get("errors"))
    ]
    return failures or [Failure(code=str(error.get("status", "")), message=message, http=status, details=details)]


def from_operation(operation: Mapping[str, Any]) -> list[Failure]:
    """Return the failures that an operation reports; empty if there are none.

    Args:
        operation: The operation, as JSON of the REST API.
    """
    status = int(operation.get("httpErrorStatusCode") or 0)
    failures = [
        Failure(
            code=str(item.get("code", "")),
            message=str(item.get("message", "")),
            http=status,
            details=mappings(item.get("errorDetails")),
            of_operation=True,
        )
        for item in mappings(mapping(operation.get("error")).get("errors"))
    ]
    if not failures and status >= 400:
        message = str(operation.get("httpErrorMessage", ""))
        return [Failure(code=message.replace(" ", "_"), message=message, http=status)]
    return failures


def mapping(thing: object) -> Mapping[str, Any]:
    """Return `thing` if it is an object of JSON, otherwise an empty one."""
    return thing if isinstance(thing, Mapping) else {}


def mappings(thing: object) -> tuple[Mapping[str, Any], ...]:
    """Return the objects in a list of JSON; empty if `thing` is not a list."""
    return tuple(item for item in thing if isinstance(item, Mapping)) if isinstance(thing, Sequence) else ()
