"""The emulator is not kinder than Compute Engine: what it refuses, how calls and instances end, and what waits."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from google.api_core import exceptions

from tests.emulator import Emulator
from tests.emulator.client import PROJECT, ZONE, Client, codes, limited, spot, t4
from tests.emulator.discovery import discovery
from tests.emulator.listing import FilterError, parse_filter

PAIR = ["worker-0", "worker-1"]
STOCKOUT = "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"
INSTANCES = f"/compute/v1/projects/{PROJECT}/zones/{ZONE}/instances"
DISK = f"projects/{PROJECT}/zones/{ZONE}/disks/demo"


@pytest.fixture(scope="module")
def running() -> Iterator[Emulator]:
    with Emulator(operation_s=0.01) as emulator:
        yield emulator


@pytest.fixture
def slow() -> Iterator[Emulator]:
    """Run an emulator each operation of which takes 100 seconds of its clock."""
    with Emulator(operation_s=100.0) as emulator:
        yield emulator


def boot_disk(image: str, size_gb: int = 100, **fields: Any) -> list[dict[str, Any]]:
    params = {"source_image": image, "disk_size_gb": size_gb}
    return [{"boot": True, "auto_delete": True, "initialize_params": params, **fields}]


def flex_start(wait_s: int = 0, run_s: int = 3600, **fields: Any) -> dict[str, Any]:
    """Return the fields of a Flex-start VM with a T4."""
    scheduling = {**t4()["scheduling"], "provisioning_model": "FLEX_START", **limited(run_s)}
    params = {"params": {"request_valid_for_duration": {"seconds": wait_s}}} if wait_s else {}
    return {**t4(), "scheduling": scheduling, **params, **fields}


def affinity(name: str = "r1") -> dict[str, Any]:
    """Return the field of an instance that selects a reservation."""
    key, kind = "compute.googleapis.com/reservation-name", "SPECIFIC_RESERVATION"
    return {"reservation_affinity": {"consume_reservation_type": kind, "key": key, "values": [name]}}


# --- requests that are refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "body", "problem"),
    [
        ("instances.insert", {"name": "a", "colour": "red"}, "Instance: unknown field 'colour'"),
        ("instances.insert", {"name": 1}, "Instance.name: 1 is not a string"),
        ("instances.insert", {}, "Instance: required field 'name' is missing"),
        ("instances.insert", {"name": "a", "disks": {}}, "Instance.disks: {} is not a list"),
        ("instances.insert", {"name": "a", "canIpForward": "yes"}, "Instance.canIpForward: 'yes' is not a boolean"),
        ("instances.insert", {"name": "No"}, "'No' does not match [a-z]"),
        ("instances.insert", {"name": "a", "tags": {"fingerprint": "?"}}, "'?' is not base64"),
        ("instances.insert", {"name": "a", "scheduling": {"provisioningModel": "CHEAP"}}, "'CHEAP' is none of"),
        ("instances.bulkInsert", {"count": "two"}, "count: 'two' is not a valid int64"),
        ("instances.insert", [], "Instance: [] is not an object"),
        ("instances.insert", None, "no body"),
        ("instances.delete", {"name": "a"}, "a body where none belongs"),
    ],
)
def test_requests_that_do_not_fit_googles_schema_are_refused(method: str, body: Any, problem: str) -> None:
    document = discovery()
    [message] = document.check_request(document.methods[f"compute.{method}"], body)
    assert problem in message


def test_a_violation_is_answered_recorded_and_has_no_effect(running: Emulator) -> None:
    running.reset()
    answer = requests.post(running.url + INSTANCES, json={"name": "demo", "colour": "red"}, timeout=60)
    assert answer.status_code == 400
    assert running.state()["violations"] == ["client: compute.instances.insert: Instance: unknown field 'colour'"]
    assert running.state()["instances"] == []
    answer = requests.delete(f"{running.url}{INSTANCES}/demo?requestId=one", timeout=60)
    assert "'one' is not a UUID" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("projects/proj-1/zones/us-east1-b", 404, "The resource 'projects/proj-1/zones/us-east1-b' was not found"),
        ("projects/proj-1/zones/us-east1-b/instances", 400, "Invalid value for field 'zone': 'us-east1-b'."),
        ("projects/other/zones", 404, "The resource 'projects/other' was not found"),
        ("projects/proj-1/global/sslCertificates", 501, ""),
        ("projects/proj-1/aggregated/instances?filter=colour%3Dred", 400, "Invalid list filter expression"),
    ],
)
def test_places_and_methods_that_do_not_exist_are_refused(
    emulator: Emulator, path: str, status: int, message: str
) -> None:
    answer = requests.get(f"{emulator.url}/compute/v1/{path}", timeout=60)
    assert (answer.status_code, message in answer.json()["error"]["message"]) == (status, True)


REFUSED: list[tuple[Any, str]] = [
    ({"machine": "n2-standard-4", **t4()}, r"\[n2-standard-4, nvidia-tesla-t4\] features are not compatible"),
    (t4(3), "must be one of"),
    ({**t4(), "scheduling": {}}, "do not support live migration"),
    ({"machine": "n1-standard-5"}, "does not exist in zone"),
    ({"labels": {"Fleet": "demo"}}, "does not conform"),
    ({"scheduling": {"max_run_duration": {"seconds": 60}}}, "instanceTerminationAction"),
    ({"scheduling": limited(10)}, "from 30 seconds to 120 days"),
    ({"tags": {"items": ["no_tag"]}}, "Must be a match of regex"),
    ({"disks": []}, "boot disk"),
    ({"network_interfaces": [{"network": "global/networks/other"}]}, "global/networks/other' was not found"),
    ({"disks": boot_disk("projects/p/global/images/family/f")}, "family/f' was not found"),
    ({"machine": "c4-standard-4"}, "pd-standard disk type cannot be used by c4-standard-4"),
    (flex_start(60), "from 90 seconds to 2 hours"),
    (flex_start(run_s=8 * 24 * 3600), "for 10 minutes to 7 days"),
    (flex_start(guest_accelerators=[]), "n1-standard-4 without GPUs"),
    ({**flex_start(90), "scheduling": t4()["scheduling"]}, "only for the provisioning model FLEX_START"),
    (affinity("r2"), "do not exist"),
    (affinity("any"), "can not be targeted as specificReservationRequired is not set"),
    ({**affinity(), "machine": "n1-standard-8"}, "does not match the properties"),
    ({**affinity(), "scheduling": spot()}, "cannot consume a specific reservation"),
]


@pytest.mark.parametrize(("fields", "message"), REFUSED, ids=range(len(REFUSED)))
def test_instances_that_compute_engine_would_refuse_are_refused(
    emulator: Emulator, client: Client, fields: Any, message: str
) -> None:
    client.reserve("r1", 1)
    client.reserve("any", 1, specific=False)
    with pytest.raises(exceptions.ClientError, match=message):
        client.insert("demo", **fields)
    emulator.settle()
    assert emulator.state()["instances"] == []


def test_changes_that_the_state_of_an_instance_forbids_are_refused(emulator: Emulator, client: Client) -> None:
    made = client.create("demo", scheduling=limited(3600))
    stale = {"items": [], "fingerprint": "c3RhbGU="}
    rules = [{"I_p_protocol": "tcp"}]
    calls: list[tuple[str, Callable[[], Any]]] = [
        ("instances/demo' already exists", lambda: client.insert("demo")),
        ("is already being used by", lambda: client.call("Disks", "delete_unary", zone=ZONE, disk="demo")),
        ("metadata fingerprint", lambda: client.on("demo", "set_metadata", metadata_resource=stale)),
        ("TERMINATED", lambda: client.on("demo", "set_scheduling", scheduling_resource=limited(7200))),
        ("was not found", lambda: client.on("other", "stop")),
        ("already being used by", lambda: insert_image(client)),
        (
            "CIDR",
            lambda: client.call(
                "Firewalls",
                "insert_unary",
                firewall_resource={"name": "f", "source_ranges": ["me"], "allowed": rules},
            ),
        ),
        ("is not supported by instances", lambda: client.bulk_insert(["a"], ZONE, **flex_start_in_bulk())),
    ]
    for message, call in calls:
        with pytest.raises(exceptions.ClientError, match=message):
            call()
    client.do("demo", "set_metadata", metadata_resource={**stale, "fingerprint": made.metadata.fingerprint})


def flex_start_in_bulk() -> dict[str, Any]:
    return {**flex_start(), "guest_accelerators": t4(bulk=True)["guest_accelerators"]}


def insert_image(client: Client, name: str = "mine") -> Any:
    return client.call(
        "Images", "insert_unary", image_resource={"name": name, "source_disk": DISK, "labels": {"a": "b"}}
    )


def test_permissions_are_tested_and_enforced(emulator: Emulator, client: Client) -> None:
    client.create("demo")
    client.do("demo", "stop")
    calls: dict[str, Callable[[], Any]] = {
        "compute.instances.create": lambda: client.bulk_insert(["other"], ZONE),
        "compute.images.setLabels": lambda: insert_image(client),
        "compute.disks.useReadOnly": lambda: insert_image(client),
        "compute.instances.list": client.all_instances,
    }
    for permission, call in calls.items():
        emulator.deny(permission)
        url = f"{emulator.url}/v1/projects/{PROJECT}:testIamPermissions"
        asked = {"permissions": [permission, "compute.instances.get"]}
        assert requests.post(url, json=asked, timeout=60).json() == {"permissions": ["compute.instances.get"]}
        with pytest.raises(exceptions.Forbidden, match=permission):
            call()
        emulator.cloud.denied.clear()


# --- faults ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "settings", "status", "reason", "message"),
    [
        ("403-disabled", {}, 403, "accessNotConfigured", "has not been used in project proj-1 before"),
        ("403-forbidden", {}, 403, "forbidden", "Required 'compute.instances.create' permission for"),
        ("403-rate", {}, 403, "rateLimitExceeded", "Quota exceeded for quota metric 'Queries'"),
        ("404", {}, 404, "notFound", "The resource 'projects/proj-1' was not found"),
        ("409", {"resource": "projects/p/x"}, 409, "alreadyExists", "The resource 'projects/p/x' already exists"),
        ("412", {}, 412, "conditionNotMet", "Constraint constraints/compute.vmExternalIpAccess violated"),
        ("429", {}, 429, "rateLimitExceeded", "Quota exceeded for quota metric 'Queries'"),
        ("500", {}, 500, "backendError", "Internal error"),
        ("503", {}, 503, "backendError", "currently unavailable"),
        ("quota-http", {"metric": "CPUS"}, 403, "quotaExceeded", "Quota 'CPUS' exceeded.  Limit: 0.0 in region us-c"),
        ("http", {"status": 400, "reason": "odd", "message": "Oh."}, 400, "odd", "Oh."),
    ],
)
def test_each_http_error_reaches_the_client_and_has_no_effect(
    emulator: Emulator, client: Client, kind: str, settings: Any, status: int, reason: str, message: str
) -> None:
    emulator.faults.add(kind, "compute.instances.insert", **settings)
    with pytest.raises(exceptions.GoogleAPICallError) as caught:
        client.insert("demo")
    assert (caught.value.code, caught.value.errors[0]["reason"]) == (status, reason)
    assert message in str(caught.value)
    emulator.settle()
    assert emulator.state()["instances"] == []
    client.create("demo")


FAILED: list[tuple[str, dict[str, Any], list[str], int, int]] = [
    ("stockout", {}, [STOCKOUT], 0, 0),
    ("stockout-plain", {}, ["ZONE_RESOURCE_POOL_EXHAUSTED"], 0, 0),
    ("preempted", {}, ["PREEMPTED"], 0, 0),
    ("quota", {}, ["QUOTA_EXCEEDED"], 0, 0),
    ("partial", {}, [STOCKOUT], 0, 0),
    ("partial-left", {}, [STOCKOUT], 1, 1),
    ("disk-left", {}, [STOCKOUT], 0, 2),
    ("operation-error", {"code": "ODD", "message": "Oh."}, ["ODD"], 0, 0),
    ("fails-after", {}, ["INTERNAL_ERROR"], 2, 2),
]


@pytest.mark.parametrize(
    ("kind", "settings", "expected", "instances", "disks"), FAILED, ids=[row[0] for row in FAILED]
)
def test_each_failure_of_an_operation_leaves_what_it_says(
    emulator: Emulator,
    client: Client,
    kind: str,
    settings: dict[str, Any],
    expected: list[str],
    instances: int,
    disks: int,
) -> None:
    emulator.faults.add(kind, **settings)
    done = client.wait(client.bulk_insert(PAIR, ZONE, **t4(bulk=True)))
    minimum = [] if kind in ("operation-error", "fails-after") else ["VM_MIN_COUNT_NOT_REACHED"]
    assert codes(done) == [*minimum, *expected]
    state = emulator.state()
    assert (len(state["instances"]), len(state["disks"])) == (instances, disks)


def test_lost_and_reset_connections_differ_in_their_effect(emulator: Emulator, client: Client) -> None:
    number = str(uuid.uuid4())
    for kind, error, left in (("reset", "ConnectionResetError", []), ("lost", "RemoteDisconnected", PAIR)):
        emulator.faults.add(kind, "compute.*.bulkInsert")
        with pytest.raises(requests.exceptions.ConnectionError, match=error):
            client.bulk_insert(PAIR, ZONE, request_id=number)
        emulator.settle()
        assert emulator.state()["instances"] == left
    [started] = client.all_operations(f"clientOperationId={number}")
    assert client.bulk_insert(PAIR, ZONE, request_id=number).name == started.name  # a repetition has no effect


def test_answers_and_operations_can_be_slow(emulator: Emulator, client: Client) -> None:
    emulator.faults.add("slow", "compute.instances.aggregatedList", seconds=0.2)
    began = time.monotonic()
    client.all_instances()
    assert time.monotonic() - began >= 0.2
    emulator.faults.add("slow-operation", "compute.instances.insert", seconds=60)
    operation = client.insert("demo")
    emulator.clock.advance(30)
    assert emulator.state()["operations"] == [operation.name]
    emulator.settle()
    assert emulator.state()["instances"] == ["demo"]


def test_a_fault_strikes_the_calls_of_its_rule(emulator: Emulator) -> None:
    def draw(times: int) -> list[bool]:
        call: dict[str, Any] = {"in_batch": False, "place": ZONE, "makes_operation": False}
        return [emulator.faults.draw("compute.zones.get", **call) is not None for _ in range(times)]

    emulator.faults.add("503", nth=2, times=2)
    assert draw(5) == [False, True, True, False, False]
    for rule in ({"kind": "503", "zone": "us-west4-a"}, {"kind": "stockout"}, {"kind": "fails-after"}):
        emulator.faults.add(times=0, **rule)
    assert draw(2) == [False, False]


def test_the_emulator_is_controlled_over_http(emulator: Emulator, client: Client) -> None:
    def post(action: str, **body: Any) -> tuple[int, Any]:
        answer = requests.post(f"{emulator.url}/emulator/{action}", json=body, timeout=60)
        return answer.status_code, answer.json()

    error = {"code": 418, "message": "I am a teapot", "errors": [{"reason": "tea", "message": "I am a teapot"}]}
    assert post("faults", kind="http", match="compute.instances.insert", status=418, body={"error": error})[0] == 200
    with pytest.raises(exceptions.GoogleAPICallError, match="I am a teapot"):
        client.insert("demo")
    assert "no field 'colour'" in post("faults", kind="404", colour="red")[1]["error"]
    assert "must be int" in post("faults", kind="404", nth="2")[1]["error"]
    assert post("capacity", zone=ZONE, limit=0)[0] == 200
    assert codes(client.wait(client.insert("demo"))) == [STOCKOUT]
    before = emulator.clock.now()
    assert post("advance", seconds=3600)[0] == 200
    assert emulator.clock.now() > before + 3599
    assert [post("preempt", name="demo")[0], post("quota", metric="NONE", limit=0)[0], post("nothing")[0]] == [
        400,
        400,
        404,
    ]
    assert post("clear")[0] == 200
    client.create("demo")
    assert requests.get(f"{emulator.url}/emulator/state", timeout=60).json()["instances"] == ["demo"]


def test_the_emulator_starts_by_hand_and_ends_with_a_signal() -> None:
    words = [sys.executable, "-m", "tests.emulator", "--no-guests", "--operation-s", "0", "--project", "other"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as process:
        try:
            assert process.stdout is not None
            ready, url, *project = process.stdout.readline().split()
            assert (ready, project) == ("ready:", ["project", "other"])
            assert requests.get(f"{url}/compute/v1/projects/other/zones", timeout=60).status_code == 200
            process.send_signal(signal.SIGTERM)
            assert process.wait(90) == 0
        finally:
            process.kill()


# --- capacity and quotas --------------------------------------------------------------------------------------------


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
    region = client.call("Regions", "get", region="us-central1")
    used = {quota.metric: quota.usage for quota in region.quotas if quota.usage}
    expected = {"CPUS": 4, "DISKS_TOTAL_GB": 100, "INSTANCES": 1, "IN_USE_ADDRESSES": 1}
    assert used == {**expected, "PREEMPTIBLE_NVIDIA_T4_GPUS": 2}


def test_a_bulk_insert_creates_all_instances_in_one_zone_or_none(emulator: Emulator, client: Client) -> None:
    emulator.set_quota("GPUS_ALL_REGIONS", 0)  # a stockout is reported before it
    emulator.set_capacity(ZONE, 1)
    emulator.set_capacity("us-central1-c", 5)
    done = client.wait(client.bulk_insert(PAIR, ZONE, **t4(bulk=True)))
    assert codes(done) == ["VM_MIN_COUNT_NOT_REACHED", "QUOTA_EXCEEDED"]
    done = client.wait(client.bulk_insert(PAIR, ZONE))
    assert codes(done) == ["VM_MIN_COUNT_NOT_REACHED", STOCKOUT]
    info = done.error.errors[1].error_details[2].error_info
    assert (info.metadatas["vmType"], info.metadatas["zonesAvailable"]) == ("n1-standard-4", "us-central1-c")
    assert emulator.state()["instances"] == emulator.state()["disks"] == []
    assert codes(client.wait(client.bulk_insert(PAIR, "us-central1-c"))) == []
    assert {instance.zone[-1] for instance in client.all_instances().values()} == {"c"}


def test_child_operations_have_the_cause_of_a_failed_bulk_insert(emulator: Emulator, client: Client) -> None:
    emulator.set_quota("NVIDIA_T4_GPUS", 1, "us-central1")
    done = client.wait(client.bulk_insert(PAIR, ZONE, **t4(bulk=True)))
    assert codes(done) == ["VM_MIN_COUNT_NOT_REACHED", "QUOTA_EXCEEDED"]
    children = client.all_operations(f'operationGroupId = "{done.operation_group_id}" AND operationType = insert')
    assert [code for child in children for code in codes(child)] == ["QUOTA_EXCEEDED"]


def test_a_reservation_has_room_for_its_count(client: Client) -> None:
    client.reserve("r1", 1)
    client.create("first", **affinity())
    assert codes(client.wait(client.insert("second", **affinity()))) == ["ZONE_RESOURCE_POOL_EXHAUSTED"]
    with pytest.raises(exceptions.BadRequest, match="is in use"):
        client.call("Reservations", "delete_unary", zone=ZONE, reservation="r1")


def test_a_flex_start_request_waits_expires_or_is_deleted(slow: Emulator) -> None:
    client = Client(slow.url)
    slow.set_capacity(ZONE, 0)
    waiting, expiring, deleted = (
        client.insert(name, **flex_start(wait_s))
        for name, wait_s in (("waits", 7200), ("expires", 90), ("deleted", 7200))
    )
    slow.clock.advance(110)
    assert (client.instance("waits").status, slow.state()["disks"], slow.cloud.charges) == ("PENDING", [], [])
    client.on("deleted", "delete")
    slow.clock.advance(300)
    assert codes(client.wait(expiring)) == [STOCKOUT]
    assert codes(client.wait(deleted)) == ["RESOURCE_NOT_FOUND"]
    slow.set_capacity(ZONE, 5)
    slow.clock.advance(300)
    assert codes(client.wait(waiting)) == []
    assert {name: each.status for name, each in client.all_instances().items()} == {"waits": "RUNNING"}


# --- the life of instances ------------------------------------------------------------------------------------------


def test_an_instance_passes_through_all_states(slow: Emulator) -> None:
    client = Client(slow.url)
    client.insert("demo")
    seen = [client.statuses()]
    for seconds in (21, 40, 60):
        slow.clock.advance(seconds)
        seen.append(client.statuses())
    client.on("demo", "delete")
    for seconds in (21, 80):
        slow.clock.advance(seconds)
        seen.append(client.statuses())
    assert seen == [[], ["PROVISIONING"], ["STAGING"], ["RUNNING"], ["STOPPING"], []]
    assert slow.state()["disks"] == []


def test_an_image_can_be_used_when_its_operation_has_ended(slow: Emulator) -> None:
    client = Client(slow.url)
    slow.set_quota("IMAGES", 1)
    client.insert("demo")
    slow.settle()
    client.on("demo", "stop")
    slow.settle()
    first, second = insert_image(client), insert_image(client, "second")
    slow.clock.advance(30)
    image = f"projects/{PROJECT}/global/images/mine"
    calls: dict[str, Callable[[], Any]] = {
        "is not ready": lambda: client.insert("other", disks=boot_disk(image)),
        "already being used by 'projects/.*/images/mine'": lambda: client.on("demo", "delete"),
    }
    for message, call in calls.items():
        with pytest.raises(exceptions.BadRequest, match=message):
            call()
    slow.settle()
    assert [codes(client.wait(operation)) for operation in (first, second)] == [[], ["QUOTA_EXCEEDED"]]
    with pytest.raises(exceptions.BadRequest, match=r"cannot be smaller than the image size \(100 GB\)"):
        client.insert("other", disks=boot_disk(image, 99))


def test_an_instance_keeps_its_resources_over_stop_and_start(emulator: Emulator, client: Client) -> None:
    made = client.create("demo", **t4())
    client.do("demo", "stop")
    stopped = client.instance("demo")
    assert (stopped.status, stopped.network_interfaces[0].access_configs[0].nat_i_p) == ("TERMINATED", "")
    emulator.set_capacity(ZONE, 0)
    assert codes(client.do("demo", "start")) == [STOCKOUT]
    emulator.set_capacity(ZONE, 1)
    client.do("demo", "start")
    started = client.instance("demo")
    assert (started.id, started.status) == (made.id, "RUNNING")
    [before], [after] = made.network_interfaces, started.network_interfaces
    assert after.network_i_p == before.network_i_p
    assert after.access_configs[0].nat_i_p not in ("", before.access_configs[0].nat_i_p)


def end_by_limit(emulator: Emulator, client: Client) -> None:
    emulator.clock.advance(3590)
    assert client.instance("demo").status == "RUNNING"
    emulator.clock.advance(20)


def end_by_preemption(emulator: Emulator, client: Client) -> None:
    emulator.preempt("demo", grace_s=30)
    assert client.instance("demo").status == "STOPPING"
    emulator.clock.advance(31)


def end_by_maintenance(emulator: Emulator, client: Client) -> None:
    emulator.plan_maintenance("demo", 2 * 3600.0, 600.0)
    assert client.instance("demo").resource_status.upcoming_maintenance.maintenance_status == "PENDING"
    emulator.advance(2 * 3600.0 + 1)


def end_by_host_error(emulator: Emulator, client: Client) -> None:
    emulator.fail_host("demo")


@pytest.mark.parametrize(
    ("end", "fields", "kind", "left"),
    [
        (end_by_limit, {"scheduling": limited(3600)}, "delete", []),
        (end_by_limit, {"scheduling": limited(3600, "STOP")}, "stop", ["TERMINATED"]),
        (end_by_preemption, {"scheduling": spot()}, "preempted", []),
        (end_by_preemption, {"scheduling": spot("STOP")}, "preempted", ["TERMINATED"]),
        (end_by_maintenance, t4(), "terminateOnHostMaintenance", ["TERMINATED"]),
        (end_by_host_error, {"scheduling": {"automatic_restart": True}}, "hostError", ["RUNNING"]),
        (end_by_host_error, {"scheduling": {"automatic_restart": False}}, "hostError", ["TERMINATED"]),
    ],
)
def test_an_instance_ends_by_itself(
    emulator: Emulator,
    client: Client,
    end: Callable[[Emulator, Client], None],
    fields: Any,
    kind: str,
    left: list[str],
) -> None:
    client.create("demo", **fields)
    end(emulator, client)
    emulator.settle()
    assert client.statuses() == left
    kinds = [operation.operation_type.rpartition(".")[2] for operation in client.all_operations("user=system")]
    assert kind in kinds


def test_a_limit_is_gone_while_stopped_and_begins_again_with_a_start(emulator: Emulator, client: Client) -> None:
    client.create("demo", scheduling=limited(3600))
    client.do("demo", "stop")
    assert client.instance("demo").resource_status.scheduling.termination_timestamp == ""
    client.do("demo", "set_scheduling", scheduling_resource=limited(7200))
    emulator.clock.advance(7300)
    assert client.statuses() == ["TERMINATED"]
    client.do("demo", "start")
    emulator.clock.advance(3700)
    assert client.statuses() == ["RUNNING"]
    emulator.clock.advance(3700)
    emulator.settle()
    assert client.statuses() == []


def test_a_deletion_waits_for_the_creation(slow: Emulator) -> None:
    client = Client(slow.url)
    creation = client.bulk_insert(PAIR, ZONE)
    slow.clock.advance(30)
    deletions = [client.on(name, "delete") for name in client.all_instances()]
    assert len(deletions) == 2
    slow.settle()
    assert [codes(client.wait(operation)) for operation in (creation, *deletions)] == [[], [], []]
    assert slow.state()["instances"] == slow.state()["disks"] == []


# --- lists and batches ----------------------------------------------------------------------------------------------


def test_lists_are_returned_in_pages_and_lack_zones_that_do_not_answer(emulator: Emulator, client: Client) -> None:
    names = [f"worker-{index}" for index in range(5)]
    client.wait(client.bulk_insert(names, ZONE))
    client.create("other", "us-west4-b", labels={"fleet": "other"})
    assert sorted(client.all_instances("labels.fleet=demo", max_results=2)) == names
    assert emulator.state()["calls"]["compute.instances.aggregatedList"] == 3
    emulator.set_outage(ZONE)
    url = f"{emulator.url}/compute/v1/projects/{PROJECT}"
    lists = f"{url}/aggregated/instances"
    assert [requests.get(each, timeout=60).status_code for each in (f"{url}/zones/{ZONE}/instances", lists)] == [
        503
    ] * 2
    answer = requests.get(lists, {"returnPartialSuccess": "true"}, timeout=60).json()
    assert answer["unreachables"] == [f"projects/proj-1/zones/{ZONE}"]
    assert answer["items"][f"zones/{ZONE}"]["warning"]["code"] == "UNREACHABLE"
    assert "instances" in answer["items"]["zones/us-west4-b"]


WORKER: dict[str, Any] = {
    "name": "demo-worker-1",
    "status": "RUNNING",
    "labels": {"fleet": "demo", "fleet-owner": "abc"},
    "tags": {"items": ["demo", "other"]},
    "creationTimestamp": "2026-11-20T10:00:00.500Z",
}


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        ("", True),
        ("labels.fleet = demo AND labels.fleet-owner = abc", True),
        ("labels.fleet=demo labels.fleet-owner=xyz", False),
        ("(labels.fleet=demo) (status=RUNNING)", True),
        ("labels.none:*", False),
        ("labels.none!=x", True),
        ("NOT status=RUNNING", False),
        ("name=demo-*", True),
        ("name=demo", False),
        ("status=STOPPING OR status=RUNNING AND name=none", False),
        ("tags.items=other", True),
        ('creationTimestamp>"2026-11-20T10:00:00Z"', True),
        (r'labels.fleet eq ".*\bdemo\b.*"', True),
        ("name ne worker-1", True),
    ],
)
def test_filters_select_resources(text: str, passes: bool) -> None:
    assert parse_filter(text, WORKER.__contains__)(WORKER) is passes


@pytest.mark.parametrize("text", ["name", "name=", "(name=a", "name=a)", "=a", "colour=red", "name ~ a", "AND"])
def test_invalid_filters_raise_an_error(text: str) -> None:
    with pytest.raises(FilterError):
        parse_filter(text, lambda name: name != "colour")


def batch(url: str, *calls: tuple[str, str]) -> list[int]:
    """Return the status of each call of a batch request."""
    part = "--b\r\nContent-Type: application/http\r\nContent-ID: <call>\r\n\r\n{} {} HTTP/1.1\r\n\r\n\r\n"
    data = "".join(part.format(verb, path) for verb, path in calls) + "--b--"
    headers = {"Content-Type": 'multipart/mixed; boundary="b"'}
    answer = requests.post(f"{url}/batch/compute/v1", data=data, headers=headers, timeout=60)
    answer.raise_for_status()
    return [int(line.split()[1]) for line in answer.text.splitlines() if line.startswith("HTTP/1.1")]


def test_faults_apply_to_batches_and_their_calls(emulator: Emulator, client: Client) -> None:
    client.wait(client.bulk_insert([*PAIR, "worker-2"], ZONE))
    calls = [("DELETE", f"{INSTANCES}/worker-{index}") for index in range(3)]
    emulator.faults.add("429", "batch.*", nth=2)
    assert batch(emulator.url, *calls[:2], ("GET", f"{INSTANCES}/none")) == [200, 429, 404]
    emulator.settle()
    assert emulator.state()["instances"] == ["worker-1", "worker-2"]
    assert emulator.state()["calls"]["batch.compute.instances.delete"] == 2
    emulator.faults.add("lost", "batch")
    with pytest.raises(requests.exceptions.ConnectionError):
        batch(emulator.url, calls[1])
    emulator.settle()
    assert emulator.state()["instances"] == ["worker-2"]
    with pytest.raises(requests.exceptions.HTTPError, match="400"):
        batch(emulator.url, *[("GET", INSTANCES)] * 1001)
