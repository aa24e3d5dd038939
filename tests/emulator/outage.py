"""Zones and regions that do not answer: calls to them fail, and lists of all zones report that they are missing.

Source: ``unreachables`` and ``warning`` of aggregated lists in the discovery document, and the parameter
``returnPartialSuccess`` in https://cloud.google.com/compute/docs/reference/rest/v1/instances/aggregatedList.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.emulator.catalog.locations import REGIONS, ZONES
from tests.emulator.cloud import Call, Cloud
from tests.emulator.failures import backend_error, bad_request

Json = dict[str, Any]
_PARTIAL = "returnPartialSuccess"


@dataclass
class Outage:
    """The zones and regions that do not answer.

    Attributes:
        zones: Their names.
        has_partial: Lists of all zones have the parameter ``returnPartialSuccess``, which the discovery document of
            November 2026 does not list.
    """

    zones: set[str] = field(default_factory=set)
    has_partial: bool = True

    def begin(self, zones: Iterable[str]) -> None:
        """Let only these zones and regions not answer; none: the outage is over.

        Raises:
            ValueError: a zone does not exist.
        """
        if unknown := set(zones) - ZONES.keys() - set(REGIONS):
            raise ValueError(f"these zones do not exist: {', '.join(sorted(unknown))}")
        self.zones = set(zones)


def check_zone(cloud: Cloud, call: Call) -> None:
    """Raise Refusal if the zone or region of a call does not answer."""
    if {call.path.get("zone"), call.path.get("region")} & cloud.part(Outage).zones:
        raise backend_error(503)


def answering(cloud: Cloud, call: Call, scoped: Mapping[str, Iterable[Json]]) -> Mapping[str, Iterable[Json]]:
    """Return the items of those scopes that answer.

    Raises:
        Refusal: others do not, and the call does not accept a part of the items.
    """
    if not cloud.part(Outage).has_partial and _PARTIAL in call.query:
        raise bad_request(f'Invalid JSON payload received. Unknown name "{_PARTIAL}": Cannot bind query parameter.')
    silent = silent_scopes(cloud, scoped)
    if silent and call.query.get(_PARTIAL, "").lower() != "true":
        raise backend_error(503)
    return {scope: items for scope, items in scoped.items() if scope not in silent}


def silent_scopes(cloud: Cloud, scopes: Iterable[str]) -> list[str]:
    """Return those of `scopes`, ``zones/Z`` or ``regions/R``, that do not answer."""
    return [scope for scope in scopes if scope.rpartition("/")[2] in cloud.part(Outage).zones]


def warning(scope: str) -> Json:
    """Return the warning that a list has in place of the items of a scope."""
    return {
        "warning": {
            "code": "UNREACHABLE",
            "message": f"The scope '{scope}' could not be reached.",
            "data": [{"key": "scope", "value": scope}],
        }
    }
