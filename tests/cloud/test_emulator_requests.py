"""Requests to the emulator: validation, filters, pages, batches, repeats, permissions."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from email.parser import BytesParser
from typing import Any

import pytest
import requests

from tests.emulator import Emulator
from tests.emulator import library as compute
from tests.emulator.client import PROJECT, Client
from tests.emulator.discovery import discovery
from tests.emulator.filters import FilterError, parse_filter

ZONE = "us-central1-a"
AT_ZONE: dict[str, Any] = {"project": PROJECT, "zone": ZONE}
INSTANCES = f"/compute/v1/projects/{PROJECT}/zones/{ZONE}/instances"


@pytest.fixture(scope="module")
def running() -> Iterator[Emulator]:
    with Emulator(operation_s=0.0) as emulator:
        yield emulator


@pytest.fixture
def emulator(running: Emulator) -> Emulator:
    """Reset the running emulator; tests break the rules of the API."""
    running.reset()
    return running


@pytest.fixture
def session() -> Iterator[requests.Session]:
    with requests.Session() as session:
        yield session


@pytest.mark.parametrize(
    ("method", "body", "problem"),
    [
        ("compute.instances.insert", {"name": "a", "colour": "red"}, "Instance: unknown field 'colour'"),
        ("compute.instances.insert", {"name": 1}, "Instance.name: 1 is not a string"),
        ("compute.instances.insert", {}, "Instance: required field 'name' is missing"),
        ("compute.instances.insert", {"name": "a", "disks": {}}, "Instance.disks: {} is not a list"),
        ("compute.instances.insert", {"name": "a", "labels": {"x": 1}}, "Instance.labels.x: 1 is not a string"),
        (
            "compute.instances.insert",
            {"name": "a", "canIpForward": "yes"},
            "Instance.canIpForward: 'yes' is not a boolean",
        ),
        ("compute.instances.insert", {"name": "No"}, "'No' does not match [a-z]"),
        ("compute.instances.insert", {"name": "a", "tags": {"fingerprint": "?"}}, "'?' is not base64"),
        (
            "compute.instances.insert",
            {"name": "a", "scheduling": {"provisioningModel": "CHEAP"}},
            "Instance.scheduling.provisioningModel: 'CHEAP' is none of",
        ),
        (
            "compute.instances.bulkInsert",
            {"count": "two"},
            "BulkInsertInstanceResource.count: 'two' is not a valid int64",
        ),
        (
            "compute.instances.bulkInsert",
            {"instanceProperties": {"guestAccelerators": [{"acceleratorCount": 1.5}]}},
            "acceleratorCount: 1.5 is not an integer",
        ),
        ("compute.instances.insert", [], "Instance: [] is not an object"),
        ("compute.instances.insert", None, "no body"),
        ("compute.instances.delete", {"name": "a"}, "a body where none belongs"),
    ],
)
def test_bodies_are_checked(method: str, body: Any, problem: str) -> None:
    document = discovery()
    [message] = document.check_request(document.methods[method], body)
    assert problem in message


def test_valid_bodies_are_accepted() -> None:
    document = discovery()
    for count in ("2", 2):
        body = {"count": count, "perInstanceProperties": {"x": {"name": "worker-0"}}}
        assert document.check_request(document.methods["compute.instances.bulkInsert"], body) == []
    assert document.check_request(document.methods["compute.instances.delete"], None) == []


def test_answers_are_checked() -> None:
    document = discovery()
    [problem] = document.check_response(document.methods["compute.instances.get"], {"statusCode": 1})
    assert problem == "Instance: unknown field 'statusCode'"


def test_parameters_are_checked() -> None:
    document = discovery()
    method = document.methods["compute.instances.aggregatedList"]
    assert document.check_parameters(method, {"project": PROJECT, "maxResults": "5", "unknown": "1"}) == []
    assert document.check_parameters(method, {"project": "P!", "maxResults": "many"}) == [
        "parameter maxResults: 'many' is not an integer",
        f"parameter project: 'P!' does not match {method.parameters['project']['pattern']}",
    ]
    assert document.check_parameters(method, {}) == ["required parameter project is missing"]


def test_an_invalid_request_is_refused_and_recorded(emulator: Emulator, session: requests.Session) -> None:
    answer = session.post(emulator.url + INSTANCES, json={"name": "demo", "colour": "red"}, timeout=60)
    assert answer.status_code == 400
    assert emulator.state()["violations"] == ["client: compute.instances.insert: Instance: unknown field 'colour'"]
    assert emulator.state()["instances"] == []


def test_a_request_id_must_be_a_uuid(emulator: Emulator, session: requests.Session) -> None:
    answer = session.delete(f"{emulator.url}{INSTANCES}/demo?requestId=one", timeout=60)
    assert answer.status_code == 400
    assert "'one' is not a UUID" in answer.json()["error"]["message"]


def test_missing_zones_and_methods_are_refused(emulator: Emulator, session: requests.Session) -> None:
    def get(path: str) -> tuple[int, str]:
        answer = session.get(f"{emulator.url}/compute/v1/{path}", timeout=60)
        return answer.status_code, answer.json()["error"]["message"]

    assert get("projects/proj-1/zones/us-east1-b") == (
        404,
        "The resource 'projects/proj-1/zones/us-east1-b' was not found",
    )
    assert get("projects/proj-1/zones/us-east1-b/instances") == (
        400,
        "Invalid value for field 'zone': 'us-east1-b'. Unknown zone.",
    )
    assert get("projects/proj-1/regions/mars/subnetworks")[0] == 400
    assert get("projects/other/zones") == (404, "The resource 'projects/other' was not found")
    assert get("projects/proj-1/global/sslCertificates")[0] == 501
    assert get("nonsense")[0] == 404


WORKER: dict[str, Any] = {
    "name": "demo-worker-1",
    "status": "RUNNING",
    "labels": {"fleet": "demo", "fleet-owner": "abc"},
    "zone": "https://host/compute/v1/projects/p/zones/us-central1-a",
    "tags": {"items": ["demo", "other"]},
    "creationTimestamp": "2026-11-20T10:00:00.500Z",
    "progress": 40,
    "deletionProtection": False,
}


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        ("", True),
        ("labels.fleet=demo", True),
        ("labels.fleet = demo AND labels.fleet-owner = abc", True),
        ("labels.fleet=demo labels.fleet-owner=xyz", False),
        ("(labels.fleet=demo) (status=RUNNING)", True),
        ("labels.fleet:*", True),
        ("labels.none:*", False),
        ("labels.none=x", False),
        ("labels.none!=x", True),
        ("NOT status=RUNNING", False),
        ("status!=TERMINATED", True),
        ("name=demo-*", True),
        ("name=demo", False),
        ("name:worker", True),
        ('name="demo-worker-1"', True),
        ("status=STOPPING OR status=RUNNING AND name=none", False),
        ("name=none OR name=demo-worker-1 status=RUNNING", True),
        ("tags.items=other", True),
        ("deletionProtection=false", True),
        ("progress>39", True),
        ("progress>=41", False),
        ('creationTimestamp>"2026-11-20T10:00:00Z"', True),
        ('creationTimestamp<"2026-11-20T12:00:00.4+02:00"', False),
        ('name eq "demo-worker-.*"', True),
        ("name eq worker-1", False),
        ("name ne worker-1", True),
        ("(status eq RUNNING)(name eq demo.*)", True),
        (r'labels.fleet eq ".*\bdemo\b.*"', True),
        (r'zone eq ".*/zones/us-central1-(a|b)"', True),
    ],
)
def test_filters_select_resources(text: str, passes: bool) -> None:
    assert parse_filter(text, WORKER.__contains__)(WORKER) is passes


@pytest.mark.parametrize(
    "text", ["name", "name=", "(name=a", "name=a)", "=a", "colour=red", "name ~ a", "name eq '('", 'name="a', "AND"]
)
def test_invalid_filters_raise_an_error(text: str) -> None:
    with pytest.raises(FilterError):
        parse_filter(text, lambda name: name != "colour")


def test_a_list_with_an_invalid_filter_is_refused(client: Client) -> None:
    with pytest.raises(compute.exceptions.BadRequest, match="Invalid list filter expression"):
        client.all_instances("colour=red")


def test_lists_are_returned_in_pages(emulator: Emulator, client: Client) -> None:
    names = [f"worker-{index}" for index in range(5)]
    client.wait(client.bulk_insert(names, ZONE))
    client.create("other", "us-west4-b", labels={"fleet": "other"})
    assert sorted(client.all_instances("labels.fleet=demo", max_results=2)) == names
    assert emulator.state()["calls"]["compute.instances.aggregatedList"] == 3
    assert sorted(client.all_instances("labels.fleet=demo AND name=worker-3")) == ["worker-3"]
    request = compute.ListInstancesRequest(max_results=2, filter='name eq "worker-[0-2]"', **AT_ZONE)
    assert [instance.name for instance in client.instances.list(request=request)] == names[:3]
    newest = compute.ListInstancesRequest(order_by="creationTimestamp desc", **AT_ZONE)
    created = [instance.creation_timestamp for instance in client.instances.list(request=newest)]
    assert created == sorted(created, reverse=True)


def test_an_aggregated_list_names_every_scope(client: Client) -> None:
    client.create("demo")
    scopes = dict(client.instances.aggregated_list(project=PROJECT))
    assert len(scopes) == 12
    assert scopes["zones/us-west4-a"].warning.code == "NO_RESULTS_ON_PAGE"
    assert [instance.name for instance in scopes[f"zones/{ZONE}"].instances] == ["demo"]


def test_the_same_request_id_starts_one_operation(emulator: Emulator, client: Client) -> None:
    number = str(uuid.uuid4())
    first = client.bulk_insert(["demo"], ZONE, request_id=number)
    assert (first.client_operation_id, client.bulk_insert(["demo"], ZONE, request_id=number).name) == (
        number,
        first.name,
    )
    client.wait(first)
    deletion = compute.DeleteInstanceRequest(instance="demo", request_id=str(uuid.uuid4()), **AT_ZONE)
    done = client.wait(client.instances.delete_unary(request=deletion))
    assert client.instances.delete_unary(request=deletion).name == done.name
    assert [operation.client_operation_id for operation in client.all_operations(f"clientOperationId={number}")] == [
        number
    ]


def test_operations_can_be_read_and_deleted(client: Client) -> None:
    done = client.wait(client.insert("demo"))
    operation = client.zone_operations.get(operation=done.name, **AT_ZONE)
    assert (operation.name, operation.status) == (done.name, compute.Operation.Status.DONE)
    assert client.zone_operations.get(operation=str(done.id), **AT_ZONE).name == done.name
    client.zone_operations.delete(operation=done.name, **AT_ZONE)
    with pytest.raises(compute.exceptions.NotFound):
        client.zone_operations.wait(operation=done.name, **AT_ZONE)


def _batch(session: requests.Session, url: str, calls: list[tuple[str, str, Any]]) -> list[tuple[str, int, Any]]:
    """Return Content-ID, status, and body of each answer."""
    lines = []
    for index, (verb, path, body) in enumerate(calls):
        text = json.dumps(body) if body is not None else ""
        head = f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\n" if text else ""
        lines.append(f"--b\r\nContent-Type: application/http\r\nContent-ID: <call-{index}>\r\n\r\n")
        lines.append(f"{verb} {path} HTTP/1.1\r\n{head}\r\n{text}\r\n")
    answer = session.post(
        f"{url}/batch/compute/v1",
        data="".join(lines) + "--b--",
        headers={"Content-Type": 'multipart/mixed; boundary="b"'},
        timeout=60,
    )
    answer.raise_for_status()
    message = BytesParser().parsebytes(
        f"Content-Type: {answer.headers['Content-Type']}\r\n\r\n".encode() + answer.content
    )
    answers = []
    for part in message.get_payload():
        assert not isinstance(part, str)
        payload = part.get_payload(decode=True)
        assert isinstance(payload, bytes)
        status_line, _, answered = payload.partition(b"\r\n\r\n")
        answers.append((str(part["Content-ID"]), int(status_line.split()[1]), json.loads(answered)))
    return answers


def test_a_batch_answers_each_call(emulator: Emulator, client: Client, session: requests.Session) -> None:
    client.wait(client.bulk_insert(["worker-0", "worker-1"], ZONE))
    made = client.instances.get(instance="worker-0", **AT_ZONE)
    items = {"items": [{"key": "a", "value": "b\r\n\r\nc"}], "fingerprint": made.metadata.fingerprint}
    answers = _batch(
        session,
        emulator.url,
        [
            ("GET", f"{INSTANCES}/worker-0/getGuestAttributes?queryPath=hostkeys%2F", None),
            ("POST", f"{INSTANCES}/worker-0/setMetadata", items),
            ("DELETE", f"{emulator.url}{INSTANCES}/worker-1", None),
            ("DELETE", f"{INSTANCES}/none", None),
        ],
    )
    assert [(name, status) for name, status, _ in answers] == [
        ("<response-call-0>", 200),
        ("<response-call-1>", 200),
        ("<response-call-2>", 200),
        ("<response-call-3>", 404),
    ]
    assert answers[0][2]["queryValue"]["items"][0]["key"] == "ssh-ed25519"
    assert emulator.state()["instances"] == ["worker-0"]
    changed = client.instances.get(instance="worker-0", **AT_ZONE)
    assert changed.metadata.items[0].value == "b\r\n\r\nc"
    calls = emulator.state()["calls"]
    assert (calls["batch"], calls["batch.compute.instances.delete"]) == (1, 2)
    assert "compute.instances.delete" not in calls


def test_faults_apply_to_batches_and_their_calls(
    emulator: Emulator, client: Client, session: requests.Session
) -> None:
    client.wait(client.bulk_insert(["worker-0", "worker-1", "worker-2"], ZONE))
    calls: list[tuple[str, str, Any]] = [("DELETE", f"{INSTANCES}/worker-{index}", None) for index in range(3)]
    emulator.faults.add("429", "batch.*", nth=2)
    assert [status for _, status, _ in _batch(session, emulator.url, calls[:2])] == [200, 429]
    emulator.settle()
    assert emulator.state()["instances"] == ["worker-1", "worker-2"]
    emulator.faults.add("lost", "batch")
    with pytest.raises(requests.exceptions.ConnectionError):
        _batch(session, emulator.url, calls[1:2])
    emulator.settle()
    assert emulator.state()["instances"] == ["worker-2"]
    emulator.faults.add("503", "batch")
    with pytest.raises(requests.exceptions.HTTPError):
        _batch(session, emulator.url, calls[2:])


def test_an_invalid_batch_is_refused(emulator: Emulator, session: requests.Session) -> None:
    answer = session.post(f"{emulator.url}/batch/compute/v1", data="x", timeout=60)
    assert answer.status_code == 400
    with pytest.raises(requests.exceptions.HTTPError, match="400"):
        _batch(session, emulator.url, [("GET", INSTANCES, None)] * 1001)


def test_permissions_are_tested_and_enforced(emulator: Emulator, client: Client, session: requests.Session) -> None:
    wanted = ["compute.instances.create", "compute.instances.list"]
    url = f"{emulator.url}/v1/projects/{PROJECT}:testIamPermissions"
    assert session.post(url, json={"permissions": wanted}, timeout=60).json() == {"permissions": wanted}
    emulator.deny("compute.instances.create")
    assert session.post(url, json={"permissions": wanted}, timeout=60).json() == {"permissions": wanted[1:]}
    with pytest.raises(compute.exceptions.Forbidden):
        client.bulk_insert(["demo"], "us-central1")
    client.all_instances()
    resource = compute.TestPermissionsRequest(permissions=wanted)
    tested = client.instances.test_iam_permissions(
        resource="demo", test_permissions_request_resource=resource, **AT_ZONE
    )
    assert tested.permissions == wanted[1:]


def test_firewall_rules_are_created_changed_and_deleted(emulator: Emulator, client: Client) -> None:
    firewalls = client.of("Firewalls")
    rule = compute.Firewall(
        name="demo-ssh",
        description="made by a test",
        network="global/networks/default",
        source_ranges=["203.0.113.7/32"],
        target_tags=["demo"],
        allowed=[compute.Allowed(I_p_protocol="tcp", ports=["22"])],
    )
    client.wait(firewalls.insert_unary(project=PROJECT, firewall_resource=rule))
    made = firewalls.get(project=PROJECT, firewall="demo-ssh")
    assert (made.direction, made.priority, list(made.source_ranges)) == ("INGRESS", 1000, ["203.0.113.7/32"])
    with pytest.raises(compute.exceptions.Conflict):
        firewalls.insert_unary(project=PROJECT, firewall_resource=rule)
    change = compute.Firewall(name="demo-ssh", source_ranges=["203.0.113.8/32"])
    client.wait(firewalls.patch_unary(project=PROJECT, firewall="demo-ssh", firewall_resource=change))
    [changed] = firewalls.list(request={"project": PROJECT, "filter": "description:test AND targetTags=demo"})
    assert (list(changed.source_ranges), changed.id) == (["203.0.113.8/32"], made.id)
    bad = compute.Firewall(name="demo-ssh", source_ranges=["me"])
    with pytest.raises(compute.exceptions.BadRequest, match="CIDR"):
        firewalls.patch_unary(project=PROJECT, firewall="demo-ssh", firewall_resource=bad)
    client.wait(firewalls.delete_unary(project=PROJECT, firewall="demo-ssh"))
    assert emulator.state()["firewalls"] == []


def test_addresses_and_disks_are_created_listed_and_deleted(emulator: Emulator, client: Client) -> None:
    addresses = client.of("Addresses")
    client.wait(
        addresses.insert_unary(project=PROJECT, region="us-west4", address_resource=compute.Address(name="demo"))
    )
    assert [
        address.name for _, scope in addresses.aggregated_list(project=PROJECT) for address in scope.addresses
    ] == ["demo"]
    client.wait(addresses.delete_unary(project=PROJECT, region="us-west4", address="demo"))
    disk = compute.Disk(name="data", size_gb=20, type_=f"zones/{ZONE}/diskTypes/pd-ssd", labels={"fleet": "demo"})
    client.wait(client.disks.insert_unary(disk_resource=disk, **AT_ZONE))
    request = compute.AggregatedListDisksRequest(project=PROJECT, filter="labels.fleet=demo")
    assert [disk.name for _, scope in client.disks.aggregated_list(request=request) for disk in scope.disks] == [
        "data"
    ]
    client.wait(client.disks.delete_unary(disk="data", **AT_ZONE))
    assert (emulator.state()["addresses"], emulator.state()["disks"]) == ([], [])


def test_the_catalog_is_listed(client: Client) -> None:
    t4s = client.of("AcceleratorTypes").aggregated_list(
        request={"project": PROJECT, "filter": "name=nvidia-tesla-t4"}
    )
    assert sum(len(scope.accelerator_types) for _, scope in t4s) == 11
    machine = client.of("MachineTypes").get(machine_type="g2-standard-4", **AT_ZONE)
    assert (machine.guest_cpus, machine.accelerators[0].guest_accelerator_type) == (4, "nvidia-l4")
    with pytest.raises(compute.exceptions.NotFound):
        client.of("MachineTypes").get(project=PROJECT, zone="europe-west1-d", machine_type="g2-standard-4")
    family = {"project": "deeplearning-platform-release", "family": "common-cu129-ubuntu-2404-nvidia-580"}
    assert client.of("Images").get_from_family(**family).disk_size_gb == 50
    assert client.of("DiskTypes").get(disk_type="pd-balanced", **AT_ZONE).name == "pd-balanced"
    [region] = client.of("Regions").list(request={"project": PROJECT, "filter": "name=us-west4"})
    assert len(region.zones) == 2
    assert client.of("Zones").get(**AT_ZONE).status == "UP"
    assert client.of("Networks").get(project=PROJECT, network="default").auto_create_subnetworks
    subnetworks = client.of("Subnetworks")
    assert subnetworks.get(project=PROJECT, region="us-west4", subnetwork="default").network.endswith("/default")


def test_project_metadata_can_be_changed(client: Client) -> None:
    projects = client.of("Projects")
    before = projects.get(project=PROJECT).common_instance_metadata
    changed = compute.Metadata(items=[compute.Items(key="a", value="b")], fingerprint=before.fingerprint)
    client.wait(projects.set_common_instance_metadata_unary(project=PROJECT, metadata_resource=changed))
    assert projects.get(project=PROJECT).common_instance_metadata.items[0].value == "b"
    with pytest.raises(compute.exceptions.PreconditionFailed):
        projects.set_common_instance_metadata_unary(project=PROJECT, metadata_resource=changed)


def test_many_clients_are_served_in_parallel(emulator: Emulator) -> None:
    def create_one(index: int) -> str:
        client = Client(emulator.url)
        client.create(f"worker-{index}")
        client.wait(client.instances.delete_unary(instance=f"worker-{index}", **AT_ZONE))
        return str(client.create(f"worker-{index}").network_interfaces[0].network_i_p)

    with ThreadPoolExecutor(8) as pool:
        addresses = list(pool.map(create_one, range(8)))
    assert len(set(addresses)) == 8
    assert emulator.state()["violations"] == []


@pytest.mark.parametrize(
    ("document", "verb", "path", "method", "parameters"),
    [
        ("oslogin.v1", "GET", "/v1/users/ada@b.c/loginProfile", "users.getLoginProfile", {"name": "users/ada@b.c"}),
        ("oslogin.v1", "POST", "/v1/users/a:importSshPublicKey", "users.importSshPublicKey", {"parent": "users/a"}),
        ("serviceusage.v1", "GET", "/v1/projects/p/services/x", "services.get", {"name": "projects/p/services/x"}),
    ],
)
def test_the_path_of_a_method_may_have_a_parameter_of_several_segments(
    document: str, verb: str, path: str, method: str, parameters: dict[str, str]
) -> None:
    match = discovery(document).match(verb, path)
    assert match is not None
    assert (match[0].id, match[1]) == (f"{document.partition('.')[0]}.{method}", parameters)
