"""Parse JSON from other processes; every malformed input raises one exception."""

from __future__ import annotations

import json
import math
from typing import Any, Dict, List, NoReturn, Union

MAX_DEPTH = 32
MAX_INTEGER = 1 << 63


class JsonError(ValueError):
    """The text is not acceptable JSON."""


def _refuse_constant(name: str) -> NoReturn:
    raise JsonError(f"{name} is not a number")


def parse_json(text: Union[bytes, str]) -> Any:
    """Return the value of a JSON text of any shape; NaN and infinities are accepted.

    Raises:
        JsonError: it is not JSON, or it is nested too deeply.
    """
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8", "surrogateescape")
        return json.loads(text)
    except (ValueError, RecursionError, MemoryError) as error:
        raise JsonError("not JSON") from error


def parse_object(text: bytes, limit_bytes: int) -> Dict[str, Any]:
    """Return a JSON object whose size, depth, numbers, and strings are all within bounds.

    Args:
        text: One JSON text.
        limit_bytes: Longest text that is accepted.

    Raises:
        JsonError: it is not such an object.
    """
    if len(text) > limit_bytes:
        raise JsonError(f"longer than {limit_bytes} bytes")
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError, MemoryError) as error:
        raise JsonError("not JSON") from error
    if not isinstance(value, dict):
        raise JsonError("not an object")
    _check(value)
    return value


def _check(root: Dict[str, Any]) -> None:
    level: List[Any] = [root]
    for _ in range(MAX_DEPTH):
        nested: List[Any] = []
        for value in level:
            nested += [*value, *value.values()] if type(value) is dict else value
        level = [value for value in nested if not _is_leaf(value)]
        if not level:
            return
    raise JsonError("nested too deeply")


def _is_leaf(value: Any) -> bool:
    """Return whether a value is not an object or a list; check it if so."""
    kind = type(value)
    if kind is str:
        if not value.isascii():
            check_text(value)
    elif kind is dict or kind is list:
        return False
    elif value is not None:
        check_number(value)
    return True


def check_text(value: str) -> None:
    """Refuse a string that cannot be encoded as bytes.

    Bytes that are not UTF-8 travel as surrogates (PEP 383); other lone surrogates have no bytes.

    Raises:
        JsonError: it holds such a surrogate.
    """
    if not value.isascii():
        try:
            value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise JsonError("a string with half a character") from error


def check_number(value: Any) -> None:
    """Refuse a number that is not finite or has more than 64 bits.

    Raises:
        JsonError: it is not finite, or an integer of more than 64 bits.
    """
    if isinstance(value, float):
        if not math.isfinite(value):
            raise JsonError("a number that is not finite")
    elif not -MAX_INTEGER <= value < MAX_INTEGER:
        raise JsonError("a number that is too large")
