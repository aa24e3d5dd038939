"""Answers of Google's APIs: messages of its library, and the failures that they report.

Source of the forms of errors: https://cloud.google.com/apis/design/errors.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import proto
from google.cloud import compute_v1
from google.protobuf.json_format import ParseError

from provision.gce.diagnosis import RATE, Failure, mapping, mappings

Json = dict[str, Any]
M = TypeVar("M", bound=proto.Message)
_FORBIDDEN = 403
_RETRIED = (429, 500, 502, 503, 504)


class ApiError(Exception):
    """A call failed permanently.

    Attributes:
        failures: Failures that the answer reports.
    """

    def __init__(self, failures: Sequence[Failure]) -> None:
        super().__init__("; ".join(failure.message for failure in failures) or "no answer")
        self.failures = tuple(failures)

    @property
    def status(self) -> int:
        """Return the HTTP status; 0 if there was no answer."""
        return max((failure.http for failure in self.failures), default=0)

    @property
    def is_forbidden(self) -> bool:
        """Return whether the caller lacks a permission; too many calls have the same status."""
        return self.status == _FORBIDDEN and not self._is_rate

    @property
    def is_transient(self) -> bool:
        """Return whether the call may succeed if it is repeated."""
        return self.status in (0, *_RETRIED) or self._is_rate

    @property
    def _is_rate(self) -> bool:
        """Return whether there were too many calls, https://cloud.google.com/compute/api-quota."""
        return any(failure.code in RATE.codes.split() for failure in self.failures)


class Listing(list[M]):
    """Resources of all zones and regions that answered.

    Attributes:
        silent: Zones and regions that did not answer.
    """

    def __init__(self, resources: Iterable[M] = (), silent: Iterable[str] = ()) -> None:
        super().__init__(resources)
        self.silent = frozenset(silent)


def to_json(message: proto.Message) -> Json:
    """Return a message of the library as JSON of the REST API, without unset fields."""
    text = type(message).to_json(
        message,
        use_integers_for_enums=False,
        preserving_proto_field_name=False,
        always_print_fields_with_no_presence=False,
        indent=None,
    )
    result: Json = json.loads(text)
    return result


def from_json(kind: type[M], content: Mapping[str, Any]) -> M:
    """Return JSON of the REST API as a message of the library; fields that this does not have are left out.

    Raises:
        ApiError: it does not have the form of the message.
    """
    try:
        message: M = kind.from_json(json.dumps(content), ignore_unknown_fields=True)
    except ParseError as error:
        raise ApiError([Failure(code="UNREACHABLE", message=f"an answer does not have its form: {error}")]) from error
    return message


def is_done(operation: compute_v1.Operation) -> bool:
    """Return whether an operation has ended, successfully or not."""
    return operation.status == compute_v1.Operation.Status.DONE


def from_http(status: int, body: Mapping[str, Any] | None) -> list[Failure]:
    """Return the failures that an HTTP error reports, one or more.

    Args:
        status: HTTP status, 400 or more.
        body: JSON of the answer; None if it is not JSON.
    """
    error = mapping(mapping(body).get("error"))
    message, details = str(error.get("message", "")), mappings(error.get("details"))
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


def from_operation(operation: compute_v1.Operation) -> list[Failure]:
    """Return the failures that an operation reports; empty if there are none."""
    status = operation.http_error_status_code
    failures = [
        Failure(
            code=item.code,
            message=item.message,
            http=status,
            details=tuple(to_json(detail) for detail in item.error_details),
            of_operation=True,
        )
        for item in operation.error.errors
    ]
    if not failures and status >= 400:
        message = operation.http_error_message
        return [Failure(code=message.replace(" ", "_"), message=message, http=status)]
    return failures
