"""Instances that restart while `fleet up` lists them: they keep their disks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleet.cli.fleets import down, extend, up
from fleet.errors import UnreachableError
from fleet.events import Note
from fleet.fleets.plan import UpRequest
from fleet.state import Store
from provision.gce import create
from provision.gce.access.service_account import NEEDED
from tests.cloud.histories import QUICK, QuickServices, Quiet, patched
from tests.cloud.moves.unattended import start
from tests.emulator import Emulator, lifecycle
from tests.settings import settings

EMAIL = "trainer@proj-1.iam.gserviceaccount.com"


def services(tmp_path: Path, sleep: Callable[[float], None]) -> QuickServices:
    return QuickServices(Store(tmp_path), lambda _: True, consent=lambda _: True, timing=QUICK, sleep=sleep)


def begin(emulator: Emulator, status: str) -> None:
    """Let all instances begin to start: by a killed client, by another host, or by Compute Engine itself."""
    for instance in emulator.cloud.instances.values():
        instance.body["status"] = status


def finish(emulator: Emulator) -> None:
    with emulator.cloud.clock.changed:
        for instance in emulator.cloud.instances.values():
            lifecycle.start(emulator.cloud, instance)


@pytest.mark.parametrize(("status", "is_late"), [("STAGING", False), ("REPAIRING", False), ("STAGING", True)])
def test_up_keeps_instances_that_are_being_started_again(
    status: str, is_late: bool, emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patched(monkeypatch, emulator)
    place = settings(provider="gce", project="proj-1", endpoint=emulator.url, zones=("us-central1-a",), workers=2)
    world = services(tmp_path, lambda _: finish(emulator))
    up.run(UpRequest("demo", place), world, Quiet())
    down.run(down.DownRequest("demo", keep_disks=True), world, Quiet())
    before = {instance.body["id"] for instance in emulator.cloud.instances.values()}
    if is_late:  # after `fleet up` has listed the instances
        create_now = create.create

        def create_late(*arguments: Any) -> None:
            begin(emulator, status)
            emulator.cloud.clock.call_in(0.1, lambda: finish(emulator))
            create_now(*arguments)

        monkeypatch.setattr(create, "create", create_late)
    else:
        begin(emulator, status)
    up.run(UpRequest("demo", place), world, Quiet())
    assert {instance.body["id"] for instance in emulator.cloud.instances.values()} == before
    assert {instance.status for instance in emulator.cloud.instances.values()} == {"RUNNING"}


def test_no_host_starts_another_after_down_keep_disks(
    emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patched(monkeypatch, emulator)
    unattended = {"spot": True, "unattended": True, "service_account": EMAIL}
    place = settings(provider="gce", project="proj-1", endpoint=emulator.url, workers=2, **unattended)
    emulator.cloud.governance.service_accounts[EMAIL] = True
    emulator.cloud.governance.roles["roles/owner"] = list(NEEDED)
    emulator.cloud.governance.members["roles/owner"].add(f"serviceAccount:{EMAIL}")
    world = services(tmp_path, lambda _: None)
    up.run(UpRequest("demo", place), world, Quiet())
    lost, other = emulator.cloud.instances.values()
    emulator.preempt(lost.blueprint.name, 0.0)
    emulator.advance(1.0)
    down.run(down.DownRequest("demo", keep_disks=True), world, Quiet())
    assert not start(other, lost, 0)
    finish(emulator)  # in the console
    up.run(UpRequest("demo", place), world, Quiet())
    emulator.preempt(lost.blueprint.name, 0.0)
    emulator.advance(1.0)
    assert start(other, lost, 0)


def test_up_warns_of_planned_maintenance(emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patched(monkeypatch, emulator)
    place = settings(provider="gce", project="proj-1", endpoint=emulator.url, zones=("us-central1-a",), workers=1)
    world, sink = services(tmp_path, lambda _: None), Quiet()
    up.run(UpRequest("demo", place), world, Quiet())
    [instance] = emulator.cloud.instances.values()
    emulator.plan_maintenance(instance.body["name"], 86400.0, 600.0)
    up.run(UpRequest("demo", place), world, sink)
    [note] = [note.text for note in sink.of(Note) if "maintenance" in note.text]
    assert note.endswith(": stops worker-0")


def test_extend_reports_instances_that_are_deleted_while_it_stops_them(
    emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patched(monkeypatch, emulator)
    place = settings(
        provider="gce", project="proj-1", endpoint=emulator.url, zones=("us-central1-a",), max_cost_usd=5.0
    )
    world = services(tmp_path, lambda _: None)
    up.run(UpRequest("demo", place), world, Quiet())
    monkeypatch.setattr("provision.gce.power.stop", lambda *_: [])
    with pytest.raises(UnreachableError, match="deleted while they were being stopped"):
        extend.run(extend.ExtendRequest("demo", 3600.0), world, Quiet())
