"""`fleet down --keep-disks`, and the commands on a stopped fleet."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fleet.cli.fleets import down, extend, status, up
from fleet.console.messages import describe_event
from fleet.console.status import render_status
from fleet.errors import CancelledError, FleetError, NotReadyError, UnreachableError, UsageError
from fleet.events import FleetDown, FleetStopped, Level, Note, ResultsAtRisk
from fleet.fleets.plan import UpRequest
from fleet.fleets.repair import ExistingFleet, repair_fleet
from fleet.jobs.results import StoredJobs, Survey
from fleet.state import FleetRecord, OnThisComputer
from provision.local.options import LocalOptions
from provision.model import FleetSpec, InstanceState
from tests.next_steps import next_lines
from tests.settings import settings
from tests.unit.fleet.clouds import DISK_USD_H, NOW, CloudProvider, World

UP = UpRequest("demo", settings(provider="gce", project="p"))
STOP = down.DownRequest("demo", keep_disks=True)


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
    down.run(STOP, fleet.services(), fleet.sink)
    fleet.cloud.calls.clear()
    return fleet


def record(fleet: World) -> FleetRecord:
    stored = fleet.store.fleet("demo").read()
    assert stored is not None
    return stored


def store_job(fleet: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a job have been started whose results no host reports."""
    silent = {"worker-1": UnreachableError("worker-1 does not answer")}
    monkeypatch.setattr("fleet.jobs.deletion.survey", lambda *_: Survey((), (), silent))
    directory = fleet.store.fleet("demo")
    directory.write(replace(record(fleet), last_job="j-1"))


def test_a_stopped_fleet_costs_its_disks(fleet: World) -> None:
    down.run(STOP, fleet.services(), fleet.sink)
    [event] = fleet.sink.of(FleetStopped)
    assert event == FleetStopped("demo", ("worker-0", "worker-1"), 2 * DISK_USD_H, 2 * 0.5 + 2 * DISK_USD_H)
    assert describe_event(event) == (
        "fleet demo: 2 instances stopped; their disks are kept for $29.20 a month, $1.04 so far"
    )
    assert (fleet.cloud.calls, fleet.asked) == (["stop"], [])
    assert record(fleet).stopped_at == NOW + 7200
    assert [entry["intent"] for entry in fleet.store.fleet("demo").intents()][-2:] == ["stop", "listed"]


def test_the_message_contains_the_time_for_which_the_limit_pays_for_disks() -> None:
    text = describe_event(FleetStopped("demo", ("worker-0",), 0.02, 4.52, 5.0))
    assert text.endswith("--max-cost $5.00 pays for 1 d of them, but does not delete them")


def test_status_shows_stopped_hosts_with_the_price_of_their_disks(stopped: World) -> None:
    summary = status.run(status.StatusRequest("demo"), stopped.services())
    text = render_status(summary.fleets, now=NOW + 3 * 3600, width=100)
    assert "stopped for 1 h" in text
    assert "disks $29.20/month, $1.04 so far" in text
    assert "deleted in" not in text
    assert [line.split() for line in text.splitlines()[2:4]] == [["worker-0", "stopped"], ["worker-1", "stopped"]]
    assert "`fleet up --fleet demo` starts it again; `fleet down --fleet demo` deletes it" in text


@pytest.mark.parametrize("is_off", [True, False])
def test_status_shows_a_fleet_as_stopped_if_it_has_powered_off(
    fleet: World, monkeypatch: pytest.MonkeyPatch, is_off: bool
) -> None:
    monkeypatch.setattr("fleet.jobs.inspection.inspect_hosts", lambda *_: ((), None, ()))
    fleet.store.fleet("demo").write(replace(record(fleet), stop_at=NOW + 3600))
    if is_off:
        fleet.cloud.instances = [replace(each, state=InstanceState.STOPPED) for each in fleet.cloud.instances]
    [shown] = status.run(status.StatusRequest("demo"), fleet.services()).fleets
    assert shown.stopped_at == (NOW + 3600 if is_off else 0.0)
    assert shown.price_usd_h == pytest.approx(2 * DISK_USD_H if is_off else 1.0)


def test_status_does_not_show_a_fleet_without_instances_as_stopped(
    fleet: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleet.jobs.inspection.inspect_hosts", lambda *_: ((), None, ()))
    fleet.store.fleet("demo").write(replace(record(fleet), stop_at=NOW + 3600))
    fleet.cloud.instances = []
    [shown] = status.run(status.StatusRequest("demo"), fleet.services()).fleets
    assert (shown.stopped_at, shown.price_usd_h) == (0.0, 0.0)


def test_status_names_an_instance_that_runs_although_the_fleet_is_stopped(stopped: World) -> None:
    stopped.cloud.make("demo", "worker-1")  # started elsewhere
    del stopped.cloud.instances[0]
    [shown] = status.run(status.StatusRequest("demo"), stopped.services()).fleets
    assert [host.reason for host in shown.hosts] == [
        "worker-0 is gone",
        "worker-1 is running; stop it with `fleet down --fleet demo --keep-disks`,"
        " or start the fleet with `fleet up --fleet demo`",
    ]
    assert shown.price_usd_h == 0.5


def test_other_commands_name_the_command_that_starts_it(stopped: World) -> None:
    with pytest.raises(NotReadyError, match="fleet 'demo' is stopped; its disks are kept") as refused:
        extend.run(extend.ExtendRequest("demo", 3600), stopped.services(), stopped.sink)
    assert next_lines(refused.value) == "fleet up"
    directory = stopped.store.fleet("demo")
    running = replace(record(stopped), stopped_at=0.0)  # as a command knows it that follows a job
    with pytest.raises(UsageError, match="fleet 'demo' was stopped"):
        repair_fleet(ExistingFleet(running, directory, stopped.services(), "logs"), stopped.sink)
    assert stopped.cloud.calls == []


def test_up_starts_it_again(stopped: World) -> None:
    before = [instance.id for instance in stopped.cloud.instances]
    stopped.answers = [True]
    up.run(UP, stopped.services(), stopped.sink)
    assert [instance.id for instance in stopped.cloud.instances] == before
    assert (record(stopped).stopped_at, record(stopped).price_usd_h) == (0.0, 1.0)
    assert len(status.run(status.StatusRequest("demo"), stopped.services()).fleets[0].hosts) == 2


def test_down_again_stops_them_again_and_reports(stopped: World) -> None:
    at = record(stopped).stopped_at
    down.run(STOP, stopped.services(), stopped.sink)
    assert stopped.cloud.calls == ["stop"]  # so that no other host starts them
    assert (record(stopped).stopped_at, len(stopped.sink.of(FleetStopped))) == (at, 2)


def test_down_deletes_a_stopped_fleet_without_a_question_if_nothing_is_lost(stopped: World) -> None:
    down.run(down.DownRequest("demo"), stopped.services(), stopped.sink)
    assert stopped.sink.of(FleetDown)
    assert (stopped.cloud.instances, stopped.asked, stopped.store.names()) == ([], [], [])


def test_results_of_a_stopped_fleet_are_not_deleted_without_a_question(
    fleet: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_job(fleet, monkeypatch)
    fleet.answers = [True]
    down.run(STOP, fleet.services(), fleet.sink)
    assert fleet.asked == ["worker-1 does not answer, and may run a job. Files stay on the disks. Proceed?"]
    assert record(fleet).unsaved == ("worker-1",)
    monkeypatch.setattr("fleet.jobs.deletion.survey", lambda *_: Survey((), (), {}))
    fleet.answers = [False]
    with pytest.raises(CancelledError, match="nothing was deleted"):
        down.run(down.DownRequest("demo"), fleet.services(), fleet.sink)
    assert fleet.sink.of(ResultsAtRisk)[-1] == ResultsAtRisk("demo", (), ("worker-1",))
    assert len(fleet.cloud.instances) == 2


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
        down.run(STOP, fleet.services(), fleet.sink)
        assert (fleet.asked, record(fleet).unsaved) == ([], preempted)
    fleet.answers = [False]
    with pytest.raises(CancelledError, match="nothing was deleted"):
        down.run(down.DownRequest("demo"), fleet.services(), fleet.sink)


def test_a_running_job_is_not_stopped_without_a_terminal(fleet: World, monkeypatch: pytest.MonkeyPatch) -> None:
    job = StoredJobs("j-1", (), OnThisComputer())
    monkeypatch.setattr(StoredJobs, "is_running", True)
    monkeypatch.setattr("fleet.jobs.deletion.survey", lambda *_: Survey((job,), (), {}))
    fleet.attended = False
    with pytest.raises(UsageError, match="job j-1 is running and would be stopped; confirmation requires") as refused:
        down.run(STOP, fleet.services(), fleet.sink)
    assert "fleet logs -f" in next_lines(refused.value)
    assert fleet.cloud.calls == []


def test_a_fleet_of_this_computer_cannot_be_stopped(fleet: World) -> None:
    spec = FleetSpec("demo", "local", 2, options=LocalOptions())
    fleet.store.fleet("demo").write(replace(record(fleet), spec=spec))
    with pytest.raises(UsageError, match="provider 'local' cannot be stopped and started again") as refused:
        down.run(STOP, fleet.services(), fleet.sink)
    assert next_lines(refused.value) == "fleet pull\nfleet down"


def test_what_did_not_stop_is_an_error(fleet: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise FleetError("worker-1 does not stop")

    monkeypatch.setattr("tests.unit.fleet.clouds.CloudProvider.stop", fail)
    with pytest.raises(FleetError, match="worker-1 does not stop"):
        down.run(STOP, fleet.services(), fleet.sink)
    [shown] = status.run(status.StatusRequest("demo"), fleet.services()).fleets
    assert [host.stopped for host in shown.hosts] == [False, False]
    assert shown.price_usd_h == 1.0


@pytest.mark.parametrize("lost", [1, 2])
def test_instances_that_are_deleted_meanwhile_do_not_count_as_stopped(
    fleet: World, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    stop = CloudProvider.stop

    def stop_rest(*args: Any) -> None:
        stop(*args)
        del fleet.cloud.instances[:lost]

    monkeypatch.setattr(CloudProvider, "stop", stop_rest)
    if lost == 2:
        with pytest.raises(NotReadyError, match="no instance of fleet 'demo' is left"):
            down.run(STOP, fleet.services(), fleet.sink)
        return
    down.run(STOP, fleet.services(), fleet.sink)
    [event] = fleet.sink.of(FleetStopped)
    assert isinstance(event, FleetStopped)
    assert event.stopped == ("worker-1",)
    warning = Note("deleted by the provider meanwhile, with all files: worker-0", Level.WARNING)
    assert warning in fleet.sink.of(Note)


def test_instances_that_were_created_meanwhile_are_stopped(fleet: World, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = CloudProvider.stop

    def stop_and_create(*args: Any) -> None:
        stop(*args)
        if fleet.cloud.calls.count("stop") == 1:
            fleet.cloud.make("demo", "worker-2")

    monkeypatch.setattr(CloudProvider, "stop", stop_and_create)
    down.run(STOP, fleet.services(), fleet.sink)
    assert [instance.state for instance in fleet.cloud.instances] == [InstanceState.STOPPED] * 3


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


def test_an_instance_that_starts_after_an_interrupt_is_stopped(
    stopped: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt  # the provider still lists it as stopped

    monkeypatch.setattr(CloudProvider, "create", interrupt)
    stopped.answers = [True]
    with pytest.raises(CancelledError, match="everything it started was stopped"):
        up.run(UP, stopped.services(), stopped.sink)
    assert stopped.cloud.calls == ["stop"]


def test_instances_that_were_started_in_vain_are_kept_for_a_while_if_they_confirm(
    stopped: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> list[object]:
        raise NotReadyError("no driver")

    stopped.cloud.keeps = True
    with monkeypatch.context() as patch:
        patch.setattr(up, "reach", fail)
        for _ in range(2):
            stopped.answers = [True]
            with pytest.raises(NotReadyError, match="no driver"):
                up.run(UP, stopped.services(), stopped.sink)
            assert "delete" not in stopped.cloud.calls  # their files may exist nowhere else
            assert stopped.cloud.stops["worker-0"] > NOW
    up.run(UP, stopped.services(), stopped.sink)
    assert record(stopped).stopped_at == 0.0
