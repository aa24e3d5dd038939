"""The cost of a fleet never exceeds --max-cost, whatever happens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.errors import UsageError
from fleet.events import FleetDown, Quoted
from fleet.steps import Again
from provision.quantities import read_duration
from tests.cloud.customer import Quiet, patched
from tests.cloud.spending import LATE_S, Spender
from tests.emulator import Emulator
from tests.next_steps import next_lines, repetition

PRICE_USD_H = 0.2087
"""Of an n1-standard-4 in us-central1, with 100 GB and an address."""


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    with Emulator(operation_s=0.003) as running:
        yield running


@pytest.fixture
def customer(emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Spender:
    emulator.reset()
    emulator.cloud.late_s = LATE_S
    patched(monkeypatch, emulator)
    return Spender(emulator, tmp_path, zones=("us-central1-a",), max_cost_usd=2.0)


def test_the_limit_is_the_deadline_of_compute_engine(customer: Spender) -> None:
    sink = customer.up(workers=2)
    [quoted] = sink.of(Quoted)
    assert quoted.delete_after_s == pytest.approx(2.0 / (2 * PRICE_USD_H) * 3600 - 90, abs=10)
    assert (quoted.max_cost_usd, quoted.used_usd) == (2.0, 0.0)
    limits = {each.blueprint.run_s for each in customer.emulator.cloud.instances.values()}
    assert limits == {float(quoted.delete_after_s)}
    customer.wait(3600)
    [bill] = customer.down().of(FleetDown)
    assert bill.cost_usd == pytest.approx(2 * PRICE_USD_H, rel=0.01)
    assert bill.max_cost_usd == 2.0


def test_neither_an_unknown_price_nor_one_that_pays_for_no_useful_time_can_be_limited(customer: Spender) -> None:
    with pytest.raises(UsageError, match=r"the price of a9-newgpu-4g .* is unknown, so --max-cost") as refused:
        customer.up(workers=1, machine_type="a9-newgpu-4g")
    assert repetition(refused.value) == Again({"--max-cost": None, "--max-duration": "4h"}, "up")
    with pytest.raises(
        UsageError, match=r"--max-cost \$0.05 pays for 5 min of 2 instances \(n1-standard-4\)"
    ) as refused:
        customer.up(workers=2, max_cost_usd=0.05)
    assert refused.value.cause == "at least 10 min are required"
    assert not customer.emulator.cloud.charges


def test_the_limit_of_an_existing_fleet_is_removed_if_its_price_is_unknown(
    customer: Spender, monkeypatch: pytest.MonkeyPatch
) -> None:
    customer.up(workers=1)
    with monkeypatch.context() as patch:
        patch.setattr("provision.gce.api.prices.Prices.price", lambda *_: None)
        for refuse in (lambda: customer.extend(3600), lambda: customer.up(workers=2)):
            with pytest.raises(UsageError, match="is unknown, so --max-cost cannot limit it") as refused:
                refuse()
            assert repetition(refused.value) == Again({"--max-cost": "0"}, "up")
            assert next_lines(refused.value) == "fleet down"
        customer.up(workers=1, max_cost_usd=0.0)
        customer.extend(3600)


def test_more_workers_live_on_the_rest_and_no_longer_than_the_others(customer: Spender) -> None:
    customer.up(workers=1, max_duration_s=0)
    customer.wait(3600)
    message = r"--max-cost \$2.00, \$2.00 of which is used, pays for 0 s of 1 instance"
    with pytest.raises(UsageError, match=message) as refused:
        customer.up(workers=2, max_duration_s=0)
    assert repetition(refused.value) == Again({"--max-cost": "2.22"}, "up")
    assert len(customer.running()) == 1
    customer.up(workers=2, max_duration_s=0, max_cost_usd=2.5)
    first, second = sorted(customer.deadlines())
    assert second - first > 3600
    customer.wait(12 * 3600)
    assert customer.cost_usd() <= 2.5


def test_an_extension_is_paid_from_the_rest(customer: Spender) -> None:
    customer.up(workers=1, max_duration_s=3600)
    customer.wait(1800)
    with pytest.raises(
        UsageError, match=r"--max-cost \$2.00 does not pay for 1 d from now: \$0.11 is used"
    ) as refused:
        customer.extend(24 * 3600)
    assert "fleet extend 5" in next_lines(refused.value)
    assert len(customer.running()) == 1
    customer.extend(8 * 3600)
    [deadline] = customer.deadlines()
    assert deadline - customer.emulator.clock.now() == pytest.approx(8 * 3600, abs=60)
    customer.wait(9 * 3600)
    assert customer.cost_usd() <= 2.0


@pytest.mark.parametrize(
    ("lifetime_s", "limit_usd", "message", "step"),
    [
        (300 * 86400, 0.0, "30 seconds to 120 days, not 7200h", "fleet extend 120d"),
        (300 * 86400, 2.0, "does not pay for 120 d from now", "fleet extend 56"),
        (5, 0.0, "30 seconds to 120 days, not 5s", "fleet down"),
        (86400, 2.0, "does not pay for 1 d from now", "fleet extend 56"),
        (86400, 0.06, "does not pay for 1 d from now", "fleet up --max-cost 5.0"),
    ],
)
def test_an_extension_is_refused_before_its_price_is_reported(
    customer: Spender, lifetime_s: float, limit_usd: float, message: str, step: str
) -> None:
    customer.options["max_cost_usd"] = limit_usd
    customer.up(workers=1)
    sink = Quiet()
    with pytest.raises(UsageError, match=message) as refused:
        customer.extend(lifetime_s, sink)
    assert step in next_lines(refused.value)
    assert not sink.events
    if "extend" in step:
        customer.extend(read_duration(next_lines(refused.value).split()[-1]))


def test_a_start_begins_the_lifetime_that_is_left(customer: Spender) -> None:
    customer.up(workers=1)
    customer.wait(4 * 3600)
    customer.halt(customer.running()[0])
    customer.wait(3600)
    customer.up(workers=1)
    [deadline] = customer.deadlines()
    left_s = (2.0 - 4 * PRICE_USD_H - 0.0137) / PRICE_USD_H * 3600 - 90
    assert deadline - customer.emulator.clock.now() == pytest.approx(left_s, abs=60)


def test_the_limit_can_be_raised_and_not_lowered_below_what_is_promised(customer: Spender) -> None:
    customer.up(workers=1, max_duration_s=0)
    with pytest.raises(UsageError, match=r"costs up to \$2.00 until its instances are deleted, more than --max-cost"):
        customer.up(workers=1, max_duration_s=0, max_cost_usd=1.0)
    customer.up(workers=1, max_duration_s=0, max_cost_usd=3.0)
    customer.extend(13 * 3600)
    customer.wait(24 * 3600)
    assert 0.9 * 3.0 < customer.cost_usd() <= 3.0
