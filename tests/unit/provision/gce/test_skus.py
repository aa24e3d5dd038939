"""Rates that follow from SKUs of the Cloud Billing catalog."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.gce.catalog.machines import resolved
from provision.gce.catalog.prices import ADDRESS, PRICED_AT, from_catalog, rates_of, table
from provision.gce.options import GceOptions
from tests.emulator.catalog.skus import compute_skus

ZONE = "us-central1-a"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def sku(description: str, usd: float, unit: str = "h", *, usage: str = "OnDemand", **changes: Any) -> dict[str, Any]:
    """Return the fields of a Sku that are read."""
    nanos = round(usd * 1e9)
    price = {"currencyCode": "USD", "units": str(nanos // 10**9), "nanos": nanos % 10**9}
    expression = {"usageUnit": unit, "tieredRates": [{"unitPrice": price}]}
    return {
        "description": description,
        "category": {"usageType": usage},
        "serviceRegions": ["us-central1"],
        "pricingInfo": [{"pricingExpression": expression}],
        **changes,
    }


def price(skus: Iterable[Any], **options: Any) -> float | None:
    """Return the price of a machine with its GPUs according to these SKUs."""
    parts = from_catalog(rates_of(skus), "").price(resolved(GceOptions(**options)), ZONE)
    return None if parts is None else parts.machine + parts.gpu


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"machine_type": "n1-standard-4"}, 0.19),
        ({"machine_type": "n2-standard-4"}, 0.194236),
        ({"machine_type": "e2-standard-4"}, 0.134032),
        ({"gpu": "t4"}, 0.19 + 0.35),
        ({"gpu": "t4", "spot": True}, 4 * (0.00698 + 3.75 * 0.000936) + 0.14),
        ({"gpu": "l4", "machine_type": "g2-standard-4"}, 0.7068),  # list price of Google
        ({"gpu": "a100"}, 3.6734),  # list price of Google
        ({"gpu": "a100-80gb"}, 12 * 0.031611 + 170 * 0.004237 + 375 * 0.08 / 730 + 3.92808),
        ({"gpu": "h100", "gpus": 8}, 208 * 0.02928 + 1872 * 0.002552 + 6000 * 0.08 / 730 + 8 * 9.796552),
        ({"gpu": "h100", "gpus": 1, "spot": True}, 26 * 0.008784 + 234 * 0.000766 + 750 * 0.048 / 730 + 2.938966),
        ({"gpu": "h100-mega"}, 208 * 0.02928 + 1872 * 0.002552 + 6000 * 0.08 / 730 + 8 * 10.0794),
        ({"gpu": "h200"}, 224 * 0.02928 + 2952 * 0.002552 + 12000 * 0.08 / 730 + 8 * 9.362),
        ({"gpu": "b200"}, 8 * 16.1),
        ({"gpu": "b200", "spot": True}, 8 * 6.44),
        ({"gpu": "a100", "flex_start": True}, 12 * 0.01739 + 85 * 0.00233 + 1.61365),
        (
            {"gpu": "h100", "gpus": 8, "flex_start": True},
            208 * 0.010934 + 1872 * 0.000952 + 6000 * 0.06 / 730 + 8 * 4.200761,
        ),
        ({"gpu": "b200", "flex_start": True}, 8 * 8.05),
        ({"gpu": "l4", "machine_type": "g2-standard-4", "flex_start": True}, 0.7068),  # as on demand
        ({"gpu": "rtx-pro-6000"}, 48 * 0.02989 + 180 * 0.00347 + 1500 * 0.08 / 730 + 4.5),
    ],
)
def test_the_price_of_a_machine_is_the_sum_of_its_parts(options: dict[str, Any], expected: float) -> None:
    assert price(compute_skus(), **options) == pytest.approx(expected, rel=1e-4)


def test_disks_and_addresses_have_rates_after_their_free_tier() -> None:
    parts = from_catalog(rates_of(compute_skus()), "2026-11-23").price(
        resolved(GceOptions(disk_type="pd-standard", spot=True)), ZONE
    )
    assert parts is not None
    assert parts.disk == pytest.approx(100 * 0.04 / 730)
    assert parts.address == 0.0025


@pytest.mark.parametrize(("gpu", "is_exact"), [("a100", True), ("b200", True), ("l4", False), ("h100-mega", False)])
def test_flex_start_vms_without_rates_cost_at_most_the_price_on_demand(gpu: str, is_exact: bool) -> None:
    prices = from_catalog(rates_of(compute_skus()), "")
    cloud = resolved(GceOptions(gpu=gpu, flex_start=True, max_duration_s=3600))
    assert prices.is_exact(cloud, ZONE) is is_exact
    assert prices.is_exact(replace(cloud, flex_start=False), ZONE)
    assert not table().is_exact(cloud, ZONE)


def test_images_cost_what_the_catalog_lists_where_they_are_stored() -> None:
    prices = from_catalog(rates_of(compute_skus()), "")
    assert prices.image_usd_h(10, "europe-west1") == pytest.approx(10 * 0.05 * 1.10004 / 730)
    assert prices.image_usd_h(10, "asia") == table().image_usd_h(10, "") == pytest.approx(10 * 0.05 / 730)


CORE, RAM = "N2 Instance Core running in Americas", "N2 Instance Ram running in Americas"


@pytest.mark.parametrize(
    "ambiguous",
    [
        sku("N2 Custom Instance Core running in Americas", 9.0),
        sku("N2 Sole Tenancy Instance Core running in Americas", 9.0),
        sku("Commitment v1: N2 Cpu in Americas for 1 Year", 9.0, usage="Commit1Yr"),
        sku(CORE, 9.0, usage="Commit1Yr"),
        sku(CORE, 9.0, "GiBy.mo"),
        sku(CORE, 9.0, serviceRegions=["europe-west1"]),
        sku(CORE, 0.0),
        sku(CORE, 9.0, pricingInfo=[]),
        sku(CORE, 9.0, category=None),
        sku(CORE, 9.0, serviceRegions=None),
        sku("Spot Preemptible N2 Instance Core running in Americas", 9.0, usage="Preemptible"),
        sku("Spot Preemptible N2 Instance Ram running in Americas", 9.0, "GiBy.h"),
    ],
)
def test_skus_that_look_alike_do_not_count(ambiguous: dict[str, Any]) -> None:
    pair = [sku(CORE, 0.03), sku(RAM, 0.004, "GiBy.h")]
    assert price([*pair, ambiguous], machine_type="n2-standard-4") == pytest.approx(4 * (0.03 + 4 * 0.004))


def test_prices_in_another_currency_do_not_count() -> None:
    other = sku(CORE, 0.03)
    other["pricingInfo"][0]["pricingExpression"]["tieredRates"][0]["unitPrice"]["currencyCode"] = "EUR"
    assert rates_of([other, sku(RAM, 0.004, "GiBy.h")]) == {}


def test_a_machine_without_the_price_of_a_part_has_no_price() -> None:
    assert rates_of([sku(CORE, 0.03)]) == {}
    assert price([sku(CORE, 0.03)], machine_type="n2-standard-4") is None
    only_spot = [
        sku("Spot Preemptible N2 Instance Core running in Americas", 0.01, usage="Preemptible"),
        sku("Spot Preemptible N2 Instance Ram running in Americas", 0.001, "GiBy.h", usage="Preemptible"),
    ]
    assert price(only_spot, machine_type="n2-standard-4") is None
    assert price(only_spot, machine_type="n2-standard-4", spot=True) == pytest.approx(4 * 0.014)


def test_items_that_the_catalog_lacks_keep_the_rates_of_the_table() -> None:
    prices = from_catalog(rates_of([sku(CORE, 0.03), sku(RAM, 0.004, "GiBy.h")]), "2026-11-23")
    assert prices.priced_at == "2026-11-23" > PRICED_AT
    cloud = resolved(GceOptions())
    assert prices.price(cloud, ZONE) == table().price(cloud, ZONE)
    parts = prices.price(resolved(GceOptions(machine_type="n2-standard-4")), ZONE)
    assert parts is not None
    assert parts.address == table().rates[ADDRESS, ""].on_demand


def test_skus_of_a_continent_do_not_count() -> None:
    rates = rates_of([sku(CORE, 0.03), sku(RAM, 0.004, "GiBy.h"), sku("Storage PD Capacity", 0.04, "GiBy.mo")])
    everywhere = rates_of([sku("Storage PD Capacity", 9.0, "GiBy.mo", serviceRegions=["us", "asia"])])
    prices = from_catalog({**everywhere, **rates}, "2026-11-23")
    assert prices.knows(resolved(GceOptions(machine_type="n2-standard-4")))
    assert not prices.knows(resolved(GceOptions(machine_type="c3-standard-4")))


@given(st.randoms(use_true_random=False), st.floats(1e-6, 100), st.floats(1e-6, 10))
def test_the_order_of_skus_does_not_matter(order: random.Random, core: float, memory: float) -> None:
    skus = [*compute_skus(), sku(CORE, core), sku(RAM, memory, "GiBy.h")]
    expected = rates_of(skus)
    order.shuffle(skus)
    assert rates_of(skus) == expected
    # The higher one counts if a part has several prices.
    usd_h = max(core, 0.031611) + 4 * max(memory, 0.004237)
    assert expected["n2-standard", "us-central1"].on_demand == pytest.approx(usd_h, rel=1e-3, abs=1e-8)


DAMAGED = st.builds(
    lambda part: {**sku(CORE, 1.0), **part},
    st.dictionaries(st.sampled_from(("description", "category", "serviceRegions", "pricingInfo")), JSON),
)


@given(st.lists(JSON | DAMAGED, max_size=5))
def test_no_answer_is_an_error(answer: list[Any]) -> None:
    for rate in rates_of(answer).values():
        assert all(usd_h is None or usd_h >= 0 for usd_h in rate)
