"""Lists: filtered, ordered, page by page; of one scope or of all."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from typing import Any

from tests.emulator import outage
from tests.emulator.cloud import Call, Cloud
from tests.emulator.discovery import discovery
from tests.emulator.failures import invalid
from tests.emulator.filters import FilterError, Test, parse_filter

Json = dict[str, Any]
_LARGEST_PAGE = 500


def page(cloud: Cloud, call: Call, items: Iterable[Json]) -> Json:
    """The answer to a ``list``."""
    passing = _ordered(list(filter(_test(call), items)), call)
    chosen, token = _cut(passing, call)
    scope = "" if call.scope == "global" and not _is_global(call) else f"/{call.scope}"
    path = f"projects/{call.path.get('project', cloud.project)}{scope}/{_noun(call)}"
    body: Json = {"kind": _kind(call, "List"), "id": path, "selfLink": f"{cloud.root}/{path}"}
    if chosen:
        body["items"] = chosen
    if token:
        body["nextPageToken"] = token
    return body


def aggregated(cloud: Cloud, call: Call, scoped: Mapping[str, Iterable[Json]]) -> Json:
    """The answer to an ``aggregatedList``: `scoped` has all scopes, each with its items."""
    test = _test(call)
    silent = outage.silent_scopes(cloud, scoped)
    scoped = outage.answering(cloud, call, scoped)
    pairs = [(scope, item) for scope, items in scoped.items() for item in items if test(item)]
    chosen, token = _cut(pairs, call)
    noun = _noun(call)
    shown: dict[str, Json] = {}
    for scope, item in chosen:
        shown.setdefault(scope, {noun: []})[noun].append(item)
    if "pageToken" not in call.query:
        for scope in scoped:
            shown.setdefault(scope, _empty(scope))
        shown.update({scope: outage.warning(scope) for scope in silent})
    path = f"projects/{cloud.project}/aggregated/{noun}"
    body: Json = {
        "kind": _kind(call, "AggregatedList"),
        "id": path,
        "items": shown,
        "selfLink": f"{cloud.root}/{path}",
    }
    if token:
        body["nextPageToken"] = token
    if silent:
        body["unreachables"] = [f"projects/{cloud.project}/{scope}" for scope in silent]
    return body


def _test(call: Call) -> Test:
    text = call.query.get("filter", "")
    document = discovery()
    fields = document.properties(document.items(call.method))
    try:
        return parse_filter(text, fields.__contains__)
    except FilterError as error:
        raise invalid("filter", text, f"Invalid list filter expression: {error}.") from error


def _ordered(items: list[Json], call: Call) -> list[Json]:
    order = call.query.get("orderBy", "name")
    if order == "creationTimestamp desc":
        return sorted(
            items, key=lambda item: str(item.get("creationTimestamp", item.get("insertTime"))), reverse=True
        )
    if order != "name":
        raise invalid("orderBy", order, "It must be 'name' or 'creationTimestamp desc'.")
    return sorted(items, key=lambda item: str(item["name"]))


def _cut(items: list[Any], call: Call) -> tuple[list[Any], str]:
    """One page of `items`, and the token of the next; empty: it is the last."""
    size = int(call.query.get("maxResults", _LARGEST_PAGE))
    if not 0 <= size <= _LARGEST_PAGE:
        raise invalid("maxResults", size, f"It must be from 0 to {_LARGEST_PAGE}.")
    size = size or _LARGEST_PAGE
    token = call.query.get("pageToken", "")
    try:
        start = int(base64.urlsafe_b64decode(token)) if token else 0
    except (binascii.Error, ValueError) as error:
        raise invalid("pageToken", token, "The token is not one of this list.") from error
    end = start + size
    following = base64.urlsafe_b64encode(str(end).encode()).decode() if end < len(items) else ""
    return items[start:end], following


def _noun(call: Call) -> str:
    noun = call.method.id.split(".")[1]
    return "operations" if noun.endswith("Operations") else noun


def _is_global(call: Call) -> bool:
    return "/global/" in call.method.template


def _kind(call: Call, suffix: str) -> str:
    noun = _noun(call)
    singular = (
        noun[:-2] if noun == "addresses" else noun.removesuffix("ies") + "y" if noun.endswith("ies") else noun[:-1]
    )
    return f"compute#{singular}{suffix}"


def _empty(scope: str) -> Json:
    kind, _, name = scope.partition("/")
    key = {"zones": "zone", "regions": "region"}.get(kind, "scope")
    return {
        "warning": {
            "code": "NO_RESULTS_ON_PAGE",
            "message": f"There are no results for scope '{scope}' on this page.",
            "data": [{"key": key if name else "scope", "value": scope}],
        }
    }
