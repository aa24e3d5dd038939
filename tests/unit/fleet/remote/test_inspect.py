"""Reports of hosts about their jobs."""

from __future__ import annotations

import pytest

from fleet.errors import FleetError
from tests.unit.fleet.remote.test_join import MEMBERS, client
from train.agent.protocol.records import End, Inspect, JobReport, Phase


def report(slot: str) -> JobReport:
    return JobReport("j", "demo", slot, slot, 1, Phase.RUNNING, True, 0.0, [], list(MEMBERS), 0)


def test_reports_of_a_job_share_the_list_of_its_members() -> None:
    received = [client(slot, report(slot), End())[0].inspect(Inspect()) for slot in ("worker-0", "worker-1")]
    [[first], [second]] = received
    assert first == report("worker-0")
    assert first.members is second.members


def test_more_reports_than_requested_are_refused() -> None:
    agent, _ = client("worker-0", report("worker-0"), report("worker-0"), End())
    with pytest.raises(FleetError, match="unexpected"):
        agent.inspect(Inspect(1))
