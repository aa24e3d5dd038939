"""Parse names of regions (``us-central1``) and zones (``us-central1-a``)."""

from __future__ import annotations

import re
from collections.abc import Iterable

_REGION = re.compile(r"[a-z]+(-[a-z]+)+[1-9][0-9]*", re.ASCII)
# Zones of AI hardware have longer suffixes: us-central1-ai1a.
_ZONE = re.compile(rf"({_REGION.pattern})-[a-z][a-z0-9]*", re.ASCII)


def is_zone(text: str) -> bool:
    """Return whether `text` has the form of a zone's name; the zone need not exist."""
    return _ZONE.fullmatch(text) is not None


def is_region(text: str) -> bool:
    """Return whether `text` has the form of a region's name; the region need not exist."""
    return _REGION.fullmatch(text) is not None


def is_ai_zone(zone: str) -> bool:
    """Return whether `zone` is a zone for AI, ``us-central1-ai1a``, which regional requests do not use.

    Source: ``LocationPolicy.locations`` in the discovery document of the Compute Engine API.
    """
    match = _ZONE.fullmatch(zone)
    return match is not None and zone[len(match[1]) + 1 :].startswith("ai")


def region_of(zone: str) -> str:
    """Return the region of `zone`, ``us-central1`` for ``us-central1-a``.

    Raises:
        ValueError: `zone` is not a zone's name.
    """
    match = _ZONE.fullmatch(zone)
    if match is None:
        raise ValueError(f"{zone!r} is not a zone; zones are called like us-central1-a")
    return match[1]


def continent_of(region: str) -> str:
    """Return the continent of `region`: the first word of its name; ``us`` belongs to ``northamerica``."""
    word = region.partition("-")[0]
    return "northamerica" if word == "us" else word


def regions_of(places: Iterable[str]) -> set[str]:
    """Return the regions that a list of zones and regions names."""
    return {region_of(place) if is_zone(place) else place for place in places}
