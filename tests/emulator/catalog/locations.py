"""Some regions and their zones."""

from __future__ import annotations

from typing import Any

from tests.emulator.catalog.entries import entry

Json = dict[str, Any]

REGIONS = {
    "europe-west1": ("europe-west1-b", "europe-west1-c", "europe-west1-d"),
    "europe-west2": ("europe-west2-a", "europe-west2-b"),
    "us-central1": ("us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f", "us-central1-ai1a"),
    "us-west4": ("us-west4-a", "us-west4-b"),
}


AI_ZONES = ("us-central1-ai1a",)
"""Zones with only the newest accelerators."""


ZONES = {zone: region for region, zones in REGIONS.items() for zone in zones}


def zone_body(base: str, zone: str) -> Json:
    """Return a Zone; `base` is the URL of the project."""
    return {
        **entry("zone", zone),
        "status": "UP",
        "region": f"{base}/regions/{ZONES[zone]}",
        "selfLink": f"{base}/zones/{zone}",
        "availableCpuPlatforms": ["Intel Cascade Lake", "Intel Skylake"],
        "supportsPzs": False,
    }


def region_body(base: str, region: str, quotas: list[Json]) -> Json:
    """Return a Region."""
    return {
        **entry("region", region),
        "status": "UP",
        "zones": [f"{base}/zones/{zone}" for zone in REGIONS[region]],
        "quotas": quotas,
        "selfLink": f"{base}/regions/{region}",
        "supportsPzs": False,
    }
