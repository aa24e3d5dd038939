"""The life of the emulator's instances, with Google's client."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

import pytest

from tests.emulator import Emulator
from tests.emulator import library as compute
from tests.emulator.client import NAT, PROJECT, Client, codes, limited, spot, t4

ZONE = "us-central1-a"
AT_ZONE: dict[str, Any] = {"project": PROJECT, "zone": ZONE}


@pytest.fixture(scope="module")
def running() -> Iterator[Emulator]:
    with Emulator(operation_s=0.01) as emulator:
        yield emulator


def test_an_instance_is_created_shown_and_deleted_with_its_disk(emulator: Emulator, client: Client) -> None:
    operation = client.insert("demo", **t4(2))
    assert operation.status in (compute.Operation.Status.PENDING, compute.Operation.Status.RUNNING)
    done = client.wait(operation)
    assert (done.operation_type, done.user, done.progress) == ("insert", "you@example.com", 100)
    assert done.target_link.endswith("/zones/us-central1-a/instances/demo")
    assert done.insert_time < done.start_time < done.end_time

    instance = client.instances.get(**AT_ZONE, instance="demo")
    assert instance.status == "RUNNING"
    assert instance.id == done.target_id
    assert instance.labels == {"fleet": "demo"}
    assert instance.machine_type.endswith("/zones/us-central1-a/machineTypes/n1-standard-4")
    [interface] = instance.network_interfaces
    assert interface.network_i_p.startswith("127.")
    assert interface.access_configs[0].nat_i_p.startswith("127.")
    assert interface.access_configs[0].nat_i_p != interface.network_i_p
    [accelerator] = instance.guest_accelerators
    assert (accelerator.accelerator_type.rsplit("/", 1)[-1], accelerator.accelerator_count) == ("nvidia-tesla-t4", 2)

    disk = client.disks.get(**AT_ZONE, disk="demo")
    assert (disk.size_gb, disk.labels, disk.users) == (100, {"fleet": "demo"}, [instance.self_link])
    with pytest.raises(compute.exceptions.BadRequest, match="is already being used by"):
        client.disks.delete_unary(**AT_ZONE, disk="demo")

    client.wait(client.instances.delete_unary(**AT_ZONE, instance="demo"))
    assert emulator.state()["instances"] == emulator.state()["disks"] == []
    with pytest.raises(compute.exceptions.NotFound, match="was not found"):
        client.instances.delete_unary(**AT_ZONE, instance="demo")


def test_an_instance_passes_through_all_states() -> None:
    with Emulator(operation_s=100.0) as emulator:
        client = Client(emulator.url)
        client.insert("demo")
        seen = [list(client.all_instances())]
        for seconds in (21, 40, 60):
            emulator.clock.advance(seconds)
            seen.append([instance.status for instance in client.all_instances().values()])
        client.instances.delete_unary(**AT_ZONE, instance="demo")
        for seconds in (21, 80):
            emulator.clock.advance(seconds)
            seen.append([instance.status for instance in client.all_instances().values()])
    assert seen == [[], ["PROVISIONING"], ["STAGING"], ["RUNNING"], ["STOPPING"], []]


def test_a_disk_without_auto_delete_is_kept(emulator: Emulator, client: Client) -> None:
    params = compute.AttachedDiskInitializeParams(
        source_image="projects/debian-cloud/global/images/family/debian-12",
        disk_type=f"zones/{ZONE}/diskTypes/pd-ssd",
    )
    client.create("demo", disks=[compute.AttachedDisk(boot=True, auto_delete=False, initialize_params=params)])
    client.wait(client.instances.delete_unary(**AT_ZONE, instance="demo"))
    assert emulator.state()["disks"] == ["demo"]
    with pytest.raises(compute.exceptions.Conflict, match="disks/demo' already exists"):
        client.insert("demo")
    client.wait(client.disks.delete_unary(**AT_ZONE, disk="demo"))
    assert emulator.state()["disks"] == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"machine": "n2-standard-4", **t4()}, r"\[n2-standard-4, nvidia-tesla-t4\] features are not compatible"),
        ({**t4(3)}, "must be one of"),
        ({**t4(), "scheduling": {}}, "do not support live migration"),
        ({"machine": "n1-standard-5"}, "does not exist in zone"),
        ({"labels": {"Fleet": "demo"}}, "does not conform"),
        ({"scheduling": {"max_run_duration": {"seconds": 60}}}, "instanceTerminationAction"),
        ({"scheduling": limited(10)}, "from 30 seconds to 120 days"),
        ({"tags": {"items": ["no_tag"]}}, "Must be a match of regex"),
        ({"disks": []}, "boot disk"),
    ],
)
def test_invalid_requests_are_refused_as_by_the_real_api(
    emulator: Emulator, client: Client, fields: Any, message: str
) -> None:
    with pytest.raises(compute.exceptions.BadRequest, match=message):
        client.insert("demo", **fields)
    emulator.settle()
    assert emulator.state()["instances"] == []


def test_a_missing_network_image_or_accelerator_is_refused(emulator: Emulator, client: Client) -> None:
    emulator.set_networks("other")
    with pytest.raises(compute.exceptions.NotFound, match="global/networks/default' was not found"):
        client.insert("demo")
    path = "zones/us-west4-a/acceleratorTypes/nvidia-tesla-v100"
    v100 = compute.AcceleratorConfig(accelerator_count=1, accelerator_type=path)
    with pytest.raises(compute.exceptions.NotFound, match="acceleratorTypes/nvidia-tesla-v100' was not found"):
        client.insert("demo", "us-west4-a", guest_accelerators=[v100])
    image = "projects/deeplearning-platform-release/global/images/family/tf2-latest-gpu"
    disk = compute.AttachedDisk(boot=True, initialize_params=compute.AttachedDiskInitializeParams(source_image=image))
    with pytest.raises(compute.exceptions.NotFound, match="family/tf2-latest-gpu' was not found"):
        client.insert("demo", disks=[disk])


def test_a_name_can_be_used_once(client: Client) -> None:
    client.create("demo")
    with pytest.raises(compute.exceptions.Conflict, match="instances/demo' already exists") as caught:
        client.insert("demo")
    assert caught.value.errors[0]["reason"] == "alreadyExists"
    client.create("demo", "us-central1-b")


def test_a_bulk_insert_in_a_zone_creates_all_instances(client: Client) -> None:
    done = client.wait(client.bulk_insert(["worker-0", "worker-1"], ZONE, **t4(bulk=True)))
    assert codes(done) == []
    status = done.instances_bulk_insert_operation_metadata.per_location_status[f"zones/{ZONE}"]
    assert (status.created_vm_count, status.failed_to_create_vm_count, status.status) == (2, 0, "DONE")
    assert {name: instance.status for name, instance in client.all_instances().items()} == {
        "worker-0": "RUNNING",
        "worker-1": "RUNNING",
    }
    children = client.all_operations(
        f'(operationGroupId eq ".*\\b{done.operation_group_id}\\b.*")(operationType eq insert)'
    )
    assert sorted(operation.target_link.rsplit("/", 1)[-1] for operation in children) == ["worker-0", "worker-1"]


def test_a_bulk_insert_in_a_region_uses_a_zone_with_capacity(emulator: Emulator, client: Client) -> None:
    emulator.set_capacity("us-central1-a", 1, "nvidia-tesla-t4")
    emulator.set_capacity("us-central1-b", 0)
    client.wait(client.bulk_insert(["worker-0", "worker-1"], "us-central1", **t4(bulk=True)))
    assert {instance.zone.rsplit("/", 1)[-1] for instance in client.all_instances().values()} == {"us-central1-c"}
    client.wait(client.bulk_insert(["other-0"], "us-central1", ["us-central1-f"], **t4(bulk=True)))
    assert client.all_instances()["other-0"].zone.endswith("us-central1-f")


def test_a_bulk_insert_creates_all_instances_or_none(emulator: Emulator, client: Client) -> None:
    emulator.set_capacity(ZONE, 1)
    emulator.set_capacity("us-central1-c", 5)
    done = client.wait(client.bulk_insert(["worker-0", "worker-1"], ZONE))
    assert codes(done) == ["VM_MIN_COUNT_NOT_REACHED", "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"]
    info = done.error.errors[1].error_details[2].error_info
    assert (info.metadatas["vmType"], info.metadatas["zonesAvailable"]) == ("n1-standard-4", "us-central1-c")
    status = done.instances_bulk_insert_operation_metadata.per_location_status[f"zones/{ZONE}"]
    assert (status.created_vm_count, status.deleted_vm_count, status.failed_to_create_vm_count) == (1, 1, 1)
    assert emulator.state()["instances"] == emulator.state()["disks"] == []

    done = client.wait(client.bulk_insert(["worker-0", "worker-1"], ZONE, min_count=1))
    assert codes(done) == []
    assert len(emulator.state()["instances"]) == 1


def test_child_operations_hold_the_cause_of_a_failed_regional_bulk_insert(emulator: Emulator, client: Client) -> None:
    emulator.set_quota("NVIDIA_T4_GPUS", 1, "us-central1")
    done = client.wait(client.bulk_insert(["worker-0", "worker-1"], "us-central1", **t4(bulk=True)))
    assert codes(done) == ["VM_MIN_COUNT_NOT_REACHED"]
    children = client.all_operations(f'operationGroupId = "{done.operation_group_id}" AND operationType = insert')
    failed = [operation for operation in children if operation.error.errors]
    assert [codes(operation) for operation in failed] == [["QUOTA_EXCEEDED"]]
    assert failed[0].error.errors[0].message == "Quota 'NVIDIA_T4_GPUS' exceeded.  Limit: 1.0 in region us-central1."
    assert failed[0].http_error_status_code == 403


@pytest.mark.parametrize(
    ("metric", "limit", "fields"),
    [
        ("GPUS_ALL_REGIONS", 0, t4()),
        ("NVIDIA_T4_GPUS", 0, t4()),
        ("PREEMPTIBLE_NVIDIA_T4_GPUS", 1, {**t4(2), "scheduling": spot()}),
        ("PREEMPTIBLE_NVIDIA_T4_GPUS", 1, {**t4(2), "scheduling": {**t4()["scheduling"], **limited(3600)}}),
        ("CPUS", 3, {}),
        ("IN_USE_ADDRESSES", 0, {}),
        ("DISKS_TOTAL_GB", 99, {}),
    ],
)
def test_quotas_are_enforced(emulator: Emulator, client: Client, metric: str, limit: float, fields: Any) -> None:
    emulator.set_quota(metric, limit)
    done = client.wait(client.insert("demo", **fields))
    assert codes(done) == ["QUOTA_EXCEEDED"]
    details = done.error.errors[0].error_details[0].quota_info
    assert (details.metric_name, details.limit) == (f"compute.googleapis.com/{metric.lower()}", limit)
    assert emulator.state()["instances"] == emulator.state()["disks"] == []


def test_quotas_show_their_usage(client: Client) -> None:
    client.create("demo", **{**t4(2), "scheduling": spot()})
    region = client.of("Regions").get(project=PROJECT, region="us-central1")
    used = {quota.metric: quota.usage for quota in region.quotas if quota.usage}
    assert used == {
        "CPUS": 4,
        "DISKS_TOTAL_GB": 100,
        "INSTANCES": 1,
        "IN_USE_ADDRESSES": 1,
        "PREEMPTIBLE_NVIDIA_T4_GPUS": 2,
    }
    project = client.of("Projects").get(project=PROJECT)
    assert {quota.metric: quota.usage for quota in project.quotas}["GPUS_ALL_REGIONS"] == 2


@pytest.mark.parametrize("preemptible", [1, 0])
@pytest.mark.parametrize("scheduling", [spot(), {**limited(3600), "on_host_maintenance": "TERMINATE"}])
def test_preemptible_gpus_use_the_other_quota_only_without_one_for_them(
    emulator: Emulator, client: Client, preemptible: int, scheduling: Any
) -> None:
    emulator.set_quota("NVIDIA_T4_GPUS", 1 - preemptible)
    emulator.set_quota("PREEMPTIBLE_NVIDIA_T4_GPUS", preemptible)
    client.create("demo", **{**t4(), "scheduling": scheduling})


def test_a_stockout_is_reported_before_a_quota(emulator: Emulator, client: Client) -> None:
    emulator.set_quota("GPUS_ALL_REGIONS", 0)
    emulator.set_capacity(ZONE, 0, "nvidia-tesla-t4")
    done = client.wait(client.insert("demo", **t4()))
    assert codes(done) == ["ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"]
    assert done.http_error_status_code == 503


def test_an_instance_keeps_its_resources_over_stop_and_start(emulator: Emulator, client: Client) -> None:
    made = client.create("demo", **t4())
    client.wait(client.instances.stop_unary(**AT_ZONE, instance="demo"))
    stopped = client.instances.get(**AT_ZONE, instance="demo")
    assert (stopped.status, stopped.network_interfaces[0].access_configs[0].nat_i_p) == ("TERMINATED", "")
    quotas = client.of("Projects").get(project=PROJECT).quotas
    assert {quota.metric: quota.usage for quota in quotas}["GPUS_ALL_REGIONS"] == 0

    emulator.set_capacity(ZONE, 0)
    assert codes(client.wait(client.instances.start_unary(**AT_ZONE, instance="demo"))) == [
        "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"
    ]
    emulator.set_capacity(ZONE, 1)
    client.wait(client.instances.start_unary(**AT_ZONE, instance="demo"))
    started = client.instances.get(**AT_ZONE, instance="demo")
    assert (started.id, started.status) == (made.id, "RUNNING")
    [before], [after] = made.network_interfaces, started.network_interfaces
    assert after.network_i_p == before.network_i_p
    assert after.access_configs[0].nat_i_p not in ("", before.access_configs[0].nat_i_p)


@pytest.mark.parametrize(("restarts", "status"), [(True, "RUNNING"), (False, "TERMINATED")])
def test_an_instance_restarts_after_an_error_of_its_host(
    restarts: bool, status: str, emulator: Emulator, client: Client
) -> None:
    made = client.create("demo", scheduling=compute.Scheduling(automatic_restart=restarts))
    emulator.fail_host("demo")
    emulator.settle()
    ended = client.instances.get(**AT_ZONE, instance="demo")
    assert (ended.id, ended.status) == (made.id, status)
    kinds = [operation.operation_type for operation in client.of("ZoneOperations").list(**AT_ZONE)]
    assert "compute.instances.hostError" in kinds
    assert ("compute.instances.automaticRestart" in kinds) is restarts


def test_settling_does_not_skip_time_if_the_operations_end_meanwhile() -> None:
    with Emulator(operation_s=100.0) as emulator:
        client = Client(emulator.url)
        client.insert("demo", scheduling=limited(3600))
        emulator.settle()
        fields = {"name": "kept", "source_ranges": ["10.0.0.0/8"], "allowed": [{"I_p_protocol": "tcp"}]}
        client.of("Firewalls").insert_unary(project=PROJECT, firewall_resource=fields)
        settling = threading.Thread(target=emulator.settle)
        with emulator.clock.lock:
            settling.start()
            settling.join(0.2)  # it has seen the operation, and waits for the lock
            emulator.clock.advance(100.0)
        settling.join()
        assert client.instances.get(**AT_ZONE, instance="demo").status == "RUNNING"


def test_scheduling_can_be_set_only_while_stopped(client: Client) -> None:
    client.create("demo", scheduling=limited(3600))
    change: dict[str, Any] = {"instance": "demo", "scheduling_resource": limited(7200), **AT_ZONE}
    with pytest.raises(compute.exceptions.BadRequest, match="TERMINATED"):
        client.instances.set_scheduling_unary(**change)
    client.wait(client.instances.stop_unary(**AT_ZONE, instance="demo"))
    assert client.instances.get(**AT_ZONE, instance="demo").resource_status.scheduling.termination_timestamp == ""
    client.wait(client.instances.set_scheduling_unary(**change))
    client.wait(client.instances.start_unary(**AT_ZONE, instance="demo"))
    assert client.instances.get(**AT_ZONE, instance="demo").scheduling.max_run_duration.seconds == 7200


def test_a_start_keeps_a_fixed_end_and_is_refused_after_it(emulator: Emulator, client: Client) -> None:
    end = datetime.fromtimestamp(emulator.clock.now() + 3600, timezone.utc).isoformat(timespec="seconds")
    client.create("demo", scheduling={"termination_time": end, "instance_termination_action": "STOP"})
    client.wait(client.instances.stop_unary(**AT_ZONE, instance="demo"))
    emulator.clock.advance(1800)
    client.wait(client.instances.start_unary(**AT_ZONE, instance="demo"))
    emulator.clock.advance(1810)
    emulator.settle()
    assert client.instances.get(**AT_ZONE, instance="demo").status == "TERMINATED"
    with pytest.raises(compute.exceptions.BadRequest, match="terminationTime"):
        client.instances.start_unary(**AT_ZONE, instance="demo")


@pytest.mark.parametrize(("action", "left"), [("DELETE", []), ("STOP", ["TERMINATED"])])
def test_a_limited_run_ends_by_itself(emulator: Emulator, client: Client, action: str, left: list[str]) -> None:
    made = client.create("demo", scheduling=limited(3600, action))
    assert made.resource_status.scheduling.termination_timestamp > made.last_start_timestamp
    emulator.clock.advance(3590)
    assert client.instances.get(**AT_ZONE, instance="demo").status == "RUNNING"
    emulator.clock.advance(20)
    emulator.settle()
    assert [instance.status for instance in client.all_instances().values()] == left
    [operation] = client.all_operations("user=system")
    assert operation.operation_type == action.lower()


def test_a_stop_clears_the_time_limit_until_the_next_start(emulator: Emulator, client: Client) -> None:
    client.create("demo", scheduling=limited(3600))
    client.wait(client.instances.stop_unary(**AT_ZONE, instance="demo"))
    emulator.clock.advance(7200)
    emulator.settle()
    assert client.instances.get(**AT_ZONE, instance="demo").status == "TERMINATED"
    client.wait(client.instances.start_unary(**AT_ZONE, instance="demo"))
    emulator.clock.advance(3610)
    emulator.settle()
    assert not client.all_instances()


@pytest.mark.parametrize(("action", "left"), [("DELETE", []), ("STOP", ["TERMINATED"])])
def test_a_spot_instance_is_preempted(emulator: Emulator, client: Client, action: str, left: list[str]) -> None:
    made = client.create("demo", scheduling=spot(action))
    emulator.preempt("demo", grace_s=30)
    assert client.instances.get(**AT_ZONE, instance="demo").status == "STOPPING"
    emulator.clock.advance(31)
    emulator.settle()
    assert [instance.status for instance in client.all_instances().values()] == left
    [operation] = client.all_operations(f'operationType="compute.instances.preempted" AND targetId={made.id}')
    assert (operation.user, operation.status_message) == ("system", "Instance was preempted.")


def test_only_spot_instances_can_be_preempted(emulator: Emulator, client: Client) -> None:
    client.create("demo")
    with pytest.raises(ValueError, match="not a spot instance"):
        emulator.preempt("demo")
    with pytest.raises(LookupError, match="no instance other runs"):
        emulator.preempt("other")


@pytest.mark.parametrize("stops", [True, False])
def test_a_simulated_maintenance_event_stops_an_instance_that_cannot_migrate(
    emulator: Emulator, client: Client, stops: bool
) -> None:
    client.create("demo", scheduling={"on_host_maintenance": "TERMINATE" if stops else "MIGRATE"})
    client.wait(client.instances.simulate_maintenance_event_unary(**AT_ZONE, instance="demo"))
    emulator.advance(61)
    emulator.settle()
    assert client.instances.get(**AT_ZONE, instance="demo").status == ("TERMINATED" if stops else "RUNNING")


def test_planned_maintenance_is_shown_until_it_stops_the_instance(emulator: Emulator, client: Client) -> None:
    client.create("demo", **t4())
    emulator.plan_maintenance("demo", 2 * 3600.0, 600.0)
    status = client.instances.get(**AT_ZONE, instance="demo").resource_status
    assert status.upcoming_maintenance.maintenance_status == "PENDING"
    emulator.advance(2 * 3600.0 + 1)
    emulator.settle()
    stopped = client.instances.get(**AT_ZONE, instance="demo")
    assert (stopped.status, stopped.resource_status.upcoming_maintenance.window_start_time) == ("TERMINATED", "")


def test_a_simulated_maintenance_event_preempts_a_spot_instance(emulator: Emulator, client: Client) -> None:
    client.create("demo", scheduling=spot())
    client.wait(client.instances.simulate_maintenance_event_unary(**AT_ZONE, instance="demo"))
    emulator.clock.advance(31)
    emulator.settle()
    assert client.all_instances() == {}


def test_an_instance_deleted_in_its_grace_period_is_deleted_once(emulator: Emulator, client: Client) -> None:
    client.create("demo", scheduling=spot())
    emulator.preempt("demo", grace_s=5)
    client.wait(client.instances.delete_unary(**AT_ZONE, instance="demo"))
    client.create("demo", scheduling=spot())
    emulator.clock.advance(6)
    emulator.settle()
    assert list(client.all_instances()) == ["demo"]


def test_a_deletion_waits_for_the_creation(emulator: Emulator, client: Client) -> None:
    creation = client.bulk_insert(["worker-0", "worker-1"], ZONE)
    deadline = time.monotonic() + 90
    while not (deletions := _delete_existing(client)):
        assert time.monotonic() < deadline, "the instances did not appear"
    for deletion in deletions:
        assert codes(client.wait(deletion)) == []
    assert codes(client.wait(creation)) == []
    assert emulator.state()["instances"] == emulator.state()["disks"] == []


def _delete_existing(client: Client) -> list[compute.Operation]:
    return [client.instances.delete_unary(**AT_ZONE, instance=name) for name in client.all_instances()]


def test_a_host_key_and_a_console_log_are_published(client: Client) -> None:
    client.create("demo")
    query = compute.GetGuestAttributesInstanceRequest(instance="demo", query_path="hostkeys/", **AT_ZONE)
    [item] = client.instances.get_guest_attributes(request=query).query_value.items
    assert (item.namespace, item.key) == ("hostkeys", "ssh-ed25519")
    query = compute.GetGuestAttributesInstanceRequest(instance="demo", variable_key="hostkeys/ssh-ed25519", **AT_ZONE)
    assert client.instances.get_guest_attributes(request=query).variable_value == item.value
    output = client.instances.get_serial_port_output(instance="demo", **AT_ZONE)
    assert item.value in output.contents
    rest = compute.GetSerialPortOutputInstanceRequest(instance="demo", start=output.next_, **AT_ZONE)
    assert client.instances.get_serial_port_output(request=rest).contents == ""


def test_an_instance_without_guest_attributes_has_no_host_key(client: Client) -> None:
    client.create("demo", metadata=compute.Metadata())
    query = compute.GetGuestAttributesInstanceRequest(instance="demo", query_path="hostkeys/", **AT_ZONE)
    with pytest.raises(compute.exceptions.NotFound) as caught:
        client.instances.get_guest_attributes(request=query)
    assert caught.value.errors[0]["message"] == "The resource 'hostkeys/' of type 'Guest Attribute' was not found."


def test_metadata_and_labels_require_the_current_fingerprint(client: Client) -> None:
    made = client.create("demo")
    items = [*made.metadata.items, compute.Items(key="more", value="1")]
    stale = {
        "instance": "demo",
        "metadata_resource": compute.Metadata(items=items, fingerprint="c3RhbGU="),
        **AT_ZONE,
    }
    with pytest.raises(compute.exceptions.PreconditionFailed, match="fingerprint"):
        client.instances.set_metadata_unary(**stale)
    current = compute.Metadata(items=items, fingerprint=made.metadata.fingerprint)
    client.wait(client.instances.set_metadata_unary(**{**stale, "metadata_resource": current}))
    labels = compute.InstancesSetLabelsRequest(labels={"fleet": "other"}, label_fingerprint=made.label_fingerprint)
    client.wait(
        client.instances.set_labels_unary(instance="demo", instances_set_labels_request_resource=labels, **AT_ZONE)
    )
    changed = client.instances.get(**AT_ZONE, instance="demo")
    assert {item.key: item.value for item in changed.metadata.items}["more"] == "1"
    assert changed.labels == {"fleet": "other"}


def test_an_instance_without_an_access_config_has_no_external_address(client: Client) -> None:
    made = client.create("demo", network_interfaces=[compute.NetworkInterface(network="global/networks/default")])
    assert list(made.network_interfaces[0].access_configs) == []
    made = client.create("other", network_interfaces=[compute.NetworkInterface(access_configs=NAT)])
    assert made.network_interfaces[0].access_configs[0].nat_i_p


def test_addresses_are_never_shared_nor_reused_soon(client: Client) -> None:
    cards = [client.create(name).network_interfaces[0] for name in ("one", "two")]
    client.wait(client.instances.delete_unary(**AT_ZONE, instance="one"))
    cards.append(client.create("three").network_interfaces[0])
    assert len({card.network_i_p for card in cards} | {card.access_configs[0].nat_i_p for card in cards}) == 6


def test_reset_deletes_all_resources(emulator: Emulator, client: Client) -> None:
    client.create("demo")
    client.insert("other")
    emulator.set_capacity(ZONE, 0)
    emulator.reset()
    assert emulator.state() == {
        "instances": [],
        "disks": [],
        "firewalls": [],
        "addresses": [],
        "policies": [],
        "images": [],
        "operations": [],
        "violations": [],
        "calls": {},
    }
    client.create("demo")
