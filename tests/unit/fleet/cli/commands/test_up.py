"""`fleet up` of rented instances: its messages and questions, and what is left after a failure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fleet.cli.fleets import up
from fleet.cli.fleets.up import run
from fleet.errors import CancelledError, FleetError, NotReadyError, QuotaError, UsageError
from fleet.events import FleetResized, Note, Quoted
from fleet.fleets.instances import KEEP_S
from fleet.fleets.plan import UpRequest, keep_provider
from fleet.steps import Again, Shell
from provision.provider import ErrorKind, ProviderError
from tests.next_steps import next_lines, repetition
from tests.settings import settings
from tests.unit.fleet.clouds import NOW, OFFERS, World

ASKED = UpRequest("demo", settings(provider="gce", project="p"))
NOTHING = ProviderError(ErrorKind.CAPACITY, "no zone has room")


def test_the_price_is_shown_and_confirmed_before_anything_is_created(world: World) -> None:
    seen: list[tuple[list[str], bool]] = []

    def confirm(question: str) -> bool:
        seen.append((list(world.cloud.calls), world.state.exists()))
        return World._confirm(world, question)

    world.answers = [True]
    summary = run(ASKED, replace(world.services(), confirm=confirm), world.sink)
    assert seen == [([], False)]
    assert world.asked == ["Proceed?"]
    assert world.sink.events[0] == Quoted("demo", "gce", "p", 2, OFFERS, False, "2026-11-01", 8 * 3600)
    assert summary.created == ("worker-0", "worker-1")


@pytest.mark.parametrize(
    ("given", "defaults", "change", "repeated"),
    [
        ({"zones": ("moon1",)}, {}, {"--zone": None}, {"--provider": "gce", "--zone": None}),
        ({"zones": ("moon1",), "spot": True}, {}, {"--zone": None}, {"--zone": None}),
        ({"zones": ("moon1",)}, {}, {"--zone": None, "--gpu": "t4"}, {"--zone": None, "--gpu": "t4"}),
        ({"zones": ("moon1",)}, {"provider": "gce"}, {"--zone": None}, {"--zone": None}),
        ({"zones": ("moon1",)}, {"provider": "local"}, {"--zone": None}, {"--provider": "gce", "--zone": None}),
        ({"provider": "gce", "zones": ("moon1",)}, {}, {"--zone": None}, {"--zone": None}),
        ({"workers": 2}, {}, {"--workers": None}, {"--workers": None}),
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
        assert run(request, world.services(), world.sink).created == ()
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
    "error",
    [
        KeyboardInterrupt(),
        ProviderError(ErrorKind.QUOTA, "the limit is 1", next_steps=[("fleet", "status"), ("gcloud", "info")]),
    ],
)
def test_what_a_failed_call_made_is_deleted_and_the_intent_is_written_before(
    world: World, error: BaseException
) -> None:
    world.answers, world.cloud.broken = [True], error
    with pytest.raises((CancelledError, QuotaError)) as failure:
        run(ASKED, world.services(), world.sink)
    assert repetition(failure.value) == Again({}, "up")
    assert "fleet" not in next_lines(failure.value)
    assert world.cloud.instances == []
    assert not world.store.names()


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


def test_instances_that_could_not_be_prepared_are_kept_for_the_next_try(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    reach = getattr(up, "reach")  # noqa: B009 - the fixture's

    def unprepared(*_: object, **__: object) -> list[object]:
        raise NotReadyError("worker-0 has no disk space", next_steps=[Shell("df -h")])

    monkeypatch.setattr(up, "reach", unprepared)
    world.answers, world.cloud.keeps = [True], True
    with pytest.raises(NotReadyError, match="no disk space") as failure:
        run(ASKED, world.services(), world.sink)
    until = NOW + 7200 + KEEP_S
    assert [instance.name for instance in world.cloud.instances] == ["worker-0", "worker-1"]
    assert world.cloud.stops == {"worker-0": until, "worker-1": until}
    assert "kept until" in failure.value.cause
    assert "uses them, else they stop then" in failure.value.cause
    assert "for $1.00/h" in failure.value.cause
    assert next_lines(failure.value) == "df -h\nfleet up\nfleet down"
    record = world.store.fleet("demo").read()
    assert record is not None
    assert (record.ready, record.kept, record.kept_until) == (False, ("worker-0", "worker-1"), until)

    changed = UpRequest("demo", settings(packages=("six",)))
    with pytest.raises(NotReadyError):
        run(changed, world.services(), world.sink)  # and they are kept again
    assert world.cloud.stops == {"worker-0": until, "worker-1": until}

    monkeypatch.setattr(up, "reach", reach)
    assert run(UpRequest("demo"), world.services(), world.sink).created == ()
    assert world.cloud.stops == {"worker-0": 0, "worker-1": 0}
    assert world.cloud.calls == ["create"]
    record = world.store.fleet("demo").read()
    assert record is not None
    assert (record.ready, record.kept, record.kept_until) == (True, (), 0.0)
    assert record.spec.packages == ("six",)


# --- another number of workers --------------------------------------------------------------------------------


def grow(workers: int) -> UpRequest:
    return UpRequest("demo", settings(workers=workers))


def test_growth_costs_only_the_new_instances_and_shrinking_deletes_the_last(world: World) -> None:
    world.answers = [True, True]
    run(ASKED, world.services(), world.sink)
    first = list(world.cloud.instances)
    assert run(grow(4), world.services(), world.sink).created == ("worker-2", "worker-3")
    assert [event.instances for event in world.sink.events if isinstance(event, Quoted)] == [2, 2]
    assert world.cloud.instances[:2] == first
    added, names = FleetResized("demo", 4, ("worker-2", "worker-3"), (), 0.0, 2.0), ("worker-2", "worker-3")
    assert world.sink.of(FleetResized) == [added]

    run(UpRequest("demo", settings(workers=2), dry_run=True), world.services(), world.sink)
    assert world.sink.events[-1] == Note("worker-[2-3] would be deleted")
    world.cloud.stuck = {world.cloud.instances[3].id}
    with pytest.raises(FleetError, match="1 instance could not be deleted: worker-3"):
        run(grow(2), world.services(), world.sink)
    record = world.store.fleet("demo").read()
    assert record is not None
    assert (record.spec.workers, len(record.hosts), len(record.instances), record.price_usd_h) == (2, 2, 2, 1.0)
    world.cloud.stuck = set()
    run(UpRequest("demo"), world.services(), world.sink)
    assert world.sink.of(FleetResized)[1:] == [FleetResized("demo", 2, (), names[1:], 1.0, 1.0)]
    assert world.cloud.instances == first
