"""Each kind of fault that the emulator can inject, as Google's client receives it."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests

from tests.emulator import Emulator
from tests.emulator import library as compute
from tests.emulator.client import PROJECT, Client, codes, t4
from tests.emulator.faults import KINDS

ZONE = "us-central1-a"
AT_ZONE: dict[str, Any] = {"project": PROJECT, "zone": ZONE}
PAIR = ["worker-0", "worker-1"]


@pytest.fixture(scope="module")
def running() -> Iterator[Emulator]:
    with Emulator(operation_s=0.01) as emulator:
        yield emulator


@pytest.mark.parametrize(
    ("kind", "settings", "status", "reason", "message"),
    [
        (
            "403-disabled",
            {},
            403,
            "accessNotConfigured",
            "has not been used in project proj-1 before or it is disabled",
        ),
        (
            "403-forbidden",
            {},
            403,
            "forbidden",
            "Required 'compute.instances.create' permission for 'projects/proj-1'",
        ),
        ("403-rate", {}, 403, "rateLimitExceeded", "Quota exceeded for quota metric 'Queries'"),
        ("404", {}, 404, "notFound", "The resource 'projects/proj-1' was not found"),
        (
            "409",
            {"resource": "projects/proj-1/x"},
            409,
            "alreadyExists",
            "The resource 'projects/proj-1/x' already exists",
        ),
        ("412", {}, 412, "conditionNotMet", "Constraint constraints/compute.vmExternalIpAccess violated for project"),
        ("429", {}, 429, "rateLimitExceeded", "Quota exceeded for quota metric 'Queries'"),
        ("500", {}, 500, "backendError", "Internal error"),
        ("503", {}, 503, "backendError", "currently unavailable"),
        (
            "quota-http",
            {"metric": "CPUS"},
            403,
            "quotaExceeded",
            "Quota 'CPUS' exceeded.  Limit: 0.0 in region us-central1.",
        ),
        ("http", {"status": 400, "reason": "odd", "message": "Oh."}, 400, "odd", "Oh."),
    ],
)
def test_each_http_error_reaches_the_client(
    emulator: Emulator, client: Client, kind: str, settings: Any, status: int, reason: str, message: str
) -> None:
    emulator.faults.add(kind, "compute.instances.insert", **settings)
    with pytest.raises(compute.exceptions.GoogleAPICallError) as caught:
        client.insert("demo")
    assert (caught.value.code, caught.value.errors[0]["reason"]) == (status, reason)
    assert message in str(caught.value)
    emulator.settle()
    assert emulator.state()["instances"] == []
    client.create("demo")


def test_a_disabled_api_is_named(emulator: Emulator, client: Client) -> None:
    emulator.faults.add("403-disabled")
    with pytest.raises(compute.exceptions.Forbidden) as caught:
        client.insert("demo")
    assert (caught.value.reason, caught.value.domain) == ("SERVICE_DISABLED", "googleapis.com")


def test_an_unauthenticated_call_is_refused(emulator: Emulator, client: Client) -> None:
    emulator.faults.add("401")
    with pytest.raises(compute.auth_exceptions.GoogleAuthError):
        client.insert("demo")


def test_a_reset_connection_has_no_effect(emulator: Emulator, client: Client) -> None:
    emulator.faults.add("reset", "compute.instances.insert")
    with pytest.raises(requests.exceptions.ConnectionError):
        client.insert("demo")
    emulator.settle()
    assert emulator.state()["instances"] == []


@pytest.mark.parametrize(("kind", "error"), [("reset", "ConnectionResetError"), ("lost", "RemoteDisconnected")])
def test_a_connection_is_reset_or_closed(emulator: Emulator, client: Client, kind: str, error: str) -> None:
    emulator.faults.add(kind, "compute.instances.insert")
    with pytest.raises(requests.exceptions.ConnectionError, match=error):
        client.insert("demo")


def test_a_lost_answer_has_the_effect(emulator: Emulator, client: Client) -> None:
    emulator.faults.add("lost", "compute.*.bulkInsert")
    number = str(uuid.uuid4())
    with pytest.raises(requests.exceptions.ConnectionError):
        client.bulk_insert(PAIR, ZONE, request_id=number)
    [started] = client.all_operations(f"clientOperationId={number}")
    again = client.wait(client.bulk_insert(PAIR, ZONE, request_id=number))
    assert again.name == started.name
    assert emulator.state()["instances"] == PAIR


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


@pytest.mark.parametrize(
    ("kind", "settings", "code", "http"),
    [
        ("stockout", {"zones_available": "us-west4-a"}, "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", 503),
        ("stockout-plain", {}, "ZONE_RESOURCE_POOL_EXHAUSTED", 503),
        ("quota", {}, "QUOTA_EXCEEDED", 403),
        (
            "operation-error",
            {"code": "UNSUPPORTED_OPERATION", "message": "It was preempted."},
            "UNSUPPORTED_OPERATION",
            400,
        ),
    ],
)
def test_a_failed_operation_has_its_error(
    emulator: Emulator, client: Client, kind: str, settings: Any, code: str, http: int
) -> None:
    emulator.faults.add(kind, **settings)
    done = client.wait(client.insert("demo", **t4()))
    assert (codes(done), done.http_error_status_code) == ([code], http)
    assert emulator.state()["instances"] == emulator.state()["disks"] == []


def test_a_stockout_lists_other_zones(emulator: Emulator, client: Client) -> None:
    emulator.faults.add("stockout", zones_available="us-west4-a,us-west4-b")
    [error] = client.wait(client.insert("demo", **t4())).error.errors
    info = error.error_details[2].error_info
    assert info.reason == "resource_availability"
    assert info.metadatas == {
        "zone": ZONE,
        "vmType": "n1-standard-4",
        "attachment": "nvidia-tesla-t4:1",
        "zonesAvailable": "us-west4-a,us-west4-b",
    }


def test_a_stockout_of_one_zone_does_not_affect_the_others_of_a_region(emulator: Emulator, client: Client) -> None:
    emulator.faults.add("stockout", zone=ZONE, times=0)
    assert codes(client.wait(client.bulk_insert(PAIR, "us-central1"))) == []
    assert {instance.zone.rsplit("/", 1)[-1] for instance in client.all_instances().values()} == {"us-central1-b"}
    assert codes(client.wait(client.bulk_insert(["other"], "us-central1", [ZONE]))) == ["VM_MIN_COUNT_NOT_REACHED"]
    assert codes(client.wait(client.insert("third"))) == ["ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"]


@pytest.mark.parametrize(("kind", "left"), [("partial", []), ("partial-left", ["worker-0"])])
def test_a_partial_bulk_insert_leaves_the_configured_instances(
    emulator: Emulator, client: Client, kind: str, left: list[str]
) -> None:
    emulator.faults.add(kind)
    done = client.wait(client.bulk_insert(PAIR[:1] + PAIR[1:], ZONE))
    assert codes(done) == ["VM_MIN_COUNT_NOT_REACHED", "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"]
    state = emulator.state()
    assert len(state["instances"]) == len(state["disks"]) == len(left)


def test_a_failed_creation_can_leave_disks(emulator: Emulator, client: Client) -> None:
    emulator.faults.add("disk-left")
    client.wait(client.bulk_insert(PAIR, ZONE))
    assert (emulator.state()["instances"], emulator.state()["disks"]) == ([], PAIR)


@pytest.mark.parametrize("bulk", [False, True])
def test_an_operation_can_fail_after_its_effect(emulator: Emulator, client: Client, bulk: bool) -> None:
    emulator.faults.add("fails-after")
    done = client.wait(client.bulk_insert(["demo"], ZONE) if bulk else client.insert("demo"))
    assert (codes(done), emulator.state()["instances"]) == (["INTERNAL_ERROR"], ["demo"])
    emulator.faults.add("fails-after", "compute.instances.delete")
    done = client.wait(client.instances.delete_unary(**AT_ZONE, instance="demo"))
    assert (codes(done), emulator.state()["instances"]) == (["INTERNAL_ERROR"], [])


def test_operations_on_firewall_rules_can_fail(emulator: Emulator, client: Client) -> None:
    rule = compute.Firewall(name="demo-ssh", allowed=[compute.Allowed(I_p_protocol="tcp", ports=["22"])])
    emulator.faults.add("operation-error", "compute.firewalls.*")
    firewalls = client.of("Firewalls")
    done = client.wait(firewalls.insert_unary(project=PROJECT, firewall_resource=rule))
    assert (codes(done), emulator.state()["firewalls"]) == (["INTERNAL_ERROR"], [])
    emulator.faults.add("fails-after", "compute.firewalls.*")
    done = client.wait(firewalls.insert_unary(project=PROJECT, firewall_resource=rule))
    assert (codes(done), emulator.state()["firewalls"]) == (["INTERNAL_ERROR"], ["demo-ssh"])


def test_a_rule_applies_to_the_configured_calls(emulator: Emulator) -> None:
    def draw(times: int) -> list[bool]:
        return [
            emulator.faults.draw("compute.zones.get", in_batch=False, place=ZONE, makes_operation=False) is not None
            for _ in range(times)
        ]

    emulator.faults.add("503", nth=2, times=2)
    assert draw(5) == [False, True, True, False, False]
    emulator.faults.clear()
    emulator.faults.add("503", times=0, zone="us-west4-a")
    assert draw(2) == [False, False]
    emulator.faults.clear()
    emulator.faults.add("503", times=0, probability=0.5, seed=1)
    drawn = draw(100)
    assert 20 < sum(drawn) < 80
    emulator.faults.clear()
    emulator.faults.add("503", times=0, probability=0.5, seed=1)
    assert draw(100) == drawn


def test_faults_apply_only_to_methods_that_support_them(emulator: Emulator) -> None:
    for kind in ("stockout", "quota", "partial", "fails-after", "operation-error", "slow-operation", "invalid-grant"):
        emulator.faults.add(kind, "*", times=0)
    drawn = emulator.faults.draw("compute.instances.get", in_batch=False, place=ZONE, makes_operation=False)
    assert drawn is None
    emulator.faults.add("lost", "*")
    drawn = emulator.faults.draw("compute.instances.get", in_batch=True, place=ZONE, makes_operation=False)
    assert drawn is not None
    assert drawn.kind == "lost"


def _post(url: str, body: Any) -> tuple[int, Any]:
    request = urllib.request.Request(url, json.dumps(body).encode(), method="POST")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_rules_can_be_added_over_http(emulator: Emulator, client: Client) -> None:
    url = f"{emulator.url}/emulator/faults"
    assert _post(url, {"kind": "404", "match": "compute.instances.insert", "nth": 2}) == (200, {})
    client.create("one")
    with pytest.raises(compute.exceptions.NotFound):
        client.insert("two")
    assert _post(url, {"kind": "oops"})[0] == 400
    assert "no field 'colour'" in _post(url, {"kind": "404", "colour": "red"})[1]["error"]
    assert "must be int" in _post(url, {"kind": "404", "nth": "2"})[1]["error"]
    assert "'kind'" in _post(url, {})[1]["error"]


@pytest.mark.parametrize("form", [lambda body: body, json.dumps])
def test_the_body_of_a_fault_may_be_an_object(emulator: Emulator, client: Client, form: Callable[[Any], Any]) -> None:
    url = f"{emulator.url}/emulator/faults"
    error = {"code": 418, "message": "I am a teapot", "errors": [{"reason": "tea", "message": "I am a teapot"}]}
    given = {"kind": "http", "match": "compute.instances.insert", "status": 418, "body": form({"error": error})}
    assert _post(url, given) == (200, {})
    with pytest.raises(compute.exceptions.GoogleAPICallError, match="I am a teapot"):
        client.insert("demo")
    failed = {"errors": [{"code": "TEA", "message": "It boils."}]}
    assert _post(url, {"kind": "operation-error", "status": 400, "body": form(failed)}) == (200, {})
    assert codes(client.wait(client.insert("demo"))) == ["TEA"]


def test_the_emulator_is_controlled_over_http(emulator: Emulator, client: Client) -> None:
    url = f"{emulator.url}/emulator"
    assert _post(f"{url}/quota", {"metric": "CPUS", "limit": 0})[0] == 200
    assert codes(client.wait(client.insert("demo"))) == ["QUOTA_EXCEEDED"]
    assert _post(f"{url}/capacity", {"zone": ZONE, "limit": 0})[0] == 200
    assert codes(client.wait(client.insert("demo"))) == ["ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"]
    assert _post(f"{url}/deny", {"permissions": ["compute.instances.create"]})[0] == 200
    with pytest.raises(compute.exceptions.Forbidden, match=r"Required 'compute\.instances\.create' permission"):
        client.insert("demo")
    assert _post(f"{url}/networks", {"names": []})[0] == 200
    assert list(client.of("Networks").list(project=PROJECT)) == []
    before = emulator.clock.now()
    assert _post(f"{url}/advance", {"seconds": 3600})[0] == 200
    assert emulator.clock.now() > before + 3599
    assert _post(f"{url}/preempt", {"name": "demo"})[0] == 400
    assert _post(f"{url}/quota", {"metric": "NONE", "limit": 0})[0] == 400
    assert _post(f"{url}/nothing", {})[0] == 404
    assert _post(f"{url}/clear", {})[0] == 200
    client.create("demo")
    with urllib.request.urlopen(f"{url}/state", timeout=60) as answer:
        assert json.load(answer)["instances"] == ["demo"]


def _user_credentials(emulator: Emulator) -> compute.credentials.Credentials:
    return compute.credentials.Credentials(
        None,
        refresh_token="refresh",
        token_uri=f"{emulator.url}/token",
        client_id="client",
        client_secret="secret",
    )


def test_token_requests_can_fail(emulator: Emulator) -> None:
    credentials = _user_credentials(emulator)
    credentials.refresh(compute.auth_requests.Request())
    assert credentials.valid
    assert emulator.state()["calls"] == {"oauth.token": 1}
    emulator.faults.add("invalid-grant", "oauth.token")
    with pytest.raises(compute.auth_exceptions.RefreshError, match="invalid_grant"):
        _user_credentials(emulator).refresh(compute.auth_requests.Request())


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_fault_applies_to_a_method(emulator: Emulator, client: Client, kind: str) -> None:
    rule = emulator.faults.add(kind, "*", seconds=0.01)
    try:
        client.wait(client.bulk_insert(PAIR, ZONE))
        _user_credentials(emulator).refresh(compute.auth_requests.Request())
    except (
        compute.exceptions.GoogleAPICallError,
        requests.exceptions.ConnectionError,
        compute.auth_exceptions.GoogleAuthError,
    ):
        pass
    assert rule.struck == 1
