"""Answers of Compute Engine that few projects get: the emulator gives them, and the commands work all the same."""

from __future__ import annotations

import pytest

from fleet.errors import CapacityError, UsageError
from fleet.events import ZoneTried
from fleet.steps import Again
from provision.gce.catalog.machines import resolved
from provision.gce.options import GceOptions
from provision.gce.provider import GceProvider
from tests.cloud.customer import Customer
from tests.next_steps import repetition

OLD_CODE = {"code": "UNSUPPORTED_OPERATION", "message": "Instance failed to start due to preemption."}
NEW_CODE = {"code": "PREEMPTED", "message": "The instance was taken back."}
ONLY_TEXT = {"code": "SOMETHING_NEW", "message": "Instance failed to start due to preemption."}


@pytest.mark.parametrize(
    ("kind", "fields"),
    [("preempted", {}), *(("operation-error", fields) for fields in (OLD_CODE, NEW_CODE, ONLY_TEXT))],
)
def test_instances_that_are_preempted_while_being_created_are_created_elsewhere(
    user: Customer, kind: str, fields: dict[str, str]
) -> None:
    user.emulator.faults.add(kind, match="compute.instances.bulkInsert", zone="us-central1-a", times=0, **fields)
    events = user.up(spot=True, gpu="t4", zones=("us-central1-a", "us-central1-b")).of(ZoneTried)
    steps = [event.step for event in events if event.zone == "us-central1-a"]
    assert any("instances were preempted during their creation" in step for step in steps)
    assert {zone for zone, _ in user.emulator.cloud.instances} == {"us-central1-b"}
    user.down()
    assert user.held() == []
    user.emulator.faults.add("preempted", times=0)  # everywhere: a lack of capacity
    with pytest.raises(CapacityError) as failure:
        user.up(spot=True, gpu="t4")
    assert repetition(failure.value) == Again({"--retry-until-up": True}, "up")
    assert not user.emulator.state()["instances"]


@pytest.mark.parametrize("kept_s", [0.0, 86400.0])
def test_an_operation_that_is_not_known_has_ended_if_the_list_does_not_have_it(user: Customer, kept_s: float) -> None:
    user.emulator.cloud.operations.kept_s = kept_s
    user.emulator.faults.add("404", match="compute.*Operations.wait", times=0)
    user.up(gpu="t4")
    user.down()
    assert user.held() == []
    user.emulator.faults.add("stockout", times=0)  # the cause is in the list
    with pytest.raises(CapacityError, match="no capacity for 2 instances"):
        user.up(gpu="t4")
    assert not user.emulator.state()["instances"]


def test_lists_without_partial_success_are_used(user: Customer) -> None:
    user.emulator.cloud.has_partial_lists = False
    user.up()
    user.down()
    assert user.held() == []


@pytest.mark.parametrize(
    ("machine_type", "policy"),
    [
        ("n2-standard-4", "MIGRATE"),
        ("h3-standard-88", "TERMINATE"),
        ("c3-standard-192-metal", "TERMINATE"),
        ("z3-highmem-44-highlssd", "MIGRATE"),
        ("z3-highmem-176", "TERMINATE"),
    ],
)
def test_machines_that_cannot_migrate_stop_for_maintenance(user: Customer, machine_type: str, policy: str) -> None:
    user.emulator.set_quota("CPUS_ALL_REGIONS", 4096)
    user.up(machine_type=machine_type, zones=("us-central1-a",))
    scheduling = [each.body["scheduling"] for each in user.emulator.cloud.instances.values()]
    assert [each["onHostMaintenance"] for each in scheduling] == [policy] * 2


def test_login_names_that_the_images_cannot_have_are_refused(user: Customer) -> None:
    for name in ("admin", "sudo", "docker", "lxd", "systemd-journal", "www-data", "Ann", "a b", ""):
        with pytest.raises(UsageError, match="ssh-user"):
            user.up(ssh_user=name)
    assert not user.emulator.cloud.charges
    for name in ("fleet", "ann", "ubuntu", "root", "a_b-1", "administrator"):
        assert GceProvider.change(GceOptions(), {"ssh_user": name}).ssh_user == name
    stored = GceOptions(ssh_user="admin")  # of a fleet that exists, and can be deleted
    assert resolved(stored).ssh_user == "admin"
