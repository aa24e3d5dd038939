"""Errors of Compute Engine get their class and scope, a sentence, and a command or option that fixes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from google.cloud import compute_v1
from hypothesis import given
from hypothesis import strategies as st

from provision.gce.api.client import ApiError, from_http, from_json, from_operation
from provision.gce.diagnosis import Diagnosis, Failure, diagnose, role_for
from tests.next_steps import command_lines
from tests.unit.provision.gce.bodies import BODIES

Json = dict[str, Any]


def diagnosis_of(failures: Sequence[Failure], location: str = "us-central1-a") -> Diagnosis:
    diagnosis = diagnose(failures, project="proj-1", location=location, doing="make 2 instances")
    assert diagnosis.message
    assert not diagnosis.message.endswith(".")
    assert advice(diagnosis).strip()
    assert "\n" not in diagnosis.message + diagnosis.cause + diagnosis.hint
    return diagnosis


def advice(diagnosis: Diagnosis) -> str:
    """Return hint, next commands, and the options to change."""
    again = " ".join(f"{option} {value}" for option, value in (diagnosis.again or {}).items())
    return f"{diagnosis.hint}\n{command_lines(diagnosis)}\n{again}"


def of_operation(body: Json) -> list[Failure]:
    try:
        return from_operation(from_json(compute_v1.Operation, body))
    except ApiError as error:  # of an answer without the form of an operation
        return list(error.failures)


def operation(*errors: Mapping[str, Any], http: int = 400, message: str = "BAD REQUEST") -> list[Failure]:
    failed = {"status": "DONE", "httpErrorStatusCode": http, "httpErrorMessage": message}
    return of_operation({**failed, "error": {"errors": list(errors)}})


def ended(code: str, message: str = "In Compute Engine's words.", **more: Any) -> list[Failure]:
    return operation({"code": code, "message": message, **more})


def http(code: int, reason: str, message: str, **more: Any) -> list[Failure]:
    detail = {"message": message, "domain": "global", "reason": reason}
    return from_http(code, {"error": {"code": code, "message": message, "errors": [detail], **more}})


def info(reason: str, **metadata: str) -> list[Json]:
    return [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason, "metadata": metadata}]


@pytest.mark.parametrize("name", BODIES)
def test_an_error_of_a_public_thread_gets_its_class_and_a_fix(name: str) -> None:
    body, expected = BODIES[name], BODIES[name]["expected"]
    if body.get("operation"):
        failures = of_operation({"status": "DONE", "error": body["body"], "httpErrorStatusCode": body["status"]})
    else:
        failures = from_http(body["status"], body["body"])
    diagnosis = diagnosis_of(failures)
    assert (diagnosis.kind.value, diagnosis.scope.value) == (expected["kind"], expected["scope"])
    assert expected["message"].replace("create 2", "make 2") in diagnosis.message
    assert expected["fix"] in advice(diagnosis)
    assert body["source"].startswith("https://")


CUSTOM = 'Operation denied by custom org policy: ["customConstraints/custom.gceLabels": "A label is missing."].'
SHIELDED = "Constraint constraints/compute.managed.disableGuestAttributesAccess violated for project proj-1."
DISK_SIZE = "Requested disk size cannot be smaller than the image size (50 GB)"
RATE = "Operation rate exceeded for resource 'projects/p/global/images/i'. Too frequent operations."
NO_LOCATION = "Location us-east1-d is not found or access is unauthorized."
QUOTA = "Quota 'NVIDIA_T4_GPUS' exceeded.  Limit: 1.0 in region us-central1."
OVER = "The request would exceed quota limits of the project."


# fmt: off
CASES = [
    # Capacity.
    (http(503, "insufficientCapacity", "There is not enough."), "capacity", "zone", "no capacity", "--retry"),
    (ended("UNSUPPORTED_OPERATION"), "capacity", "zone", "preempted during their creation", "--zone"),
    (ended("RESOURCE_OPERATION_RATE_EXCEEDED"), "capacity", "zone", "the rate of changes is limited", "--zone"),
    (ended("RESOURCE_OPERATION_RATE_EXCEEDED", RATE), "unreachable", "retry", "exceeds the rate of calls", "repeat"),
    (operation({"code": "VM_MIN_COUNT_NOT_REACHED"}, http=409), "capacity", "zone", "only some could be", "--zone"),
    ([Failure("MISSING", "1 of 2 instances exist")], "capacity", "zone", "only some could be created", "--zone"),
    (http(404, "notFound", NO_LOCATION), "capacity", "zone", "a required resource does not exist", "--zone"),
    # Quotas.
    (ended("QUOTA_EXCEEDED", QUOTA), "quota", "region", "the quota NVIDIA_T4_GPUS of project proj-1 allows 1 in us-c",
        "NVIDIA_T4_GPUS in us-central1 at https://console.cloud.google.com/"),
    (http(403, "quotaExceeded", QUOTA), "quota", "region", "allows 1 in us-central1", "--zone REGION"),
    (ended("QUOTA_EXCEEDED", errorDetails=[{"quotaInfo": {"limitName": "CPUS-per-project-region"}}]), "quota",
        "region", "the quota CPUS-per-project-region of project proj-1 is used up", "CPUS-per-project-region"),
    (http(429, "RESOURCE_EXHAUSTED", OVER), "quota", "region", "is used up", "iam-admin/quotas?project=proj-1"),
    # Credentials, the project, and permissions.
    (http(401, "authError", "Invalid"), "credentials", "everything", "rejected the credentials", "auth appl"),
    (http(403, "forbidden", "Insufficient Permission", details=info("ACCESS_TOKEN_SCOPE_INSUFFICIENT")),
        "credentials", "everything", "the scopes of these credentials", "set-service-account"),
    (http(403, "accessNotConfigured", "see .../api/iam.googleapis.com/overview"), "missing", "everything",
        "the API iam.googleapis.com", "gcloud services enable iam.googleapis.com"),
    (http(403, "accountDisabled", "The billing account is disabled in state absent"), "missing", "everything",
        "no billing account", "gcloud billing accounts list"),
    (http(404, "notFound", "The resource 'projects/proj-1' was not found"), "usage", "everything",
        "project 'proj-1' does not exist, or these credentials cannot access it", "gcloud projects list"),
    (http(404, "notFound", "The resource 'projects/other' was not found"), "usage", "everything",
        "project 'other' does not exist", "--network, --subnet, --image"),
    (http(403, "CONSUMER_INVALID", "Permission denied on project."), "usage", "everything", "'proj-1' does", "--p"),
    (http(403, "x", "Denied.", details=info("IAM_PERMISSION_DENIED", permission="compute.zones.list")), "credentials",
        "everything", "lack the permission compute.zones.list in project proj-1", "roles/compute.viewer"),
    (http(403, "USER_PROJECT_DENIED", "Caller does not have required permission to use project."), "credentials",
        "everything", "serviceusage.services.use", "roles/serviceusage.serviceUsageConsumer"),
    (http(403, "forbidden", "The caller may not do that."), "credentials", "everything", "does not allow", "doctor"),
    # Policies of the organization.
    (http(400, "failedPrecondition", SHIELDED), "usage", "everything", "disables guest attributes",
        "gcloud org-policies reset compute.managed.disableGuestAttributesAccess --project proj-1"),
    (http(412, "conditionNotMet", CUSTOM), "usage", "everything", "policy custom.gceLabels forbids", "org-policies"),
    (http(412, "conditionNotMet", "Operation denied by Custom Org Policy: see your administrator."), "usage",
        "everything", "a policy of the organization forbids it", "gcloud org-policies list"),
    (http(412, "conditionNotMet", "Fingerprint does not match."), "unreachable", "retry", "changed at the", "repeat"),
    # Requests that Compute Engine does not accept.
    (http(400, "invalid", DISK_SIZE), "usage", "everything", "rejected the request", "--disk-size 50"),
    (http(400, "invalid", "Subnetwork should be specified for custom subnetmode network"), "usage", "everything",
        "rejected the request", "--subnet"),
    (http(400, "invalid", "[n1-standard-4, nvidia-l4] features are not compatible."), "usage", "everything",
        "rejected the request", "--machine-type"),
    (http(400, "invalid", "Must be a match of regex"), "usage", "everything", "rejected the request", "as the cause"),
    (http(409, "alreadyExists", "It already exists"), "usage", "everything", "already exists", "fleet down"),
    (http(404, "notFound", "The resource 'projects/proj-1/zones/z/instances/i' was not found"), "missing",
        "everything", "the resource does not exist", "fleet status"),
    # Failures that pass.
    (http(429, "rateLimitExceeded", "Quota exceeded for limit 'Queries per minute'"), "unreachable", "retry",
        "the rate of calls", "repeat the command"),
    (from_http(502, None), "unreachable", "retry", "internal error of Compute Engine (HTTP 502)", "repeat"),
    (ended("INTERNAL_ERROR"), "unreachable", "retry", "internal error of Compute Engine", "repeat the command"),
    (http(400, "resourceInUseByAnotherResource", "Used by 'x'"), "unreachable", "retry", "used by a resou", "repeat"),
    ([Failure("UNREACHABLE", "refused")], "unreachable", "everything", "does not respond", "repeat the command"),
    ([Failure("DEADLINE", "not done after 600 s")], "unreachable", "zone", "timed out", "operations list"),
    # Failures that are unknown.
    (ended("QUANTUM_FLUX", "The flux\nis  inverted."), "missing", "everything", "(QUANTUM_FLUX)", "operations list"),
    ([], "missing", "everything", "(unknown error)", "operations list"),
    (from_http(418, None), "missing", "everything", "(HTTP 418)", "operations list"),
]
# fmt: on


@pytest.mark.parametrize(("failures", "kind", "scope", "message", "fix"), CASES)
def test_a_failure_has_a_kind_a_scope_a_sentence_and_a_fix(
    failures: list[Failure], kind: str, scope: str, message: str, fix: str
) -> None:
    diagnosis = diagnosis_of(failures)
    assert (diagnosis.kind.value, diagnosis.scope.value) == (kind, scope)
    assert message in diagnosis.message
    assert fix in advice(diagnosis)


@pytest.mark.parametrize(
    ("path", "expected", "scope", "fix"),
    [
        ("projects/proj-1/global/networks/default", "project proj-1 has no network default", "everything", "create"),
        ("projects/proj-1/regions/us-central1/subnetworks/in", "us-central1-a has no subnetwork in", "region", "--s"),
        ("projects/proj-1/zones/z/machineTypes/n1-std-4", "us-central1-a has no machine type n1-std-4", "zone", "--"),
        ("projects/proj-1/zones/z/acceleratorTypes/t9", "us-central1-a has no GPUs of type t9", "zone", "--gpu"),
        ("https://x.com/projects/p/zones/z/diskTypes/fast", "us-central1-a has no disks of type fast", "zone", "pd-"),
        ("projects/d/global/images/family/f", "boot image f does not exist, or these", "everything", "--image"),
    ],
)
def test_a_missing_resource_is_named(path: str, expected: str, scope: str, fix: str) -> None:
    message = f"The resource '{path}' was not found"
    for failures in (http(404, "notFound", message), ended("RESOURCE_NOT_FOUND", message)):
        diagnosis = diagnosis_of(failures)
        assert (diagnosis.kind.value, diagnosis.scope.value) == ("usage", scope)
        assert diagnosis.message.startswith(expected)
        assert fix in advice(diagnosis)


def test_the_most_specific_failure_determines_the_diagnosis() -> None:
    machine = {"vmType": "g2-standard-4", "attachment": "nvidia-l4:1", "zonesAvailable": "us-central1-f,us-east1-d"}
    stockout = {
        "code": "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
        "message": "The zone does not have enough resources available.",
        "errorDetails": [
            {"localizedMessage": {"message": "A g2-standard-4 VM is currently unavailable."}},
            {"errorInfo": {"reason": "resource_availability", "metadatas": machine}},
        ],
    }
    few = {"code": "VM_MIN_COUNT_NOT_REACHED", "message": "Requested minimum count of 2 VMs could not be created."}
    several = operation(few, {"code": "SOMETHING_NEW", "message": "New."}, stockout, http=409)
    diagnosis = diagnosis_of(several)
    assert diagnosis.message == "us-central1-a has no capacity for g2-standard-4 with nvidia-l4:1 now"
    assert diagnosis.cause == "A g2-standard-4 VM is currently unavailable."
    assert diagnosis.zones == ("us-central1-f", "us-east1-d")
    assert "SOMETHING_NEW" in diagnosis_of(several[:2]).message
    regional = ended("QUOTA_EXCEEDED", QUOTA)
    everywhere = ended("QUOTA_EXCEEDED", "Quota 'GPUS_ALL_REGIONS' exceeded.")
    assert diagnosis_of([*several, *regional]).scope.value == "region"
    assert diagnosis_of([*regional, *everywhere]).scope.value == "everything"


def test_a_permission_is_granted_where_it_is_missing() -> None:
    message = "Required 'compute.subnetworks.use' permission for 'projects/host/regions/r1/subnetworks/s'"
    member = "user:me@example.com"
    diagnosis = diagnose(
        http(403, "forbidden", message), project="proj-1", location="", doing="make instances", member=lambda: member
    )
    assert command_lines(diagnosis) == (
        "gcloud compute networks subnets add-iam-policy-binding s --region r1 --project host "
        f"--role roles/compute.networkUser --member={member}"
    )
    assert role_for("compute.networks.updatePolicy") == "roles/compute.securityAdmin"
    assert role_for("compute.addresses.create") == "roles/compute.admin"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
error_parts = st.fixed_dictionaries(
    {},
    optional={
        "code": st.sampled_from(["QUOTA_EXCEEDED", "ZONE_RESOURCE_POOL_EXHAUSTED", "X"]) | json_values,
        "message": st.text(max_size=30) | json_values,
        "reason": st.sampled_from(["quotaExceeded", "notFound", "forbidden"]) | json_values,
        "errorDetails": st.lists(st.dictionaries(st.sampled_from(["errorInfo", "quotaInfo", "@type"]), json_values)),
        "details": json_values,
        "errors": json_values,
    },
)


@given(st.integers(400, 599), st.lists(error_parts, max_size=3), json_values)
def test_no_form_of_response_raises_an_error(status: int, errors: list[Json], other: Any) -> None:
    for body in ({"error": {"errors": errors, "details": other}}, {"error": other}, {"error": {"errors": other}}):
        diagnosis_of([*from_http(status, body), *of_operation({**body, "httpErrorStatusCode": status})])
