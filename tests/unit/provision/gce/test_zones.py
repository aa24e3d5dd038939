"""The order in which zones are tried, and the effect of failures on it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provision.gce.api.prices import table
from provision.gce.catalog.machines import resolved
from provision.gce.diagnosis import Scope
from provision.gce.options import GceOptions
from provision.gce.zones import candidates, remaining

OFFERED = [
    *("us-central1-f", "us-central1-a", "asia-east1-a", "asia-east1-c", "europe-west2-b", "me-central2-a"),
    "us-central1-ai1a",
]
T4 = resolved(GceOptions(gpu="t4"))
ANYWHERE = replace(T4, anywhere=True)


@pytest.mark.parametrize(
    ("cloud", "zones"),
    [
        (T4, "us-central1-a us-central1-f us-central1-ai1a"),
        (
            ANYWHERE,
            "us-central1-a us-central1-f asia-east1-a asia-east1-c europe-west2-b me-central2-a us-central1-ai1a",
        ),
        (replace(ANYWHERE, max_price_usd_h=0.62), "us-central1-a us-central1-f asia-east1-a asia-east1-c"),
        (
            replace(T4, zones=("europe-west2", "us-central1-f", "asia-east1")),
            "europe-west2-b us-central1-f asia-east1-a asia-east1-c",
        ),
        (replace(T4, zones=("us-central1-f", "us-central1")), "us-central1-f us-central1-a us-central1-ai1a"),
        (replace(T4, zones=("us-east1", "us-central1-b")), ""),
    ],
)
def test_the_cheapest_zones_or_those_of_the_user_come_first(cloud: GceOptions, zones: str) -> None:
    assert candidates(cloud, OFFERED, table()) == zones.split()


@pytest.mark.parametrize(
    ("scope", "preferred", "left"),
    [
        (Scope.RETRY, (), "us-a1-a us-a1-b us-b1-a us-b1-b"),
        (Scope.ZONE, (), "us-a1-b us-b1-a us-b1-b"),
        (Scope.ZONE, ("us-b1-b", "us-a1-a", "us-c1-a"), "us-b1-b us-a1-b us-b1-a"),
        (Scope.REGION, (), "us-b1-a us-b1-b"),
        (Scope.EVERYTHING, ("us-b1-b",), ""),
    ],
)
def test_a_failure_removes_the_zones_where_it_would_happen_again(
    scope: Scope, preferred: tuple[str, ...], left: str
) -> None:
    zones = ["us-a1-a", "us-a1-b", "us-b1-a", "us-b1-b"]
    assert remaining(zones, "us-a1-a", scope, preferred) == left.split()
