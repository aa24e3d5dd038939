"""Encode many calls as one request to Compute Engine's batch endpoint, and decode the response.

Source: https://cloud.google.com/compute/docs/api/how-tos/batch. The body is multipart/mixed; each part is an HTTP
request with a Content-ID. The response has one part for each, with ``response-`` before the Content-ID, in any order.
"""

from __future__ import annotations

import email.parser
import json
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from typing import Any

from provision.gce.api.messages import Json, from_http
from provision.gce.diagnosis import Failure

CALLS_MAX = 1000
"""Largest number of calls that Compute Engine accepts in one request."""

_STATUS_LINE = re.compile(rb"HTTP/[0-9.]+ ([0-9]{3})[^\r\n]*\r?\n")
_CONTENT_ID = re.compile(r"<response-([0-9]+)>")


@dataclass(frozen=True)
class Call:
    """One call of a batch.

    Attributes:
        method: HTTP method, ``DELETE``.
        path_and_query: Path and query, ``/compute/v1/projects/p/zones/z/instances/i?requestId=…``.
        body: Body that is sent as JSON; None: no body.
    """

    method: str
    path_and_query: str
    body: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Answer:
    """The answer to one call of a batch."""

    status: int
    body: Json

    @property
    def failures(self) -> list[Failure]:
        """Return the failures that it reports; empty if the call succeeded."""
        return [] if self.status < 400 else from_http(self.status, self.body)


def encode(calls: Sequence[Call]) -> tuple[str, bytes]:
    """Return the request that makes all of `calls`, at most CALLS_MAX of them.

    Returns:
        The Content-Type and the body of the request.

    Raises:
        ValueError: there are no calls, or too many.
    """
    if not 1 <= len(calls) <= CALLS_MAX:
        raise ValueError(f"a batch has 1 to {CALLS_MAX} calls, not {len(calls)}")
    boundary = f"batch_{uuid.uuid4().hex}"
    parts = [f"--{boundary}\r\n".encode() + _encoded_call(index, call) for index, call in enumerate(calls)]
    return f'multipart/mixed; boundary="{boundary}"', b"".join(parts) + f"--{boundary}--\r\n".encode()


def decode(content_type: str, body: bytes) -> list[Answer]:
    """Return the answers in the response to a batch, in the order of its calls.

    Raises:
        ValueError: the response is not one to a batch, or an answer is missing.
    """
    head = f"MIME-Version: 1.0\r\nContent-Type: {content_type}\r\n\r\n".encode()
    message = email.parser.BytesParser().parsebytes(head + body)
    if message.get_content_type() != "multipart/mixed" or not message.is_multipart():
        raise ValueError(f"a batch was answered with {message.get_content_type()}")
    answers: dict[int, Answer] = {}
    for part in list(message.walk())[1:]:
        match = _CONTENT_ID.fullmatch(str(part["Content-ID"] or "").strip())
        if match is None:
            raise ValueError("a part of the answer to a batch does not say which call it answers")
        answers[int(match[1])] = _answer(part)
    if sorted(answers) != list(range(len(answers))):
        raise ValueError(f"the answer to a batch lacks some of its calls; it has {sorted(answers)}")
    return [answers[index] for index in range(len(answers))]


def _encoded_call(index: int, call: Call) -> bytes:
    lines = [
        "Content-Type: application/http",
        "Content-Transfer-Encoding: binary",
        f"Content-ID: <{index}>",
        "",
        f"{call.method} {call.path_and_query} HTTP/1.1",
        "Accept: application/json",
    ]
    content = b""
    if call.body is not None:
        content = json.dumps(call.body).encode()
        lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
    return "\r\n".join([*lines, "", ""]).encode() + content + b"\r\n"


def _answer(part: Message) -> Answer:
    payload = part.get_payload(decode=True)
    if not isinstance(payload, bytes):
        raise ValueError("a part of the answer to a batch contains no HTTP response")
    match = _STATUS_LINE.match(payload.lstrip())
    if match is None:
        raise ValueError("a part of the answer to a batch is not an HTTP response")
    inner = email.parser.BytesParser().parsebytes(payload.lstrip()[match.end() :])
    content = inner.get_payload(decode=True)
    text = content.strip() if isinstance(content, bytes) else b""
    try:
        body = json.loads(text) if text else {}
    except ValueError:
        body = {"error": {"message": text.decode(errors="replace")}}
    return Answer(int(match[1]), body if isinstance(body, dict) else {})
