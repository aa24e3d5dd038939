"""`fleet down`, also with --keep-disks, `fleet extend`, and `fleet gc` with rented instances."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from typing import Any

import pytest

from fleet.cli.fleets import down, extend, gc, up
from fleet.errors import CancelledError, FleetError, NotFoundError, NotReadyError, UnreachableError, UsageError
from fleet.events import FleetStopped, InstanceChanged, Level, Note, OrphansDeleted, OrphansFound
from fleet.fleets.instances import check_lifetime
from fleet.fleets.plan import UpRequest
from fleet.jobs.results import Survey
from fleet.state import FleetRecord, caller
from provision.gce.options import GceOptions
from provision.model import InstanceState, Orphan
from tests.next_steps import next_lines
from tests.settings import settings
from tests.unit.fleet.clouds import NOW, CloudProvider, World

ME, OTHER = caller(), "bob-desk"
UP = UpRequest("demo", settings(provider="gce", project="p"))


@pytest.fixture
def fleet(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """Return a world with a fleet of two hosts that run nothing."""
    monkeypatch.setattr("fleet.fleets.agents.running_job", lambda *_: "")
    monkeypatch.setattr(extend, "running_job", lambda *_: "")
    world.answers = [True]
    up.run(UP, world.services(), world.sink)
    world.sink.events.clear()
    world.cloud.calls.clear()
    world.asked.clear()
    return world


# --- down -------------------------------------------------------------------------------------------------------


def test_down_needs_no_space_on_the_disk(fleet: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    fleet.cloud.instances[1] = replace(fleet.cloud.instances[1], id="new")  # a list that the journal does not have
    for name in ("fsync", "pwrite"):
        monkeypatch.setattr(os, name, refuse)
    with pytest.raises(UsageError, match="cannot be written"):
        down.run("demo", fleet.services(), fleet.sink, keep_disks=True)
    assert fleet.cloud.calls == []
    down.run("demo", fleet.services(), fleet.sink)
    place, cause = fleet.store.fleet("demo").path, os.strerror(errno.ENOSPC)
    text = f"the state directory {place} cannot be written ({cause}); the deletion continues"
    assert fleet.sink.of(Note) == [Note(text, Level.WARNING)]
    assert (fleet.cloud.calls, fleet.cloud.instances, fleet.store.names()) == (["delete_fleet"], [], [])


# --- extend -----------------------------------------------------------------------------------------------------


def test_extend_refuses_what_it_cannot_extend_and_names_the_job_that_would_end(
    fleet: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(kind: type[FleetError], message: str, name: str = "demo", seconds: float = 60) -> None:
        with pytest.raises(kind, match=message):
            extend.run(name, seconds, fleet.services(), fleet.sink)

    refused(UsageError, "immediately", seconds=0)
    refused(NotFoundError, "does not exist", "other")
    monkeypatch.setattr(extend, "running_job", lambda *_: "j-1")
    fleet.answers = [False]
    refused(CancelledError, "nothing was changed")
    assert "the running job j-1 would end" in fleet.asked[0]
    fleet.attended = False
    refused(UsageError, "job j-1 is running")
    fleet.cloud.instances[0] = replace(fleet.cloud.instances[0], state=InstanceState.STOPPED)
    refused(NotReadyError, "worker-0 of fleet 'demo' does not run")
    fleet.cloud.instances.pop()
    refused(NotReadyError, "1 of its 2 instances")
    assert fleet.cloud.calls == []


@pytest.mark.parametrize(
    ("recorded_s", "listed_s", "outcome"),
    [
        (3600, 60, ""),  # a record with a later end is current
        (60, 3600, ""),  # the lifetime has begun again
        (400, 400, "stopped in 5 min; `fleet extend --fleet demo 4h` gives it more time"),
    ],
)
def test_a_job_that_would_be_ended_soon_is_reported(
    fleet: World, recorded_s: float, listed_s: float, outcome: str
) -> None:
    ends_in(fleet, recorded_s, listed_s)
    warnings = [note.text for note in fleet.sink.of(Note) if isinstance(note, Note)]
    assert [text.endswith(outcome) for text in warnings] == ([True] if outcome else [])


@pytest.mark.parametrize(("left_s", "flex_start", "line"), [(-60, False, "extend 4h"), (60, True, "down")])
def test_a_job_that_would_be_ended_immediately_is_refused(
    fleet: World, left_s: float, flex_start: bool, line: str
) -> None:
    with pytest.raises(NotReadyError, match="a job would be stopped immediately") as refusal:
        ends_in(fleet, left_s, left_s, flex_start=flex_start)
    assert next_lines(refusal.value) == f"fleet {line}"


def ends_in(fleet: World, recorded_s: float, listed_s: float, *, flex_start: bool = False) -> None:
    """Check the lifetime of hosts that end, as recorded and as listed now, after these times."""
    services, record = fleet.services(), fleet.store.fleet("demo").read()
    assert record is not None
    spec = replace(record.spec, options=replace(GceOptions.of(record.spec.options), flex_start=flex_start))
    recorded, listed = (
        [replace(each, end_at=services.clock() + s) for each in record.instances] for s in (recorded_s, listed_s)
    )
    fleet.cloud.instances = listed
    check_lifetime(replace(record, spec=spec, instances=tuple(recorded)), 10.0, services, fleet.sink)


# --- gc ---------------------------------------------------------------------------------------------------------


def orphan(
    name: str, *, fleet: str = "lost", owner: str = "aaaaaaaa", user: str = ME, kind: str = "instance"
) -> Orphan:
    return Orphan(fleet, owner, user, kind, name, "z-a", NOW + 3600, 0.5)


def test_gc_deletes_what_this_user_made_and_shows_the_rest(fleet: World) -> None:
    owner = fleet.store.owner()
    fleet.cloud.things = [
        orphan("known", fleet="demo", owner=owner),
        orphan("mine"),
        orphan("mine too", owner=owner),
        orphan("rule", user="", kind="firewall rule"),
        orphan("same name", fleet="demo"),
        orphan("other", owner="bbbbbbbb", user=OTHER),
        orphan("other rule", owner="bbbbbbbb", user="", kind="firewall rule"),
    ]
    fleet.answers = [True]
    gc.run(gc.GcRequest(settings(project="p")), fleet.services(), fleet.sink)
    [event] = fleet.sink.of(OrphansFound)
    assert isinstance(event, OrphansFound)
    assert [entry.name for entry in event.orphans if entry.to_delete] == ["mine", "mine too", "rule", "same name"]
    assert [entry.name for entry in event.orphans if not entry.to_delete] == ["other", "other rule"]
    assert fleet.asked == ["Delete 4 of them?"]
    assert [entry.name for entry in fleet.cloud.things] == ["known", "other", "other rule"]
    assert fleet.sink.events[-1] == OrphansDeleted(4, ())
    assert InstanceChanged("mine", "deleted", done=True) in fleet.sink.events


def test_gc_spares_a_fleet_that_was_made_while_the_user_was_asked(world: World) -> None:
    world.cloud.things = [orphan("demo-worker-0", fleet="demo", owner=world.store.owner())]

    def confirm(_: str) -> bool:
        world.store.fleet("demo").create()
        return True

    services = replace(world.services(), consent=confirm)
    gc.run(gc.GcRequest(settings(project="p")), services, world.sink)
    assert len(world.cloud.things) == 1


# --- down --keep-disks -----------------------------------------------------------------------------------------


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
