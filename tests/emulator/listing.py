"""Lists: filtered, ordered, page by page; of one scope, or of all that answer.

Filters are in both of the API's languages: ``labels.fleet=demo AND status!=DONE``, ``name eq "worker-.*"``. Source:
``unreachables`` and ``warning`` of aggregated lists in the discovery document, and the parameter
``returnPartialSuccess`` in https://cloud.google.com/compute/docs/reference/rest/v1/instances/aggregatedList.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tests.emulator.discovery import discovery
from tests.emulator.messages import bad_request, invalid, refusal

if TYPE_CHECKING:
    from tests.emulator.cloud import Call, Cloud

Json = dict[str, Any]
Test = Callable[[Json], bool]
_LARGEST_PAGE = 500
_PARTIAL = "returnPartialSuccess"


def page(cloud: Cloud, call: Call, items: Iterable[Json]) -> Json:
    """Return the answer to a ``list``."""
    order = call.query.get("orderBy", "name")
    if order not in ("name", "creationTimestamp desc"):
        raise invalid("orderBy", order, "It must be 'name' or 'creationTimestamp desc'.")
    times = order != "name"
    keys = ("creationTimestamp", "insertTime") if times else ("name",)
    passing = list(filter(_test(call), items))
    passing.sort(key=lambda item: [str(item.get(key, "")) for key in keys], reverse=times)
    chosen, token = _cut(passing, call)
    scope = "" if call.scope == "global" and "/global/" not in call.method.template else f"/{call.scope}"
    return _body(cloud, call, "List", f"{call.path['project']}{scope}", {"items": chosen} if chosen else {}, token)


def aggregated(cloud: Cloud, call: Call, scoped: Mapping[str, Iterable[Json]]) -> Json:
    """Return the answer to an ``aggregatedList``: `scoped` has all scopes, each with its items."""
    silent = [scope for scope in scoped if scope.rpartition("/")[2] in cloud.silent]
    if not cloud.has_partial_lists and _PARTIAL in call.query:
        raise bad_request(f'Invalid JSON payload received. Unknown name "{_PARTIAL}": Cannot bind query parameter.')
    if silent and call.query.get(_PARTIAL, "").lower() != "true":
        raise refusal("503")
    test, noun = _test(call), call.noun
    pairs = [(scope, item) for scope in scoped if scope not in silent for item in scoped[scope] if test(item)]
    chosen, token = _cut(pairs, call)
    shown: dict[str, Json] = {}
    for scope, item in chosen:
        shown.setdefault(scope, {noun: []})[noun].append(item)
    if "pageToken" not in call.query:
        for scope in scoped:
            text = f"There are no results for scope '{scope}' on this page."
            shown.setdefault(scope, _warning("NO_RESULTS_ON_PAGE", text, scope))
        for scope in silent:
            shown[scope] = _warning("UNREACHABLE", f"The scope '{scope}' could not be reached.", scope)
    unreachable = [f"projects/{cloud.project}/{scope}" for scope in silent]
    body = {"items": shown, **({"unreachables": unreachable} if silent else {})}
    return _body(cloud, call, "AggregatedList", f"{cloud.project}/aggregated", body, token)


def _body(cloud: Cloud, call: Call, suffix: str, place: str, content: Json, token: str) -> Json:
    noun = call.noun
    singular = noun[:-2] if noun == "addresses" else noun[:-3] + "y" if noun.endswith("ies") else noun[:-1]
    path = f"projects/{place}/{noun}"
    shared = {"kind": f"compute#{singular}{suffix}", "id": path, "selfLink": f"{cloud.root}/{path}"}
    return {**shared, **content, **({"nextPageToken": token} if token else {})}


def _test(call: Call) -> Test:
    text = call.query.get("filter", "")
    try:
        return parse_filter(text, discovery().fields(call.method).__contains__)
    except FilterError as error:
        raise invalid("filter", text, f"Invalid list filter expression: {error}.") from error


def _cut(items: list[Any], call: Call) -> tuple[list[Any], str]:
    """Return one page of `items`, and the token of the next; empty: it is the last."""
    size, token = int(call.query.get("maxResults", _LARGEST_PAGE)), call.query.get("pageToken", "0")
    if not 0 <= size <= _LARGEST_PAGE:
        raise invalid("maxResults", size, f"It must be from 0 to {_LARGEST_PAGE}.")
    if not token.isdigit():
        raise invalid("pageToken", token, "The token is not one of this list.")
    end = int(token) + (size or _LARGEST_PAGE)
    return items[int(token) : end], str(end) if end < len(items) else ""


def _warning(code: str, message: str, scope: str) -> Json:
    return {"warning": {"code": code, "message": message, "data": [{"key": "scope", "value": scope}]}}


# --- filters


_TERM = re.compile(
    r"""\s*(?:AND\s+)?\(?\s*([\w.-]+)\s*(!=|=|:|(?<=\s)eq\s|(?<=\s)ne\s)\s*("(?:[^"\\]|\\.)*"|[^\s()"']+)\s*\)?"""
)


class FilterError(Exception):
    """A filter cannot be read."""


def parse_filter(text: str, is_field: Callable[[str], bool]) -> Test:
    """Return the condition that `text` describes: comparisons, all of which must be true.

    Args:
        text: The filter; empty: everything passes.
        is_field: Whether a resource of this kind has a field of that name (the first part of the path).

    Raises:
        FilterError: it cannot be read.
    """
    tests, at, text = [], 0, text.strip()
    while at < len(text):
        term = _TERM.match(text, at)
        if term is None or not is_field(term[1].split(".", 1)[0]):
            raise FilterError(f"unexpected {text[at:]!r}")
        tests.append(_comparison(term[1].split("."), term[2].strip(), term[3]))
        at = term.end()
    return lambda resource: all(test(resource) for test in tests)


def _comparison(path: list[str], operator: str, value: str) -> Test:
    """Return a comparison; ``eq`` and ``ne`` have a regular expression, others a value with ``*`` for any text."""
    is_expression = operator in ("eq", "ne")
    if value.startswith('"'):
        value = re.sub(r"\\(\")" if is_expression else r"\\(.)", r"\1", value[1:-1])
    wanted = value if is_expression else ".*".join(map(re.escape, value.split("*")))
    expression = re.compile(wanted, re.DOTALL | (re.IGNORECASE if operator == ":" else 0))
    passes = expression.search if operator == ":" else expression.fullmatch
    negated = operator in ("!=", "ne")
    return lambda resource: any(passes(text) for text in _values(resource, path)) != negated


def _values(resource: Any, path: list[str]) -> Iterator[str]:
    """Return the texts at `path`, including those of all list elements."""
    if isinstance(resource, list):
        for part in resource:
            yield from _values(part, path)
    elif path:
        if isinstance(resource, dict) and path[0] in resource:
            yield from _values(resource[path[0]], path[1:])
    elif not isinstance(resource, dict):
        yield str(resource).lower() if isinstance(resource, bool) else str(resource)
