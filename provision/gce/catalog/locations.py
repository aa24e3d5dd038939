"""Names of regions and zones: ``us-central1`` is a region, ``us-central1-a`` a zone of it."""

from __future__ import annotations

import re

_REGION = re.compile(r"[a-z]+(-[a-z]+)+[1-9][0-9]*", re.ASCII)
# Zones of AI hardware have longer suffixes: us-central1-ai1a.
_ZONE = re.compile(rf"({_REGION.pattern})-[a-z][a-z0-9]*", re.ASCII)


def is_zone(text: str) -> bool:
    """Whether `text` has the form of a zone's name, whether or not there is one."""
    return _ZONE.fullmatch(text) is not None


def is_region(text: str) -> bool:
    """Whether `text` has the form of a region's name, whether or not there is one."""
    return _REGION.fullmatch(text) is not None


def is_ai_zone(zone: str) -> bool:
    """Return whether `zone` is a zone for AI, ``us-central1-ai1a``, in which a request to a region makes nothing.

    Source: ``LocationPolicy.locations`` in the discovery document of the Compute Engine API.
    """
    match = _ZONE.fullmatch(zone)
    return match is not None and zone[len(match[1]) + 1 :].startswith("ai")


def region_of(zone: str) -> str:
    """The region in which `zone` lies, ``us-central1`` of ``us-central1-a``.

    Raises:
        ValueError: `zone` is not a zone's name.
    """
    match = _ZONE.fullmatch(zone)
    if match is None:
        raise ValueError(f"{zone!r} is not a zone; zones are called like us-central1-a")
    return match[1]
