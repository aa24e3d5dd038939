"""Lifetimes that the limit of a fleet's cost pays for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.budget import CREATE, CREATED, MARGIN_S, START, Budget, budget_of
from provision.ledger import entry
from provision.model import Instance, InstanceState, Price

H = 3600.0
PRICE = Price(machine=0.8, disk=0.1, address=0.1)
ALONE = Instance("worker-0", "demo", "1", InstanceState.RUNNING, "z", 1.0, H, 3 * H, stopped_usd_h=0.1, started_at=H)


def listed(at: float, *instances: Instance) -> dict[str, Any]:
    return entry(instances, at)


def request(at: float, *names: str, intent: str = CREATE, number: str = "a") -> dict[str, Any]:
    prices = {"usd_h": 1.0, "stopped_usd_h": 0.1}
    return {"intent": intent, "at": at, "request_id": number, "workers": names, "lifetime_s": 2 * H, **prices}


def ended(created: int | None = None, number: str = "a") -> dict[str, Any]:
    return {"intent": CREATED, "at": 0.0, "request_id": number, "created": created}


def used(*entries: dict[str, Any], now: float = 2 * H, ending: bool = False) -> float:
    return budget_of(10.0, entries, now, ending=ending).used_usd


def test_a_running_instance_counts_until_its_deadline() -> None:
    assert used(listed(H, ALONE)) == pytest.approx(2.0 + MARGIN_S / H)
    assert used(listed(H, ALONE), ending=True) == pytest.approx(1.0 + MARGIN_S / H)


def test_the_disks_count_until_the_last_deadline() -> None:
    longer = replace(ALONE, name="worker-1", id="2", delete_at=5 * H)
    assert used(listed(H, ALONE, longer)) == pytest.approx(2.0 + 4.0 + 2 * MARGIN_S / H + 2 * 0.1)
    stopped = replace(ALONE, state=InstanceState.STOPPED, stopped_at=2 * H)
    assert used(listed(H, ALONE), listed(2 * H, stopped, longer)) == pytest.approx(1.0 + 3 * 0.1 + 4.0 + MARGIN_S / H)


def test_an_instance_that_is_gone_counts_what_it_cost() -> None:
    assert used(listed(H, ALONE), listed(2 * H)) == pytest.approx(1.0)
    assert used(listed(H, ALONE), listed(9 * H)) == pytest.approx(2.0 + MARGIN_S / H)  # deleted up to 30 s late


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([request(H, "worker-0")], 2.0 + MARGIN_S / H),  # killed before the answer
        ([request(H, "worker-0"), listed(2 * H)], 2.0 + MARGIN_S / H),  # the request has not ended
        ([request(H, "worker-0"), ended(), listed(2 * H)], 1.0),  # created, and gone before the first list
        ([request(H, "worker-0"), ended(), listed(9 * H)], 2.0 + MARGIN_S / H),
        ([request(H, "worker-0"), ended(created=0), listed(2 * H)], 0.0),  # no capacity
        ([request(H, "worker-0", "worker-1"), ended(created=1), listed(2 * H)], 1.0),  # one was rolled back
        ([request(H, "worker-0"), ended(), listed(H, ALONE)], 2.0 + MARGIN_S / H),  # listed
        ([request(H, "worker-0", "worker-1"), ended(created=1), listed(H, ALONE)], 2.0 + MARGIN_S / H),
    ],
)
def test_instances_that_were_requested_count(entries: list[dict[str, Any]], expected: float) -> None:
    assert used(*entries) == pytest.approx(expected)


def test_an_earlier_instance_of_the_same_name_is_not_the_requested_one() -> None:
    entries = [listed(H, ALONE), request(2 * H, "worker-0"), listed(2 * H, ALONE)]
    assert used(*entries) == pytest.approx(2 * (2.0 + MARGIN_S / H) + 0.1)


def test_a_start_counts_until_the_instance_is_listed() -> None:
    stopped = replace(ALONE, state=InstanceState.STOPPED, stopped_at=2 * H, delete_at=0.0)
    begun = [listed(2 * H, stopped), request(2 * H, "worker-0", intent=START)]
    assert used(*begun) == pytest.approx(1.0 + 2 * 0.1 + 2.0 + MARGIN_S / H)
    assert used(*begun, listed(2 * H, stopped)) == pytest.approx(1.0)
    assert used(*begun, listed(9 * H), now=9 * H) == pytest.approx(1.0 + 7 * 0.1 + 2.0 + MARGIN_S / H)


def test_instances_without_deadline_or_price_have_no_limit() -> None:
    entries = [listed(H, replace(ALONE, delete_at=0.0), replace(ALONE, name="worker-1", id="2", price_usd_h=0.0))]
    assert budget_of(10.0, entries, H).unlimited == ("worker-0", "worker-1")
    assert budget_of(10.0, entries, H, ending=True).unlimited == ("worker-1",)


def test_the_rest_pays_for_a_lifetime() -> None:
    assert Budget(5.0).lifetime_s(PRICE, 2, 0.0) == pytest.approx(2.5 * H - MARGIN_S)
    assert Budget(5.0, used_usd=4.0).lifetime_s(PRICE, 2, 0.0) == pytest.approx(0.5 * H - MARGIN_S)
    assert Budget(1.0, used_usd=2.0).lifetime_s(PRICE, 1, 0.0) < 0


def test_new_instances_end_with_the_existing_ones() -> None:
    assert Budget(50.0, end=3 * H).lifetime_s(PRICE, 2, H) == 2 * H


@given(
    limit=st.floats(0.1, 100.0),
    count=st.integers(1, 8),
    existing=st.lists(st.floats(1.5 * H, 10 * H), max_size=4),
    price=st.builds(Price, st.floats(0.01, 5.0), st.floats(0.0, 30.0), st.floats(0.001, 1.0), st.floats(0.0, 0.01)),
)
def test_new_instances_use_at_most_the_rest(limit: float, count: int, existing: list[float], price: Price) -> None:
    now = H
    workers = [
        replace(ALONE, name=f"worker-{at}", id=str(at), delete_at=end) for at, end in enumerate(existing, start=10)
    ]
    before = budget_of(limit, [listed(now, *workers)], now)
    lifetime_s = before.lifetime_s(price, count, now)
    if lifetime_s <= 0:
        return
    added = [
        replace(
            ALONE,
            name=f"worker-{at}",
            id=str(at),
            price_usd_h=price.usd_h,
            stopped_usd_h=price.stopped_usd_h,
            delete_at=now + lifetime_s,
        )
        for at in range(count)
    ]
    after = budget_of(limit, [listed(now, *workers, *added)], now)
    assert after.used_usd <= limit + 1e-6
    assert not existing or after.end == before.end
