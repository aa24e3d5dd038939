"""Costs from lists of instances: replaced, stopped, started again, and deleted ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provision.ledger import BILLED_MIN_S, Interval, cost_usd, entry, intervals, is_new, price_usd_h
from provision.model import Instance, InstanceState

H = 3600.0
RUNNING, STOPPED = InstanceState.RUNNING, InstanceState.STOPPED
FIRST = Instance("worker-0", "demo", "1", RUNNING, "z", 1.0, H, 0.0, stopped_usd_h=0.1, started_at=H)
SECOND = replace(FIRST, name="worker-1", id="2", price_usd_h=2.0)
REPLACED = replace(FIRST, id="3", created_at=3 * H, started_at=3 * H)
AT_REST = replace(FIRST, state=STOPPED, stopped_at=2 * H)


def cost(now: float, *lists: tuple[float, list[Instance]]) -> float:
    return cost_usd(intervals(entry(instances, at) for at, instances in lists), now)


def test_a_running_fleet_costs_from_the_start_of_each_instance() -> None:
    later = replace(SECOND, created_at=2 * H, started_at=2 * H)
    assert cost(3 * H, (H + 60, [FIRST]), (2 * H + 60, [FIRST, later])) == pytest.approx(2 * 1.0 + 1 * 2.0)


def test_an_instance_that_was_replaced_or_released_still_counts() -> None:
    lists = (H, [FIRST, SECOND]), (3 * H, [REPLACED])
    assert cost(4 * H, *lists) == pytest.approx(2 * 1.0 + 2 * 2.0 + 1 * 1.0)


def test_the_price_is_that_of_what_is_left() -> None:
    def price(now: float, *lists: tuple[float, list[Instance]]) -> float:
        return price_usd_h(intervals(entry(instances, at) for at, instances in lists), now)

    assert price(2 * H, (H, [FIRST, SECOND])) == 3.0
    assert price(3 * H, (H, [FIRST, SECOND]), (2 * H, [SECOND])) == 2.0
    assert price(3 * H, (H, [FIRST]), (2 * H, [AT_REST])) == 0.1
    short = replace(FIRST, delete_at=2 * H)
    assert (price(1.5 * H, (H, [short])), price(2 * H, (H, [short]))) == (1.0, 0.0)


def test_the_provider_ends_an_instance_that_is_not_listed_any_more_at_its_deadline() -> None:
    short = replace(FIRST, delete_at=1.5 * H)
    assert cost(9 * H, (H, [short]), (9 * H, [])) == pytest.approx(0.5)
    assert cost(9 * H, (H, [short])) == pytest.approx(0.5)
    assert cost(1.25 * H, (H, [short])) == pytest.approx(0.25)


def test_a_list_shows_a_stop_and_a_start_that_no_command_saw() -> None:
    again = replace(AT_REST, state=RUNNING, started_at=4 * H)
    expected = 1 * 1.0 + 2 * 0.1 + 1 * 1.0
    assert cost(5 * H, (H, [FIRST]), (5 * H, [again])) == pytest.approx(expected)
    assert cost(5 * H, (5 * H, [again])) == pytest.approx(expected)


def test_of_two_stops_that_no_command_saw_the_last_is_known() -> None:
    again = replace(AT_REST, started_at=4 * H, stopped_at=5 * H)
    assert cost(6 * H, (H, [FIRST]), (6 * H, [again])) == pytest.approx(4 * 1.0 + 1 * 0.1)


def test_a_provider_without_times_counts_from_the_first_list() -> None:
    plain = replace(FIRST, created_at=0.0, started_at=0.0)
    stopped = replace(plain, state=STOPPED)
    assert cost(4 * H, (H, [plain]), (2 * H, [stopped]), (3 * H, [plain])) == pytest.approx(1.0 + 0.1 + 1.0)


def test_a_new_deadline_counts_and_a_new_price_does_not() -> None:
    before, after = replace(FIRST, delete_at=2 * H), replace(FIRST, delete_at=3 * H, price_usd_h=9.0)
    expected = Interval("1", "worker-0", H, 1.0, True, 3 * H, stopped_usd_h=0.1)
    assert intervals([entry([before], H), entry([after], H + 5)]) == [expected]


def test_the_first_minute_is_billed_in_full() -> None:
    assert cost(2 * H, (H, [FIRST]), (H + 1, [])) == pytest.approx(BILLED_MIN_S / 3600)


def test_only_lists_that_differ_are_new() -> None:
    first = entry([FIRST], H)
    assert not is_new(entry([], H), [])
    assert is_new(first, [])
    assert not is_new(entry([FIRST], 2 * H), [{"intent": "create", "at": 0.0}, first])
    assert is_new(entry([AT_REST], 2 * H), [first])
