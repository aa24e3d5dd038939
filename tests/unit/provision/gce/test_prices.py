"""Price estimates compared with published prices, and the result if no price is known."""

from __future__ import annotations

import datetime
from dataclasses import replace

import pytest

from provision.gce.catalog.gpus import GPUS
from provision.gce.catalog.machines import resolved
from provision.gce.catalog.names import is_zone
from provision.gce.catalog.prices import PRICED_AT, table
from provision.gce.options import GceOptions

T4 = resolved(GceOptions(gpu="t4"))


def price(cloud: GceOptions, zone: str) -> float | None:
    """Return the price without disk and address."""
    parts = table().price(cloud, zone)
    return None if parts is None else parts.machine + parts.gpu


@pytest.mark.parametrize(
    ("zone", "on_demand", "spot", "machine_alone"),
    [
        ("us-central1-a", 0.540, 0.233, 0.190),
        ("europe-west2-b", 0.644, 0.158, 0.2448),
        ("europe-west1-d", 0.559, 0.2025, 0.209),
        ("us-west4-a", 0.584, 0.188, 0.214),
    ],
)
def test_n1_with_a_t4(zone: str, on_demand: float, spot: float, machine_alone: float) -> None:
    assert price(T4, zone) == pytest.approx(on_demand, abs=0.0006)
    assert price(resolved(GceOptions(gpu="t4", spot=True)), zone) == pytest.approx(spot, abs=0.0006)
    assert price(resolved(GceOptions()), zone) == pytest.approx(machine_alone, abs=0.0006)


@pytest.mark.parametrize(
    ("cloud", "expected"),
    [
        (GceOptions(gpu="l4", machine_type="g2-standard-4"), 0.7068),  # Google's list price of g2-standard-4
        (GceOptions(gpu="a100"), 3.6734),  # Google's list price of a2-highgpu-1g
        (GceOptions(gpu="a100", gpus=8), 29.3871),
        (GceOptions(machine_type="e2-standard-4"), 0.1340),
        (GceOptions(gpu="v100", gpus=2), 0.38 + 2 * 2.48),
    ],
)
def test_other_machines_in_us_central1(cloud: GceOptions, expected: float) -> None:
    assert price(resolved(cloud), "us-central1-b") == pytest.approx(expected, rel=0.001)


def test_gpus_and_vcpus_are_counted() -> None:
    two = price(resolved(GceOptions(gpu="t4", gpus=2)), "us-central1-a")
    single = price(T4, "us-central1-a")
    assert single is not None
    assert two == pytest.approx(2 * single)


@pytest.mark.parametrize(
    ("cloud", "zone"),
    [
        (GceOptions(gpu="t4"), "us-central1-z"),  # no such zone
        (GceOptions(gpu="t4"), "us-east1-b"),  # a zone without T4
        (GceOptions(machine_type="n1-megamem-96"), "us-central1-a"),
        (GceOptions(machine_type="n2-custom-4-8192"), "us-central1-a"),
        (GceOptions(machine_type="custom-4-8192"), "us-central1-a"),
        (GceOptions(machine_type="a4-highgpu-8g"), "us-central1-a"),
        (GceOptions(gpu="h100"), "us-central1-a"),
        (GceOptions(machine_type="n1-standard-4", gpu="nvidia-unheard-of", gpus=1), "us-central1-a"),
    ],
)
def test_machines_without_a_table_entry_have_no_price(cloud: GceOptions, zone: str) -> None:
    assert price(cloud if cloud.gpu == "nvidia-unheard-of" else resolved(cloud), zone) is None


def test_the_table_is_sound() -> None:
    rates = {key: rate for key, rate in table().rates.items() if key[1]}
    assert len({item for item, _ in rates}) >= 9
    for (item, zone), rate in rates.items():
        assert is_zone(zone), zone
        assert rate.spot is not None
        assert rate.on_demand is not None
        assert 0 < rate.spot < rate.on_demand < 10, (item, zone)
        assert item in {gpu.accelerator for gpu in GPUS.values()} or item.partition("-")[0] in {
            "n1",
            "e2",
            "g2",
            "a2",
        }
    t4_zones = [zone for item, zone in rates if item == "nvidia-tesla-t4"]
    assert len(t4_zones) == 50
    assert all(price(T4, zone) is not None for zone in t4_zones)


def test_disk_and_address_are_part_of_the_price() -> None:
    parts = table().price(T4, "us-central1-a")
    assert parts is not None
    assert parts.disk == pytest.approx(100 * 0.15 / 730)
    assert parts.address == 0.005
    assert parts.usd_h == pytest.approx(0.540 + 0.0205 + 0.005, abs=0.0006)
    assert parts.stopped_usd_h == pytest.approx(0.0205, abs=0.0001)


def test_smaller_disks_and_spot_addresses_cost_less_and_none_costs_nothing() -> None:
    cloud = resolved(GceOptions(spot=True, disk_gb=10, disk_type="pd-standard"))
    parts = table().price(cloud, "us-central1-a")
    inside = table().price(replace(cloud, external=False), "us-central1-a")
    assert parts is not None
    assert inside is not None
    assert parts.disk == inside.disk == pytest.approx(10 * 0.06 / 730)
    assert (parts.address, inside.address) == (0.0025, 0.0)


def test_a_disk_without_a_rate_makes_the_price_unknown() -> None:
    cloud = resolved(GceOptions(disk_type="hyperdisk-extreme"))
    assert table().price(cloud, "us-central1-a") is None


def test_the_date_of_the_prices_is_valid() -> None:
    assert datetime.date.fromisoformat(PRICED_AT) >= datetime.date(2026, 11, 1)
