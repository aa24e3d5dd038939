"""Prices come from the Cloud Billing catalog, and from the table of the program if that cannot be read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleet.state import Store
from provision.gce.api.client import Timing
from provision.gce.api.prices import PRICED_AT
from provision.gce.options import GceOptions
from provision.gce.provider import GceProvider
from provision.model import FleetSpec, Quote
from tests.cloud.customer import QUICK
from tests.emulator import Emulator
from tests.program import Program, wait_for

LISTING = "cloudbilling.services.skus.list"
CATALOG = "the Cloud Billing catalog"
USD_H = 0.18999900 + 100 * 0.1 / 730 + 0.005
"""Of an n1-standard-4 in us-central1 with a disk and an address, according to the catalog."""

Ask = Callable[..., Quote]


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    return tmp_path / "gce" / "prices.json"


@pytest.fixture
def ask(emulator: Emulator, tmp_path: Path, prices: Path) -> Ask:
    """Return a function that quotes a fleet of one worker, each time like a new command."""
    store = Store(tmp_path / "state")

    def quote(timing: Timing = QUICK, **options: Any) -> Quote:
        cloud = GceOptions(project="proj-1", endpoint=emulator.url, **{"zones": ("us-central1-a",), **options})
        provider = GceProvider(store.owner(), "me", store, cloud, timing, price_file=prices)
        return provider.quote(FleetSpec("demo", "gce", 1, options=cloud), ["worker-0"])

    return quote


def test_prices_are_read_page_by_page_and_kept_for_a_day(emulator: Emulator, ask: Ask, prices: Path) -> None:
    emulator.cloud.sku_page = 100
    quote = ask()
    assert quote.offers[0].price_usd_h == pytest.approx(USD_H, abs=1e-6)
    assert quote.price_source == CATALOG
    assert quote.priced_at > PRICED_AT
    calls = emulator.api.calls[LISTING]
    assert calls == 4
    assert ask() == quote
    assert emulator.api.calls[LISTING] == calls
    kept = json.loads(prices.read_text())
    prices.write_text(json.dumps({**kept, "read_at": kept["read_at"] - 24 * 3600 - 1}))
    assert ask() == quote
    assert emulator.api.calls[LISTING] == 2 * calls


def test_a_damaged_file_is_ignored(ask: Ask, prices: Path) -> None:
    prices.parent.mkdir()
    for content in (b"{", b"null", b'{"format": 0}', b"\xff"):
        prices.write_bytes(content)
        assert ask().price_source == CATALOG
        assert json.loads(prices.read_text())["rates"]


@pytest.mark.parametrize("fault", ["403-disabled", "503"])
def test_the_table_replaces_a_catalog_that_cannot_be_read(emulator: Emulator, ask: Ask, fault: str) -> None:
    emulator.faults.add(fault, match=LISTING, times=0)
    quote = ask()
    assert (quote.priced_at, quote.price_source) == (PRICED_AT, "the table of this program")
    assert quote.offers[0].price_usd_h == pytest.approx(0.2155, abs=0.0001)
    assert ask(machine_type="n2-standard-4").offers[0].price_usd_h is None


def test_a_slow_catalog_does_not_delay_the_quote_and_serves_the_next(
    emulator: Emulator, ask: Ask, prices: Path
) -> None:
    emulator.faults.add("slow", match=LISTING, seconds=0.5)
    impatient = Timing(**{**vars(QUICK), "prices_s": 0.01})
    assert ask(impatient).price_source == "the table of this program"
    wait_for("the prices", prices.exists)
    assert ask(impatient).price_source == CATALOG
    assert emulator.api.calls[LISTING] == 1


@pytest.mark.parametrize("machine", ["n2-standard-4", "a3-highgpu-8g", "a4-highgpu-8g", "g4-standard-48"])
def test_machines_that_only_the_catalog_prices_can_be_limited(ask: Ask, machine: str) -> None:
    zones = ("us-central1-b",)
    usd_h = ask(machine_type=machine, zones=zones).offers[0].price_usd_h
    assert usd_h is not None
    limited = ask(machine_type=machine, zones=zones, max_cost_usd=usd_h)
    assert limited.delete_after_s == pytest.approx(3600 - 90, abs=2)


def test_only_a_new_fleet_reads_the_catalog(caller: Program, emulator: Emulator) -> None:
    caller.run("gc", code=None)
    caller.run("status", code=None)
    assert emulator.api.calls[LISTING] == 0
    caller.run("up", "--provider", "gce", "--dry-run", "--zone", "us-central1-a")
    assert emulator.api.calls[LISTING] == 1
