"""`fleet down --keep-disks`, and the commands on a stopped fleet."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fleet.cli.fleets import down, up
from fleet.errors import CancelledError, NotReadyError, UnreachableError
from fleet.events import FleetStopped, Level, Note
from fleet.fleets.plan import UpRequest
from fleet.jobs.results import Survey
from fleet.state import FleetRecord
from provision.model import InstanceState
from tests.settings import settings
from tests.unit.fleet.clouds import CloudProvider, World

UP = UpRequest("demo", settings(provider="gce", project="p"))


@pytest.fixture
def fleet(world: World) -> World:
    """Return a world with a fleet of two hosts that store nothing."""
    world.answers = [True]
    up.run(UP, world.services(), world.sink)
    world.sink.events.clear()
    world.cloud.calls.clear()
    world.asked.clear()
    return world


@pytest.fixture
def stopped(fleet: World) -> World:
    """Return a world with a stopped fleet."""
    down.run("demo", fleet.services(), fleet.sink, keep_disks=True)
    fleet.cloud.calls.clear()
    return fleet


def record(fleet: World) -> FleetRecord:
    stored = fleet.store.fleet("demo").read()
    assert stored is not None
    return stored


def test_a_host_that_does_not_answer_is_not_stopped_without_a_question(
    fleet: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = {"worker-1": UnreachableError("worker-1 does not answer")}
    monkeypatch.setattr("fleet.jobs.deletion.survey", lambda *_: Survey((), (), silent))
    fleet.store.fleet("demo").write(replace(record(fleet), last_job="j-1"))
    fleet.answers = [True]
    down.run("demo", fleet.services(), fleet.sink, keep_disks=True)
    assert fleet.asked == ["worker-1 does not answer, and may run a job. Files stay on the disks. Proceed?"]
    assert record(fleet).unsaved == ("worker-1",)


@pytest.mark.parametrize("off", [1, 2])
def test_results_of_hosts_that_had_stopped_before_are_not_deleted_without_a_question(
    fleet: World, monkeypatch: pytest.MonkeyPatch, off: int
) -> None:
    monkeypatch.setattr("fleet.jobs.deletion.survey", lambda *_: Survey((), (), {}))
    fleet.store.fleet("demo").write(replace(record(fleet), last_job="j-1"))
    preempted = ("worker-0", "worker-1")[:off]
    fleet.cloud.instances = [
        replace(each, state=InstanceState.STOPPED) if each.name in preempted else each
        for each in fleet.cloud.instances
    ]
    for _ in range(2):
        down.run("demo", fleet.services(), fleet.sink, keep_disks=True)
        assert (fleet.asked, record(fleet).unsaved) == ([], preempted)
    fleet.answers = [False]
    with pytest.raises(CancelledError, match="nothing was deleted"):
        down.run("demo", fleet.services(), fleet.sink)


def test_instances_that_are_deleted_meanwhile_do_not_count_as_stopped(
    fleet: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = CloudProvider.stop

    def stop_rest(*args: Any) -> None:
        stop(*args)
        del fleet.cloud.instances[0]

    monkeypatch.setattr(CloudProvider, "stop", stop_rest)
    down.run("demo", fleet.services(), fleet.sink, keep_disks=True)
    [event] = fleet.sink.of(FleetStopped)
    assert isinstance(event, FleetStopped)
    assert event.stopped == ("worker-1",)
    warning = Note("deleted by the provider meanwhile, with all files: worker-0", Level.WARNING)
    assert warning in fleet.sink.of(Note)


@pytest.mark.parametrize("error", [NotReadyError("no driver"), KeyboardInterrupt()])
def test_instances_that_were_started_in_vain_are_stopped_again(
    stopped: World, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reach(*_: object, **__: object) -> list[object]:
        raise error

    monkeypatch.setattr(up, "reach", reach)
    stopped.answers = [True]
    with pytest.raises((NotReadyError, CancelledError)) as failed:
        up.run(UP, stopped.services(), stopped.sink)
    assert stopped.cloud.calls == ["create", "stop"]
    assert {instance.state for instance in stopped.cloud.instances} == {InstanceState.STOPPED}
    assert record(stopped).stopped_at
    if isinstance(failed.value, CancelledError):
        assert "everything it started was stopped" in failed.value.message
