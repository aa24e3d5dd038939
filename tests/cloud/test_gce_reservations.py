"""Fleets in reservations: what is refused before anything is created, and what instances request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fleet.errors import CapacityError, FleetError, UsageError
from fleet.events import Quoted
from fleet.state import Store
from provision.gce.catalog.machines import resolved
from provision.gce.options import GceOptions
from provision.gce.provider import GceProvider
from tests.cloud.customer import QUICK, Customer
from tests.emulator import Emulator
from tests.emulator.client import PROJECT, Client
from tests.next_steps import next_lines, repetition

ZONE = "us-central1-b"
T4: dict[str, Any] = {
    "machineType": "n1-standard-8",
    "guestAccelerators": [{"acceleratorType": "nvidia-tesla-t4", "acceleratorCount": 2}],
}


@pytest.fixture
def customer(user: Customer) -> Customer:
    """Return a user with a fleet of two workers in the reservation r1."""
    user.options["reservation"] = "r1"
    return user


def test_instances_are_created_in_the_zone_of_the_reservation(
    emulator: Emulator, client: Client, customer: Customer
) -> None:
    client.reserve("r1", 3, ZONE, **T4)
    emulator.set_capacity(ZONE, 0)  # for others
    [quoted] = customer.up(gpu="t4:2").of(Quoted)
    assert [offer.zone for offer in quoted.offers] == [ZONE]
    assert "reservation 'r1' is billed in place of these prices until you delete it" in quoted.notes
    for instance in emulator.cloud.instances.values():
        assert instance.blueprint.zone == ZONE
        assert instance.body["scheduling"]["provisioningModel"] == "STANDARD"
        assert instance.body["reservationAffinity"]["values"] == ["r1"]
    with pytest.raises(CapacityError, match="reservation 'r1' in us-central1-b has room for 1 instance, 2 requested"):
        customer.up(gpu="t4:2", workers=4)
    assert len(emulator.cloud.instances) == 2
    customer.up(gpu="t4:2", workers=3)
    assert len(emulator.cloud.instances) == 3
    customer.down()
    assert emulator.state()["instances"] == []


def test_series_without_machines_on_demand_are_bound_to_the_reservation(
    emulator: Emulator, client: Client, customer: Customer
) -> None:
    client.reserve("r1", 2, ZONE, machineType="a4-highgpu-8g")
    customer.up(gpu="b200:8", max_duration_s=0)
    for instance in emulator.cloud.instances.values():
        assert instance.body["scheduling"]["provisioningModel"] == "RESERVATION_BOUND"
        assert instance.body["scheduling"]["instanceTerminationAction"] == "DELETE"


@pytest.mark.parametrize(
    ("reservation", "values", "words", "again"),
    [
        (None, {}, "reservation 'r1' does not exist in project proj-1", None),
        ({"specific": False}, {}, "in us-central1-b cannot be selected by name", {"--reservation": None}),
        (
            {},
            {"zones": ("us-central1-a", "us-west4")},
            "is in us-central1-b, not in us-central1-a, us-west4",
            {"--zone": ZONE},
        ),
    ],
)
def test_a_reservation_that_does_not_fit_is_refused_before_anything_is_created(
    emulator: Emulator,
    client: Client,
    customer: Customer,
    reservation: dict[str, Any] | None,
    tmp_path: Path,
    values: dict[str, Any],
    words: str,
    again: dict[str, Any] | None,
) -> None:
    if reservation is not None:
        client.reserve("r1", 2, ZONE, **reservation)
    with pytest.raises(UsageError, match=words) as refusal:
        customer.up(**values)
    step = repetition(refusal.value)
    assert (step.change if step else None) == again
    given = {"project": PROJECT, "endpoint": emulator.url, "reservation": "r1", **values}
    provider = GceProvider("k3jq7xab", "me", Store(tmp_path), resolved(GceOptions(**given)), QUICK)
    [finding] = [each for each in provider.doctor() if each.subject == "reservation"]
    assert (finding.ok, finding.message) == (False, refusal.value.message)
    if "--zone" not in (again or {}):
        assert "gcloud compute reservations list --project proj-1" in next_lines(refusal.value)
    assert not emulator.cloud.charges
    assert not [name for name in emulator.state()["calls"] if "nstances" in name and "nsert" in name]


def test_a_reservation_in_a_zone_that_does_not_answer_is_not_taken_as_missing(
    emulator: Emulator, client: Client, customer: Customer
) -> None:
    client.reserve("r1", 2, ZONE)
    emulator.set_outage(ZONE)
    with pytest.raises(FleetError, match=f"{ZONE} did not answer|{ZONE} does not answer"):
        customer.up()
    emulator.set_outage()
    customer.up()


def test_a_shared_reservation_that_cannot_be_read_needs_a_zone(
    emulator: Emulator, client: Client, customer: Customer
) -> None:
    client.reserve("r1", 2, ZONE)
    path = "projects/other-proj/reservations/r1"
    with pytest.raises(UsageError, match="of project other-proj cannot be read, so its zone is unknown") as refusal:
        customer.up(reservation=path)
    assert "gcloud projects add-iam-policy-binding other-proj --role roles/compute.viewer" in next_lines(
        refusal.value
    )
    customer.up(reservation=path, zones=(ZONE,))
    for instance in emulator.cloud.instances.values():
        assert instance.body["reservationAffinity"]["values"] == [path]
