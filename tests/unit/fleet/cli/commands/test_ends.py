"""`fleet down`, `fleet extend`, `fleet gc` and `fleet doctor` with rented instances."""

from __future__ import annotations

import errno
import os
from dataclasses import replace

import pytest

from fleet.cli.fleets import down, extend, gc, up
from fleet.cli.fleets.doctor import run as doctor
from fleet.errors import CancelledError, CredentialsError, FleetError, NotFoundError, NotReadyError, UsageError
from fleet.events import (
    Checked,
    InstanceChanged,
    Level,
    Note,
    OrphansDeleted,
    OrphansFound,
    ResultsAtRisk,
)
from fleet.fleets.instances import check_lifetime
from fleet.fleets.plan import UpRequest
from fleet.state import caller
from provision.gce.catalog.machines import resolved
from provision.gce.options import GceOptions
from provision.model import Finding, InstanceState, Orphan
from provision.provider import ErrorKind, ProviderError
from tests.next_steps import command_lines, next_lines
from tests.settings import settings
from tests.unit.fleet.clouds import NOW, CloudProvider, World

ME, OTHER = caller(), "bob-desk"


@pytest.fixture
def fleet(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """Return a world with a fleet of two hosts that run nothing."""
    monkeypatch.setattr("fleet.fleets.agents.running_job", lambda *_: "")
    monkeypatch.setattr(extend, "running_job", lambda *_: "")
    world.answers = [True]
    up.run(UpRequest("demo", settings(provider="gce", project="p")), world.services(), world.sink)
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


@pytest.mark.parametrize("damage", ["{", None])
def test_down_finds_a_fleet_whose_record_is_lost_by_the_journal(fleet: World, damage: str | None) -> None:
    file = fleet.store.fleet("demo").path / "fleet.json"
    file.unlink() if damage is None else file.write_text(damage)
    fleet.answers = [True]
    down.run("demo", fleet.services(), fleet.sink)
    assert fleet.sink.of(ResultsAtRisk) == [ResultsAtRisk("demo", (), ("worker-0", "worker-1"))]
    assert (fleet.cloud.instances, fleet.store.names()) == ([], [])
    assert fleet.clouds[-1].project == "p"


# --- extend -----------------------------------------------------------------------------------------------------


def test_extend_names_the_job_that_would_end(fleet: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extend, "running_job", lambda *_: "j-1")
    fleet.answers = [False]
    with pytest.raises(CancelledError, match="nothing was changed"):
        extend.run("demo", 60, fleet.services(), fleet.sink)
    assert "the running job j-1 would end" in fleet.asked[0]
    fleet.attended = False
    with pytest.raises(UsageError, match="job j-1 is running"):
        extend.run("demo", 60, fleet.services(), fleet.sink)
    assert fleet.cloud.calls == []


def test_extend_of_what_cannot_be_extended(fleet: World) -> None:
    with pytest.raises(UsageError, match="immediately"):
        extend.run("demo", 0, fleet.services(), fleet.sink)
    with pytest.raises(NotFoundError):
        extend.run("other", 60, fleet.services(), fleet.sink)
    fleet.cloud.instances[0] = replace(fleet.cloud.instances[0], state=InstanceState.STOPPED)
    with pytest.raises(NotReadyError, match="worker-0 of fleet 'demo' does not run"):
        extend.run("demo", 60, fleet.services(), fleet.sink)
    fleet.cloud.instances.pop()
    with pytest.raises(NotReadyError, match="1 of its 2 instances"):
        extend.run("demo", 60, fleet.services(), fleet.sink)


@pytest.mark.parametrize(
    ("recorded_s", "listed_s", "flex_start", "outcome"),
    [
        (3600, 60, False, ""),  # a record with a later end is current
        (60, 3600, False, ""),  # the lifetime has begun again
        (0, 0, False, ""),
        (400, 400, False, "stopped in 5 min; `fleet extend --fleet demo 4h` gives it more time"),
        (69, 69, False, "fleet extend 4h"),
        (-60, -60, False, "fleet extend 4h"),
        (60, 60, True, "fleet down"),
    ],
)
def test_a_job_that_would_be_ended_soon_is_reported_before_the_upload(
    fleet: World, recorded_s: float, listed_s: float, flex_start: bool, outcome: str
) -> None:
    services = fleet.services()
    now = services.clock()
    record = fleet.store.fleet("demo").read()
    assert record is not None
    spec = replace(record.spec, options=replace(GceOptions.of(record.spec.options), flex_start=flex_start))
    instances = tuple(replace(each, end_at=recorded_s and now + recorded_s) for each in record.instances)
    fleet.cloud.instances = [replace(each, end_at=listed_s and now + listed_s) for each in instances]
    record = replace(record, spec=spec, instances=instances)
    if outcome.startswith("fleet"):
        with pytest.raises(NotReadyError, match="a job would be stopped immediately") as refusal:
            check_lifetime(record, 10.0, services, fleet.sink)
        assert next_lines(refusal.value) == outcome
        fleet.cloud.instances = [replace(each, state=InstanceState.STOPPED) for each in fleet.cloud.instances]
        check_lifetime(record, 10.0, services, fleet.sink)  # the error that it is stopped follows
    else:
        check_lifetime(record, 10.0, services, fleet.sink)
    warnings = [note.text for note in fleet.sink.of(Note) if isinstance(note, Note)]
    assert bool(warnings) == outcome.startswith("stopped")
    assert not warnings or warnings[0].endswith(outcome)


# --- status -----------------------------------------------------------------------------------------------------


# --- gc ---------------------------------------------------------------------------------------------------------


def orphan(
    name: str, *, fleet: str = "lost", owner: str = "aaaaaaaa", user: str = ME, kind: str = "instance"
) -> Orphan:
    return Orphan(fleet, owner, user, kind, name, "z-a", NOW + 3600, 0.5)


def collect(world: World, *, everybody: bool = False) -> OrphansDeleted:
    return gc.run(gc.GcRequest(settings(project="p"), everybody=everybody), world.services(), world.sink)


def orphans_to_delete(world: World) -> dict[str, bool]:
    [event] = world.sink.of(OrphansFound)
    assert isinstance(event, OrphansFound)
    return {entry.name: entry.to_delete for entry in event.orphans}


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
    assert collect(fleet).deleted == 4
    assert orphans_to_delete(fleet) == {
        "mine": True, "mine too": True, "rule": True, "same name": True, "other": False, "other rule": False,
    }  # fmt: skip
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


def test_gc_continues_without_credentials_if_no_project_is_known(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(_: CloudProvider) -> list[Orphan]:
        raise ProviderError(ErrorKind.CREDENTIALS, "there are none")

    monkeypatch.setattr(CloudProvider, "orphans", unknown)
    gc.run(gc.GcRequest(), world.services(), world.sink)
    assert Note("skipped Compute Engine: there are none") in world.sink.events
    with pytest.raises(CredentialsError):
        collect(world)


# --- doctor -----------------------------------------------------------------------------------------------------

WELL = Finding("project", True, "it is p")
SICK = Finding("api", False, "it is disabled", next_steps=[("gcloud", "services", "enable", "compute")])


@pytest.mark.parametrize(
    ("findings", "error"),
    [
        ([WELL], None),
        ([WELL, SICK], NotReadyError),
        ([Finding("credentials", False, "none", next_steps=[("gcloud", "auth", "login")]), SICK], CredentialsError),
    ],
)
def test_doctor_reports_all_findings_and_exits_with_the_worst(
    world: World, findings: list[Finding], error: type[FleetError] | None
) -> None:
    world.cloud.findings = findings
    given = settings(project="p", endpoint="http://127.0.0.1:1", network="lab")
    if error is None:
        assert len(doctor("gce", given, world.services(), world.sink)) == 1
    else:
        with pytest.raises(error, match="failed for provider 'gce'") as failure:
            doctor("gce", given, world.services(), world.sink)
        assert next_lines(failure.value) == next(command_lines(finding) for finding in findings if not finding.ok)
    checks = [event for event in world.sink.events if isinstance(event, Checked)]
    assert [(event.subject, event.ok) for event in checks] == [(finding.subject, finding.ok) for finding in findings]
    wanted = GceOptions(project="p", endpoint="http://127.0.0.1:1", network="lab")
    assert world.clouds == [resolved(wanted)]  # what `fleet up` would create with these settings
    assert not world.state.exists()
