"""Prices of instances, from the table of the program and from SKUs of the Cloud Billing catalog."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.gce.api.prices import Prices, from_catalog, rates_of, table
from provision.gce.catalog.gpus import GPUS
from provision.gce.catalog.machines import resolved
from provision.gce.catalog.names import is_zone
from provision.gce.options import GceOptions
from tests.emulator.catalog import compute_skus

ZONE = "us-central1-a"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def machine_usd_h(prices: Prices, zone: str = ZONE, **options: Any) -> float | None:
    """Return the price of a machine with its GPUs, without disk and address."""
    parts = prices.price(resolved(GceOptions(**options)), zone)
    return None if parts is None else parts.machine + parts.gpu


@pytest.mark.parametrize(
    ("zone", "options", "expected"),
    [
        ("us-central1-a", {"gpu": "t4"}, 0.540),
        ("us-central1-a", {"gpu": "t4", "spot": True}, 0.233),
        ("us-central1-b", {"gpu": "v100", "gpus": 2}, 0.38 + 2 * 2.48),
        ("us-east1-b", {"gpu": "t4"}, None),  # a zone without T4
        (ZONE, {"machine_type": "custom-4-8192"}, None),
        (ZONE, {"disk_type": "hyperdisk-extreme"}, None),
    ],
)
def test_prices_of_the_table(zone: str, options: dict[str, Any], expected: float | None) -> None:
    assert machine_usd_h(table(), zone, **options) == (expected and pytest.approx(expected, abs=0.0006))


def test_the_table_is_sound() -> None:
    rates = {key: rate for key, rate in table().rates.items() if key[1]}
    families = {"n1", "e2", "g2", "a2"}
    for (item, zone), rate in rates.items():
        assert is_zone(zone)
        assert 0 < (rate.spot or 0) < (rate.on_demand or 0) < 10, (item, zone)
        assert item in {gpu.accelerator for gpu in GPUS.values()} or item.partition("-")[0] in families


def test_disk_and_address_are_part_of_the_price() -> None:
    parts = table().price(resolved(GceOptions(gpu="t4")), ZONE)
    small = resolved(GceOptions(spot=True, disk_gb=10, disk_type="pd-standard"))
    spot, inside = table().price(small, ZONE), table().price(replace(small, external=False), ZONE)
    assert parts is not None
    assert parts.address == 0.005
    assert parts.disk == pytest.approx(100 * 0.15 / 730)
    assert parts.usd_h == pytest.approx(0.540 + 0.0205 + 0.005, abs=0.0006)
    assert parts.stopped_usd_h == pytest.approx(0.0205, abs=0.0001)
    assert spot is not None
    assert inside is not None
    assert spot.disk == inside.disk == pytest.approx(10 * 0.06 / 730)
    assert (spot.address, inside.address) == (0.0025, 0.0)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"machine_type": "n2-standard-4"}, 0.194236),
        ({"gpu": "t4", "spot": True}, 4 * (0.00698 + 3.75 * 0.000936) + 0.14),
        ({"gpu": "l4", "machine_type": "g2-standard-4"}, 0.7068),  # list price of Google
        ({"gpu": "a100"}, 3.6734),  # list price of Google
        ({"gpu": "h100", "gpus": 8}, 208 * 0.02928 + 1872 * 0.002552 + 6000 * 0.08 / 730 + 8 * 9.796552),
        ({"gpu": "a100", "flex_start": True}, 12 * 0.01739 + 85 * 0.00233 + 1.61365),
        ({"gpu": "b200", "flex_start": True}, 8 * 8.05),
        ({"gpu": "l4", "machine_type": "g2-standard-4", "flex_start": True}, 0.7068),  # as on demand
        ({"gpu": "rtx-pro-6000"}, 48 * 0.02989 + 180 * 0.00347 + 1500 * 0.08 / 730 + 4.5),
    ],
)
def test_the_price_of_a_machine_is_the_sum_of_its_parts(options: dict[str, Any], expected: float) -> None:
    prices = from_catalog(rates_of(compute_skus()), "2026-11-23")
    assert machine_usd_h(prices, **options) == pytest.approx(expected, rel=1e-4)


CORE, RAM = "N2 Instance Core running in Americas", "N2 Instance Ram running in Americas"


def sku(description: str, usd: float, unit: str = "h", *, usage: str = "OnDemand", **changes: Any) -> dict[str, Any]:
    """Return the fields of a Sku that are read."""
    price = {"currencyCode": changes.pop("currency", "USD"), "units": str(int(usd)), "nanos": round(usd % 1 * 1e9)}
    return {
        "description": description,
        "category": {"usageType": usage},
        "serviceRegions": ["us-central1"],
        "pricingInfo": [{"pricingExpression": {"usageUnit": unit, "tieredRates": [{"unitPrice": price}]}}],
        **changes,
    }


def n2_usd_h(skus: Iterable[Any]) -> float | None:
    return machine_usd_h(from_catalog(rates_of(skus), ""), machine_type="n2-standard-4")


@pytest.mark.parametrize(
    "ambiguous",
    [
        sku("N2 Custom Instance Core running in Americas", 9.0),
        sku(CORE, 9.0, usage="Commit1Yr"),
        sku(CORE, 9.0, "GiBy.mo"),
        sku(CORE, 9.0, serviceRegions=["europe-west1"]),
        sku(CORE, 0.0),
        sku(CORE, 9.0, currency="EUR"),
        sku("Spot Preemptible N2 Instance Core running in Americas", 9.0, usage="Preemptible"),
    ],
)
def test_skus_that_look_alike_do_not_count(ambiguous: dict[str, Any]) -> None:
    memory = sku(RAM, 0.004, "GiBy.h")
    assert n2_usd_h([sku(CORE, 0.03), memory, ambiguous]) == pytest.approx(4 * (0.03 + 4 * 0.004))
    assert n2_usd_h([memory, ambiguous]) is None


DAMAGED = st.builds(
    lambda part: {**sku(CORE, 1.0), **part},
    st.dictionaries(st.sampled_from(("description", "category", "serviceRegions", "pricingInfo")), JSON),
)


@given(st.lists(JSON | DAMAGED, max_size=5))
def test_no_answer_is_an_error(answer: list[Any]) -> None:
    for rate in rates_of(answer).values():
        assert all(usd_h is None or usd_h >= 0 for usd_h in rate)
