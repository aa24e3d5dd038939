"""Zones in which a fleet may be created: the continent of the cheapest one, and the limit of the price."""

from __future__ import annotations

from typing import Any

import pytest

from fleet.errors import CapacityError, FleetError, QuotaError, UsageError
from fleet.events import Note, Quoted
from tests.cloud.customer import Customer, Quiet
from tests.emulator.catalog import ZONES
from tests.next_steps import next_lines, repetition


def quote(sink: Quiet) -> Quoted:
    """Return the price that a command has shown."""
    [quoted] = sink.of(Quoted)
    return quoted


def refuse(user: Customer, values: dict[str, Any], words: str, again: dict[str, Any]) -> FleetError:
    """Run `fleet up`, which fails with these words and recommends these options before it creates anything."""
    with pytest.raises(FleetError, match=words) as refusal:
        user.up(**values)
    step = repetition(refusal.value)
    assert step is not None
    assert step.change == again
    assert not user.emulator.cloud.charges
    return refusal.value


def fill(user: Customer, continent: str) -> None:
    for zone in ZONES:
        if zone.startswith(continent):
            user.emulator.set_capacity(zone, 0)


def test_other_continents_are_tried_only_if_requested(user: Customer) -> None:
    fill(user, "us-")
    with pytest.raises(CapacityError) as failure:
        user.up()
    assert "--anywhere tries all continents" in failure.value.hint
    assert "europe" not in failure.value.cause
    assert failure.value.cause.count("has no capacity") == 1
    assert not user.zones()
    quoted = quote(user.up(anywhere=True))
    prices = {offer.price_usd_h: offer.zone for offer in quoted.offers if offer.price_usd_h is not None}
    assert len(prices) > 1
    highest = max(prices)
    assert quoted.notes[0].startswith(f"highest price: ${2 * highest:.2f}/h for all, in {prices[highest][:-1]}")
    assert {offer.zone.partition("-")[0] for offer in quoted.offers} == {"us", "europe"}
    assert len(user.zones()) == 1
    assert not {zone for zone in user.zones() if zone.startswith("us-")}


@pytest.mark.parametrize(
    ("values", "words", "kind", "again", "command"),
    [
        (
            {"zones": ("us-central1-zz",)},
            "Compute Engine has no zone or region 'us-central1-zz'",
            UsageError,
            {"--zone": "us-central1"},
            "zones list",
        ),
        ({"zones": ("mars-north1",)}, "no zone or region 'mars-north1'", UsageError, {"--zone": None}, "zones list"),
        (
            {"machine_type": "n1-standrd-4"},
            "Compute Engine has no machine type 'n1-standrd-4'",
            UsageError,
            {"--machine-type": "n1-standard-4"},
            "machine-types list",
        ),
        (
            {"zones": ("europe-west2-a",), "gpu": "a100"},
            "europe-west2-a does not offer a2-highgpu-1g [+] 1 nvidia-tesla-a100",
            CapacityError,
            {"--zone": "us-central1"},
            "accelerator-types list",
        ),
    ],
)
def test_names_that_do_not_exist_are_refused_with_what_was_meant(
    user: Customer,
    values: dict[str, Any],
    words: str,
    kind: type[FleetError],
    again: dict[str, Any],
    command: str,
) -> None:
    refusal = refuse(user, values, words, again)
    assert isinstance(refusal, kind)
    assert f"gcloud compute {command} --project proj-1" in next_lines(refusal)


def test_zones_above_the_limit_are_neither_offered_nor_tried(user: Customer) -> None:
    fill(user, "us-central1")
    with pytest.raises(CapacityError):
        user.up(max_price_usd_h=0.22)
    assert not user.zones()
    user.up(max_price_usd_h=0.3)
    assert user.zones() <= {"us-west4-a", "us-west4-b"}


def test_the_limit_does_not_apply_to_stopped_instances(user: Customer) -> None:
    quoted = quote(user.up(idle_timeout_s=1800))
    assert "each powers off after 30 min without an active job and without a login" in quoted.notes
    user.emulator.advance(8.1 * 3600)
    user.emulator.settle()
    assert [instance.status for instance in user.emulator.cloud.instances.values()] == ["TERMINATED"] * 2
    with pytest.raises(UsageError, match="in the cheapest zone"):
        user.up(workers=3, max_price_usd_h=0.1)
    user.up(max_price_usd_h=0.1)
    assert [instance.status for instance in user.emulator.cloud.instances.values()] == ["RUNNING"] * 2


@pytest.mark.parametrize(
    ("values", "words", "again"),
    [
        (
            {"max_price_usd_h": 0.1},
            r"n1-standard-4 costs \$0.22/h .* in the cheapest zone, us-cen",
            {"--max-price": "0.22"},
        ),
        (
            {"machine_type": "n2-standard-4", "max_price_usd_h": 5.0},
            "the price of n2-standard-4 is unknown",
            {"--max-price": None},
        ),
    ],
)
def test_a_limit_that_no_zone_keeps_is_refused_before_anything_is_created(
    user: Customer, values: dict[str, Any], words: str, again: dict[str, Any]
) -> None:
    refuse(user, values, words, again)


def test_a_quota_that_is_refused_everywhere_is_not_a_lack_of_capacity(user: Customer) -> None:
    user.emulator.faults.add("quota", match="compute.*ulkInsert", times=0, metric="NVIDIA_H100_GPUS", limit=1)
    for retry in (False, True):
        with pytest.raises(QuotaError, match=r"the quota NVIDIA_H100_GPUS .* allows 1 in us-central1") as refusal:
            user.up(retry=retry, gpu="t4")
        assert "us-central1" in refusal.value.cause
        assert "us-west4" in refusal.value.cause
        assert "https://console.cloud.google.com/iam-admin/quotas?project=proj-1" in refusal.value.hint
        assert not user.zones()


def test_a_quota_that_is_too_small_in_one_region_is_named_while_waiting(user: Customer) -> None:
    fill(user, "us-central1")
    for zone in ("us-west4-a", "us-west4-b"):
        user.emulator.faults.add("quota", zone=zone, times=0, metric="NVIDIA_T4_GPUS", limit=1)
    with pytest.raises(CapacityError) as failure:
        user.up(gpu="t4")
    assert failure.value.message.startswith("no capacity for 2 instances (n1-standard-4 + 1 nvidia-tesla-t4) in ")
    assert failure.value.message.endswith(", and the quota NVIDIA_T4_GPUS of project proj-1 allows 1 in us-west4")
    assert "--quota-id NVIDIA-T4-GPUS-per-project-region" in next_lines(failure.value)
    sink = Quiet()

    def grow(_: float) -> None:
        [note] = [note.text for note in sink.of(Note) if "retrying in" in note.text]
        assert "the quota NVIDIA_T4_GPUS of project proj-1 allows 1 in us-west4; retrying in 30 s" in note
        user.emulator.set_capacity("us-central1-a", 2)

    user.sleep = grow
    user.up(sink, retry=True, gpu="t4")
    assert user.zones() == {"us-central1-a"}
