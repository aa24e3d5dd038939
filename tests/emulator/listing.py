"""Lists: filtered, ordered, page by page; of one scope, or of all that answer.

Source: ``unreachables`` and ``warning`` of aggregated lists in the discovery document, and the parameter
``returnPartialSuccess`` in https://cloud.google.com/compute/docs/reference/rest/v1/instances/aggregatedList.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tests.emulator.discovery import discovery
from tests.emulator.errors import bad_request, invalid, refusal
from tests.emulator.filters import FilterError, Test, parse_filter

if TYPE_CHECKING:
    from tests.emulator.cloud import Call, Cloud

Json = dict[str, Any]
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
