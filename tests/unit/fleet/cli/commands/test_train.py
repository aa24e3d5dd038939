"""Test what `fleet train` records before and after it starts a job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from fleet.cli.jobs.train import commit_all
from fleet.errors import NotReadyError, UnreachableError
from fleet.fleets.agents import ExistingFleet
from fleet.remote.client import AgentClient
from fleet.services import Services
from fleet.state import FleetDirectory, FleetRecord, Store
from provision.model import FleetSpec, Host
from tests.unit.fleet.clouds import NOW, Kept, host
from train.agent.protocol.records import Commit, Committed, Stop, Stopped


class Client:
    """An agent whose host starts a task as soon as it gets a commit."""

    def __init__(self, place: Host, start: Callable[[], Committed]) -> None:
        self.host = place
        self.start = start
        self.stopped: list[Stop] = []

    def read_clock(self) -> None:
        raise UnreachableError("this host has no clock")

    def commit(self, _commit: Commit) -> Committed:
        return self.start()

    def stop(self, request: Stop) -> Stopped:
        self.stopped.append(request)
        return Stopped(killed=False, running=True)


@pytest.fixture
def directory(tmp_path: Path) -> FleetDirectory:
    directory = Store(tmp_path).fleet("demo")
    directory.create()
    directory.write(FleetRecord(FleetSpec("demo", "local", 1), NOW, (host("worker-0"),), last_job="earlier"))
    return directory


def commit(directory: FleetDirectory, client: Client, record: FleetRecord) -> None:
    order = Commit("job", "worker-0", [], "", ["true"], {}, {})
    services = Services(Store(directory.path), lambda _: True)
    commit_all([cast(AgentClient, client)], [order], ExistingFleet(record, directory, services, Kept()), "")


def test_the_slots_of_a_job_are_recorded_when_its_tasks_start(directory: FleetDirectory) -> None:
    """Other commands ask for the job in the recorded slots, also if this program is killed now."""
    earlier = directory.read()
    assert earlier is not None
    record = replace(earlier, tasks_per_host=2, last_job="job", last_script="task.py")
    seen: list[FleetRecord | None] = []

    def start() -> Committed:
        seen.append(directory.read())
        return Committed(1)

    commit(directory, Client(host("worker-0"), start), record)
    assert seen == [record]
    assert directory.read() == record


def test_a_job_that_does_not_start_is_not_recorded(directory: FleetDirectory) -> None:
    earlier = directory.read()
    assert earlier is not None

    def refuse() -> Committed:
        raise NotReadyError("worker-0 is busy")

    client = Client(host("worker-0"), refuse)
    with pytest.raises(NotReadyError, match="cannot start the job: worker-0 is busy"):
        commit(directory, client, replace(earlier, tasks_per_host=2, last_job="job"))
    assert [request.job for request in client.stopped] == ["job"]
    assert directory.read() == earlier
