"""Requests and answers of HTTP, as the emulator passes them on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit


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
        content_type: Media type of its body.
        token: Access token of the caller; empty: none.
        headers: Other headers, with names in lower case.
    """

    verb: str
    target: str
    body: bytes = b""
    content_type: str = ""
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
