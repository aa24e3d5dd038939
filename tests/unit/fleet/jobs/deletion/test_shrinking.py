"""The hosts that a job uses."""

from __future__ import annotations

from fleet.jobs.deletion import hosts_of


def test_slots_side_by_side_belong_to_one_host() -> None:
    assert hosts_of(["worker-0", "worker-1", "worker-5", "../x"], 2) == {"worker-0", "worker-2"}
    assert hosts_of(["worker-3"], 1) == {"worker-3"}
