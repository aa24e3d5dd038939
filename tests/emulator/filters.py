"""List filters in both of the API's languages: ``labels.fleet=demo AND status!=DONE``, ``name eq "worker-.*"``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

Json = dict[str, Any]
Test = Callable[[Json], bool]

_TOKEN = re.compile(
    r"""\s*(?:(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?P<mark>!=|<=|>=|[=<>:()])|(?P<word>[^\s=<>:()!"']+))"""
)
_FIELD = re.compile(r"[A-Za-z][\w-]*(\.[\w-]+)*")


class FilterError(ValueError):
    """The filter cannot be read."""


def parse_filter(text: str, is_field: Callable[[str], bool]) -> Test:
    """Return the condition that `text` describes.

    Args:
        text: The filter; empty: everything passes.
        is_field: Whether a resource of this kind has a field of that name (the first part of the path).

    Raises:
        FilterError: it cannot be read.
    """
    if not text.strip():
        return bool
    parser = _Parser(list(_tokens(text)), is_field)
    test = parser.conjunction()
    if parser.left():
        raise FilterError(f"unexpected {parser.peek()!r}")
    return test


class _Parser:
    """Recursive descent; OR binds tighter than AND, and expressions side by side mean AND."""

    def __init__(self, tokens: list[tuple[str, str]], is_field: Callable[[str], bool]) -> None:
        self._tokens = tokens
        self._is_field = is_field

    def left(self) -> bool:
        return bool(self._tokens)

    def peek(self) -> str:
        return self._tokens[0][1] if self._tokens else ""

    def take(self) -> tuple[str, str]:
        if not self._tokens:
            raise FilterError("it ends too early")
        return self._tokens.pop(0)

    def conjunction(self) -> Test:
        tests = [self.disjunction()]
        while self.left() and self.peek() != ")":
            if self.peek() == "AND":
                self.take()
            tests.append(self.disjunction())
        return lambda resource: all(test(resource) for test in tests)

    def disjunction(self) -> Test:
        tests = [self.term()]
        while self.peek() == "OR":
            self.take()
            tests.append(self.term())
        return lambda resource: any(test(resource) for test in tests)

    def term(self) -> Test:
        kind, token = self.take()
        if token == "NOT":
            test = self.term()
            return lambda resource: not test(resource)
        if token == "(":
            inner = self.conjunction()
            if self.take()[1] != ")":
                raise FilterError("a parenthesis is not closed")
            return inner
        if kind != "word":
            raise FilterError(f"unexpected {token!r}")
        return self.comparison(token)

    def comparison(self, field: str) -> Test:
        if not _FIELD.fullmatch(field) or not self._is_field(field.split(".", 1)[0]):
            raise FilterError(f"no field {field!r}")
        operator = self.take()[1]
        compare = _OPERATORS.get(operator)
        if compare is None:
            raise FilterError(f"no operator {operator!r}")
        kind, value = self.take()
        if kind == "mark":
            raise FilterError(f"unexpected {value!r}")
        wanted = _pattern(operator, re.sub(r"\\(.)", _unescape(operator), value[1:-1]) if kind == "text" else value)
        path = field.split(".")
        negated = operator in ("!=", "ne")
        return lambda resource: any(compare(value, wanted) for value in _values(resource, path)) != negated


def _unescape(operator: str) -> Callable[[re.Match[str]], str]:
    """Backslashes belong to the quoting, save those of a regular expression."""
    return (
        (lambda match: match[1] if match[1] in "\"'" else match[0])
        if operator in ("eq", "ne")
        else lambda match: match[1]
    )


def _pattern(operator: str, value: str) -> str:
    if operator in ("eq", "ne"):
        try:
            re.compile(value)
        except re.error as error:
            raise FilterError(str(error)) from error
        return value
    if operator in ("=", "!=", ":"):
        return ".*".join(re.escape(part) for part in value.split("*"))
    return value


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if not match or match.lastgroup is None:
            raise FilterError(f"unexpected {text[at:]!r}")
        yield match.lastgroup, match[match.lastgroup]
        at = match.end()


def _values(resource: Any, path: list[str]) -> Iterator[str]:
    """Return the texts at `path`, including those of all list elements."""
    if isinstance(resource, list):
        for part in resource:
            yield from _values(part, path)
    elif path:
        if isinstance(resource, dict) and path[0] in resource:
            yield from _values(resource[path[0]], path[1:])
    elif isinstance(resource, bool):
        yield str(resource).lower()
    elif not isinstance(resource, dict):
        yield str(resource)


def _less(value: str, wanted: str) -> bool:
    try:
        return _measure(value) < _measure(wanted)
    except ValueError:
        return value < wanted


def _measure(text: str) -> float:
    """A number, or a moment in seconds."""
    try:
        return float(text)
    except ValueError:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def _matches(value: str, wanted: str) -> bool:
    return re.fullmatch(wanted, value, re.DOTALL) is not None


_OPERATORS: dict[str, Callable[[str, str], bool]] = {
    "=": _matches,
    "!=": _matches,
    "eq": _matches,
    "ne": _matches,
    ":": lambda value, wanted: re.search(wanted, value, re.IGNORECASE | re.DOTALL) is not None,
    "<": _less,
    ">": lambda value, wanted: _less(wanted, value),
    "<=": lambda value, wanted: not _less(wanted, value),
    ">=": lambda value, wanted: not _less(value, wanted),
}
