"""`fleet up` of rented instances: its messages and questions, and what is left after a failure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fleet.cli.fleets.up import run
from fleet.errors import CancelledError, FleetError, NotReadyError, QuotaError, UsageError
from fleet.events import FleetResized, Note, Quoted
from fleet.fleets.plan import UpRequest, keep_provider
from fleet.steps import Again, Shell
from provision.provider import ErrorKind, ProviderError
from tests.next_steps import next_lines, repetition
from tests.settings import settings
from tests.unit.fleet.clouds import World

ASKED = UpRequest("demo", settings(provider="gce", project="p"))
NOTHING = ProviderError(ErrorKind.CAPACITY, "no zone has room")


@pytest.mark.parametrize(
    ("given", "defaults", "change", "repeated"),
    [
        ({"zones": ("moon1",)}, {}, {"--zone": None}, {"--provider": "gce", "--zone": None}),
        ({"zones": ("moon1",)}, {"provider": "gce"}, {"--zone": None}, {"--zone": None}),
        ({"zones": ("moon1",)}, {"provider": "local"}, {"--zone": None}, {"--provider": "gce", "--zone": None}),
    ],
)
def test_a_repeated_command_selects_the_same_provider(
    given: dict[str, Any], defaults: dict[str, Any], change: dict[str, Any], repeated: dict[str, Any]
) -> None:
    request = UpRequest("demo", settings(**given), settings(**defaults))
    with pytest.raises(UsageError) as refusal, keep_provider(request):
        raise UsageError("no", next_steps=[Shell("true"), Again(change)])
    assert refusal.value.next_steps == (Shell("true"), Again(repeated))


@pytest.mark.parametrize("dry", [False, True])
def test_no_and_a_dry_run_touch_nothing(world: World, dry: bool) -> None:
    world.answers = [] if dry else [False]
    request = UpRequest("demo", ASKED.given, dry_run=dry)
    if dry:
        assert run(request, world.services(), world.sink) == ()
    else:
        with pytest.raises(CancelledError, match="nothing was created"):
            run(request, world.services(), world.sink)
    assert world.sink.of(Quoted)
    assert world.cloud.calls == []
    assert not world.state.exists()


def test_without_a_terminal_nothing_is_created(world: World) -> None:
    world.attended = False
    with pytest.raises(UsageError, match="costs money") as refusal:
        run(ASKED, world.services(), world.sink)
    assert repetition(refusal.value) == Again({"--yes": True})
    assert (world.asked, world.cloud.calls, world.state.exists()) == ([], [], False)


def test_a_fleet_that_changed_while_the_user_was_asked_is_not_paid_for(world: World) -> None:
    world.answers = [True, True]
    run(ASKED, world.services(), world.sink)
    world.cloud.instances.pop()

    def confirm(_: str) -> bool:
        world.cloud.instances.clear()
        return True

    with pytest.raises(NotReadyError, match="changed while waiting for confirmation"):
        run(UpRequest("demo"), replace(world.services(), confirm=confirm), world.sink)
    assert world.cloud.calls == ["create"]


def test_instances_whose_key_is_lost_are_not_taken_for_a_fleet(world: World) -> None:
    world.cloud.make("demo", "worker-0")
    world.answers = [True]
    with pytest.raises(NotReadyError, match="SSH key is missing on this computer") as refusal:
        run(ASKED, world.services(), world.sink)
    assert "fleet gc" in next_lines(refusal.value)
    assert world.cloud.calls == []


# --- no capacity ------------------------------------------------------------------------------------------------


def test_it_waits_for_capacity_without_a_limit(world: World) -> None:
    world.answers, world.cloud.failures = [True], [NOTHING] * 7
    run(UpRequest("demo", ASKED.given, retry_until_up=True), world.services(), world.sink)
    assert world.slept == [30, 60, 120, 240, 480, 600, 600]
    notes = [event.text for event in world.sink.events if isinstance(event, Note)]
    assert notes[0] == "no zone has room; retrying in 30 s until there is capacity; Ctrl-C stops"
    assert len(world.cloud.instances) == 2


# --- failures and interrupts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("second", "kind", "words"),
    [
        (KeyboardInterrupt(), CancelledError, "interrupted during cleanup"),
        (ProviderError(ErrorKind.CREDENTIALS, "they expired"), QuotaError, "the limit is 1"),
    ],
)
def test_a_failure_while_cleaning_up_says_that_something_may_be_left(
    world: World, monkeypatch: pytest.MonkeyPatch, second: BaseException, kind: type[FleetError], words: str
) -> None:
    def fail(*_: object) -> list[str]:
        raise second

    monkeypatch.setattr("tests.unit.fleet.clouds.CloudProvider.delete_fleet", fail)
    world.answers, world.cloud.broken = [True], ProviderError(ErrorKind.QUOTA, "the limit is 1")
    with pytest.raises(kind, match=words) as failure:
        run(ASKED, world.services(), world.sink)
    assert "resources may remain" in failure.value.message + failure.value.cause
    assert next_lines(failure.value) == "fleet down"
    assert world.store.names() == ["demo"]


def test_an_instance_that_could_not_be_deleted_is_deleted_by_the_next_up(world: World) -> None:
    world.answers = [True]
    run(UpRequest("demo", settings(provider="gce", project="p", workers=3)), world.services(), world.sink)
    world.cloud.stuck = {world.cloud.instances[2].id}
    with pytest.raises(FleetError, match="1 instance could not be deleted: worker-2"):
        run(UpRequest("demo", settings(workers=2)), world.services(), world.sink)
    record = world.store.fleet("demo").read()
    assert record is not None
    assert (record.spec.workers, len(record.instances), record.price_usd_h) == (2, 2, 1.0)
    world.cloud.stuck = set()
    run(UpRequest("demo"), world.services(), world.sink)
    assert world.sink.of(FleetResized) == [FleetResized("demo", 2, (), ("worker-2",), 1.0, 1.0)]
    assert len(world.cloud.instances) == 2
