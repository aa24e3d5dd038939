"""The batch endpoint: many calls in one request, as multipart/mixed of application/http."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from email.parser import BytesParser
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from tests.emulator.api import Answer, Broken, Request
from tests.emulator.endpoints import endpoint
from tests.emulator.failures import bad_request

if TYPE_CHECKING:
    from tests.emulator.server import Emulator

_MOST = 1000
_REQUEST_LINE = re.compile(rb"(?P<verb>[A-Z]+) (?P<target>\S+)(?: HTTP/1\.[01])?\r?\n")


@dataclass(frozen=True)
class Part:
    """One call of a batch.

    Attributes:
        id: Its Content-ID, with its angle brackets; empty: it has none.
        request: The call.
    """

    id: str
    request: Request


@endpoint("/batch/compute/v1", "/batch")
def answer_batch(emulator: Emulator, request: Request) -> Answer:
    """Answer all calls of a batch request."""
    api = emulator.api
    api.count("batch")
    rule = api.faults.draw("batch", in_batch=False, place="", makes_operation=False)
    api.strike(rule)
    answered = answer(parse(request.content_type, request.body), api.answer)
    if rule and rule.kind == "lost":
        raise Broken(reset=False)
    return answered


def parse(content_type: str, body: bytes) -> list[Part]:
    """Parse the calls of a batch request.

    Raises:
        Refusal: it is not a batch request, or has too many calls.
    """
    message = BytesParser().parsebytes(f"Content-Type: {content_type}\r\n\r\n".encode() + body)
    if message.get_content_type() != "multipart/mixed" or not message.is_multipart():
        raise bad_request("Failed to parse batch request, error: expected multipart/mixed.")
    parts = []
    for part in list(message.walk())[1:]:
        if part.get_content_type() != "application/http":
            raise bad_request("Failed to parse batch request, error: a part is not application/http.")
        payload = part.get_payload(decode=True)
        parts.append(Part(part.get("Content-ID", ""), _request(payload if isinstance(payload, bytes) else b"")))
    if not 1 <= len(parts) <= _MOST:
        raise bad_request(f"The batch request has {len(parts)} calls; it must have from 1 to {_MOST}.")
    return parts


def answer(parts: list[Part], call: Callable[[Request], Answer]) -> Answer:
    """Return the answer to a batch request; `call` answers each part."""
    boundary = f"batch_{uuid.uuid4().hex}"
    lines: list[bytes] = []
    for part in parts:
        answered = call(part.request)
        lines.append(f"--{boundary}\r\nContent-Type: application/http\r\n".encode())
        if part.id:
            lines.append(f"Content-ID: <response-{part.id.strip('<>')}>\r\n".encode())
        head = f"\r\nHTTP/1.1 {answered.status} {HTTPStatus(answered.status).phrase}\r\n"
        headers = {
            **answered.headers,
            "Content-Type": "application/json; charset=UTF-8",
            "Content-Length": str(len(answered.body)),
        }
        head += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        lines.append(head.encode() + b"\r\n" + answered.body + b"\r\n")
    lines.append(f"--{boundary}--\r\n".encode())
    return Answer(200, b"".join(lines), {"Content-Type": f'multipart/mixed; boundary="{boundary}"'})


def _request(payload: bytes) -> Request:
    line = _REQUEST_LINE.match(payload)
    if not line:
        raise bad_request("Failed to parse batch request, error: a part has no request line.")
    _, _, body = payload.partition(b"\r\n\r\n")
    if b"\r\n\r\n" not in payload:
        _, _, body = payload.partition(b"\n\n")
    url = urlsplit(line["target"].decode())
    return Request(line["verb"].decode(), urlunsplit(("", "", url.path, url.query, "")), body.strip(), in_batch=True)
