"""Every kind of Compute Engine error in its original form, and the resulting diagnosis."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from google.cloud import compute_v1
from hypothesis import given
from hypothesis import strategies as st

from provision.gce.api.messages import ApiError, from_http, from_json, from_operation
from provision.gce.catalog.roles import role_for
from provision.gce.diagnosis import (
    Diagnosis,
    Failure,
    Scope,
    diagnose,
    expired_credentials,
    missing_permission,
    no_credentials,
    no_project,
    quota_page,
    wrong_project,
)
from provision.provider import ErrorKind
from tests.next_steps import command_lines

Json = dict[str, Any]


def diagnosis_of(failures: Sequence[Failure], location: str = "us-central1-a") -> Diagnosis:
    diagnosis = diagnose(failures, project="proj-1", location=location, doing="make 2 instances")
    assert isinstance(diagnosis.kind, ErrorKind)
    assert diagnosis.message
    assert not diagnosis.message.endswith(".")
    assert advice(diagnosis).strip()
    assert "\n" not in diagnosis.message + diagnosis.cause + diagnosis.hint
    return diagnosis


def advice(diagnosis: Diagnosis) -> str:
    """Hint, next commands, and the options to change."""
    again = " ".join(f"{option} {value}" for option, value in (diagnosis.again or {}).items())
    return f"{diagnosis.hint}\n{command_lines(diagnosis)}\n{again}"


def of_operation(body: Json) -> list[Failure]:
    try:
        return from_operation(from_json(compute_v1.Operation, body))
    except ApiError as error:  # of an answer without the form of an operation
        return list(error.failures)


def operation(*errors: Mapping[str, Any], http: int = 400, message: str = "BAD REQUEST") -> list[Failure]:
    failed = {"kind": "compute#operation", "status": "DONE", "httpErrorStatusCode": http, "httpErrorMessage": message}
    return of_operation({**failed, "error": {"errors": list(errors)}})


def http(code: int, reason: str, message: str, domain: str = "global", **more: Any) -> list[Failure]:
    detail = {"message": message, "domain": domain, "reason": reason}
    return from_http(code, {"error": {"code": code, "message": message, "errors": [detail], **more}})


def stockout(zones_available: str = "") -> Json:
    return {
        "code": "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
        "message": "The zone 'projects/P/zones/Z' does not have enough resources available to fulfill the request.  "
        "'NULL:0/NULL:0/NULL:0 (state:STOCKOUT, sub-state:STOCKOUT, resource type:compute)'.",
        "errorDetails": [
            {
                "help": {
                    "links": [
                        {
                            "description": "Troubleshooting documentation",
                            "url": "https://cloud.google.com/compute/docs/resource-error",
                        }
                    ]
                }
            },
            {
                "localizedMessage": {
                    "locale": "en-US",
                    "message": "A g2-standard-4 VM instance with 1 nvidia-l4 accelerator(s) is currently unavailable "
                    "in the us-central1-b zone. ...",
                }
            },
            {
                "errorInfo": {
                    "reason": "resource_availability",
                    "domain": "compute.googleapis.com",
                    "metadatas": {
                        "zone": "us-central1-b",
                        "vmType": "g2-standard-4",
                        "attachment": "nvidia-l4:1",
                        "zonesAvailable": zones_available,
                    },
                }
            },
        ],
    }


MIN_COUNT = {
    "code": "VM_MIN_COUNT_NOT_REACHED",
    "message": "Requested minimum count of 2 VMs could not be created.",
}
NO_GPUS_ANYWHERE = {
    "code": "QUOTA_EXCEEDED",
    "message": "Quota 'GPUS_ALL_REGIONS' exceeded.  Limit: 0.0 globally.",
    "errorDetails": [
        {
            "quotaInfo": {
                "metricName": "compute.googleapis.com/gpus_all_regions",
                "limitName": "GPUS-ALL-REGIONS-per-project",
                "limit": 0.0,
                "dimensions": {"global": "global"},
            }
        }
    ],
}


# --- capacity -----------------------------------------------------------------------------------------------------


def test_a_stockout_names_what_is_missing_and_where() -> None:
    diagnosis = diagnosis_of(operation(stockout(), http=503, message="SERVICE UNAVAILABLE"), "us-central1-b")
    assert (diagnosis.kind.value, diagnosis.scope, diagnosis.zones) == ("capacity", Scope.ZONE, ())
    assert diagnosis.message == "us-central1-b has no capacity for g2-standard-4 with nvidia-l4:1 now"
    assert diagnosis.cause.startswith(
        "A g2-standard-4 VM instance with 1 nvidia-l4 accelerator(s) is currently unavailable"
    )
    assert "--retry-until-up" in advice(diagnosis)
    assert "--zone" in advice(diagnosis)


def test_zones_with_capacity_are_collected_from_all_failures() -> None:
    diagnosis = diagnosis_of(
        operation(stockout("us-central1-a,us-central1-c"), stockout("us-central1-c, us-east1-d"))
    )
    assert diagnosis.zones == ("us-central1-a", "us-central1-c", "us-east1-d")


def test_a_plain_stockout() -> None:
    diagnosis = diagnosis_of(
        operation(
            {
                "code": "ZONE_RESOURCE_POOL_EXHAUSTED",
                "message": "The zone 'projects/P/zones/us-central1-a' does not have enough resources available to "
                "fulfill the request.  Try a different zone, or try again later.",
            },
            http=503,
        )
    )
    assert (diagnosis.kind.value, diagnosis.scope) == ("capacity", Scope.ZONE)
    assert diagnosis.message == "us-central1-a has no capacity to make 2 instances"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("RESOURCE_POOL_EXHAUSTED", "no capacity"),
        ("UNSUPPORTED_OPERATION", "preempted during their creation"),
        ("PREEMPTED", "preempted during their creation"),
        ("RESOURCE_NOT_READY", "still being stopped or deleted"),
        ("RESOURCE_OPERATION_RATE_EXCEEDED", "the rate of changes is limited"),
        ("RESOURCE_NOT_FOUND", "a required resource does not exist"),
        ("IP_SPACE_EXHAUSTED", "no internal addresses left"),
        ("CONDITION_NOT_MET", "a condition of Compute Engine"),
        ("VM_MIN_COUNT_NOT_REACHED", "only some could be created"),
    ],
)
def test_operation_errors_that_mean_another_zone(code: str, words: str) -> None:
    diagnosis = diagnosis_of(operation({"code": code, "message": "In Compute Engine's words."}))
    assert (diagnosis.kind.value, diagnosis.scope) == ("capacity", Scope.ZONE)
    assert words in diagnosis.message
    assert "us-central1-a" in diagnosis.message
    assert diagnosis.cause == "In Compute Engine's words."


def test_insufficient_capacity_of_a_call() -> None:
    diagnosis = diagnosis_of(http(503, "insufficientCapacity", "There is not enough capacity in the zone."))
    assert (diagnosis.kind.value, diagnosis.scope) == ("capacity", Scope.ZONE)


def test_a_place_that_is_not_found_or_not_allowed() -> None:
    diagnosis = diagnosis_of(
        http(404, "notFound", "Location us-east1-d is not found or access is unauthorized."), "us-east1-d"
    )
    assert (diagnosis.kind.value, diagnosis.scope) == ("capacity", Scope.ZONE)
    assert diagnosis.cause == "Location us-east1-d is not found or access is unauthorized."


def test_the_most_specific_failure_determines_the_diagnosis() -> None:
    several = operation(MIN_COUNT, {"code": "SOMETHING_NEW", "message": "New."}, stockout("us-central1-f"), http=409)
    assert diagnosis_of(several).message == "us-central1-a has no capacity for g2-standard-4 with nvidia-l4:1 now"
    assert diagnosis_of([*several, *operation(NO_GPUS_ANYWHERE)]).scope is Scope.EVERYTHING
    regional = {"code": "QUOTA_EXCEEDED", "message": "Quota 'CPUS' exceeded.  Limit: 24.0 in region us-central1."}
    assert diagnosis_of([*several, *operation(regional)]).scope is Scope.REGION
    assert diagnosis_of([*operation(regional), *operation(NO_GPUS_ANYWHERE)]).scope is Scope.EVERYTHING
    assert "SOMETHING_NEW" in diagnosis_of(several[:2]).message


def test_too_few_in_an_operation_of_status_409_is_no_conflict_of_names() -> None:
    assert diagnosis_of(operation(MIN_COUNT, http=409, message="CONFLICT")).kind is ErrorKind.CAPACITY


# --- quotas -------------------------------------------------------------------------------------------------------


def test_no_gpus_in_any_region() -> None:
    diagnosis = diagnosis_of(operation(NO_GPUS_ANYWHERE, http=403, message="FORBIDDEN"))
    assert (diagnosis.kind.value, diagnosis.scope) == ("quota", Scope.EVERYTHING)
    assert "the quota GPUS_ALL_REGIONS of project proj-1 allows 0 in all regions together" in diagnosis.message
    assert "https://console.cloud.google.com/iam-admin/quotas?project=proj-1" in advice(diagnosis)
    assert "GPUS_ALL_REGIONS" in advice(diagnosis)


@pytest.mark.parametrize(
    "failures",
    [
        operation(
            {
                "code": "QUOTA_EXCEEDED",
                "message": "Quota 'NVIDIA_T4_GPUS' exceeded.  Limit: 1.0 in region us-central1.",
                "errorDetails": [
                    {
                        "quotaInfo": {
                            "metricName": "compute.googleapis.com/nvidia_t4_gpus",
                            "limitName": "NVIDIA-T4-GPUS-per-project-region",
                            "limit": 1.0,
                            "dimensions": {"region": "us-central1"},
                        }
                    }
                ],
            }
        ),
        http(
            403, "quotaExceeded", "Quota 'NVIDIA_T4_GPUS' exceeded.  Limit: 1.0 in region us-central1.", "usageLimits"
        ),
    ],
)
def test_a_region_s_quota(failures: list[Failure]) -> None:
    diagnosis = diagnosis_of(failures)
    assert (diagnosis.kind.value, diagnosis.scope) == ("quota", Scope.REGION)
    assert "the quota NVIDIA_T4_GPUS of project proj-1 allows 1 in us-central1" in diagnosis.message
    assert "NVIDIA_T4_GPUS in us-central1 at https://console.cloud.google.com/" in advice(diagnosis)


def test_a_quota_that_only_the_details_name() -> None:
    details = [{"quotaInfo": {"metricName": "compute.googleapis.com/cpus", "limitName": "CPUS-per-project-region"}}]
    diagnosis = diagnosis_of(operation({"code": "QUOTA_EXCEEDED", "message": "Exceeded.", "errorDetails": details}))
    assert "the quota CPUS-per-project-region of project proj-1 is used up in us-central1" in diagnosis.message


def test_the_quota_page_of_a_project_is_a_sound_url() -> None:
    assert (
        quota_page("example.com:p 1")
        == "https://console.cloud.google.com/iam-admin/quotas?project=example.com%3Ap%201"
    )


# --- who calls ----------------------------------------------------------------------------------------------------


def test_an_api_that_is_not_enabled() -> None:
    message = (
        "Compute Engine API has not been used in project proj-1 before or it is disabled. Enable it by visiting "
        "https://console.developers.google.com/apis/api/compute.googleapis.com/overview?project=proj-1 then retry."
    )
    info = {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": "SERVICE_DISABLED",
        "domain": "googleapis.com",
        "metadata": {"service": "compute.googleapis.com", "consumer": "projects/proj-1"},
    }
    for failures in (
        http(403, "accessNotConfigured", message, "usageLimits", status="PERMISSION_DENIED", details=[info]),
        http(403, "accessNotConfigured", "Access Not Configured.", "usageLimits"),
        from_http(
            403, {"error": {"code": 403, "message": message, "status": "PERMISSION_DENIED", "details": [info]}}
        ),
    ):
        diagnosis = diagnosis_of(failures)
        assert (diagnosis.kind.value, diagnosis.scope) == ("missing", Scope.EVERYTHING)
        assert diagnosis.message == "the API compute.googleapis.com is not enabled in project proj-1"
        assert command_lines(diagnosis).startswith("gcloud services enable compute.googleapis.com --project proj-1")


def test_another_api_that_is_not_enabled() -> None:
    message = "Identity and Access Management (IAM) API has not been used; visit .../api/iam.googleapis.com/overview"
    diagnosis = diagnosis_of(http(403, "accessNotConfigured", message, "usageLimits"))
    assert command_lines(diagnosis).startswith("gcloud services enable iam.googleapis.com ")


def test_a_project_without_billing() -> None:
    message = (
        "This API method requires billing to be enabled. Please enable billing on project #1 by visiting https://..."
    )
    for failures in (http(403, "forbidden", message), http(403, "billingNotEnabled", "No billing account.")):
        diagnosis = diagnosis_of(failures)
        assert (diagnosis.kind.value, diagnosis.scope) == ("missing", Scope.EVERYTHING)
        assert "gcloud billing projects link proj-1" in advice(diagnosis)


@pytest.mark.parametrize(
    ("failures", "permission", "role"),
    [
        (
            http(
                403,
                "forbidden",
                "Required 'compute.instances.create' permission for 'projects/proj-1/zones/z/instances/i'",
            ),
            "compute.instances.create",
            "roles/compute.instanceAdmin.v1",
        ),
        (
            http(
                403,
                "forbidden",
                "Required 'compute.firewalls.create' permission for 'projects/proj-1/global/firewalls/f'",
            ),
            "compute.firewalls.create",
            "roles/compute.securityAdmin",
        ),
        (
            operation(
                {
                    "code": "PERMISSIONS_ERROR",
                    "message": "Required 'compute.subnetworks.use' permission for 'projects/proj-1/x/subnetworks/s'",
                },
                http=403,
            ),
            "compute.subnetworks.use",
            "roles/compute.networkUser",
        ),
        (
            http(
                403,
                "forbidden",
                "Permission 'compute.networks.get' denied on resource '//compute.googleapis.com/projects/proj-1/"
                "global/networks/default' (or it may not exist).",
            ),
            "compute.networks.get",
            "roles/compute.networkUser",
        ),
        (
            from_http(
                403,
                {
                    "error": {
                        "code": 403,
                        "message": "Denied.",
                        "status": "PERMISSION_DENIED",
                        "details": [
                            {
                                "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                                "reason": "IAM_PERMISSION_DENIED",
                                "metadata": {"permission": "compute.zones.list"},
                            }
                        ],
                    }
                },
            ),
            "compute.zones.list",
            "roles/compute.viewer",
        ),
        (
            http(403, "USER_PROJECT_DENIED", "Caller does not have required permission to use project proj-1."),
            "serviceusage.services.use",
            "roles/serviceusage.serviceUsageConsumer",
        ),
    ],
)
def test_a_missing_permission_is_named_with_a_role_that_has_it(
    failures: list[Failure], permission: str, role: str
) -> None:
    diagnosis = diagnosis_of(failures)
    assert (diagnosis.kind.value, diagnosis.scope) == ("credentials", Scope.EVERYTHING)
    assert f"lack the permission {permission} in project proj-1" in diagnosis.message
    assert command_lines(diagnosis).startswith(
        f"gcloud projects add-iam-policy-binding proj-1 --role {role} --member="
    )


def test_the_role_is_granted_to_the_account_in_use_on_the_resource_that_was_refused() -> None:
    named = "The user does not have access to service account 'x@y.iam.gserviceaccount.com'.  User: 'me@y.com'."
    subnetwork = "Required 'compute.subnetworks.use' permission for 'projects/host/regions/r1/subnetworks/s'"
    commands = {
        named: "gcloud iam service-accounts add-iam-policy-binding x@y.iam.gserviceaccount.com --project proj-1 "
        "--role roles/iam.serviceAccountUser --member=user:me@example.com",
        subnetwork: "gcloud compute networks subnets add-iam-policy-binding s --region r1 --project host "
        "--role roles/compute.networkUser --member=user:me@example.com",
    }
    for message, command in commands.items():
        diagnosis = diagnose(
            http(403, "forbidden", message),
            project="proj-1",
            location="",
            doing="make instances",
            member=lambda: "user:me@example.com",
        )
        assert command_lines(diagnosis) == command


def test_a_refusal_that_names_no_permission() -> None:
    diagnosis = diagnosis_of(http(403, "forbidden", "The caller may not do that."))
    assert (diagnosis.kind.value, diagnosis.scope) == ("credentials", Scope.EVERYTHING)
    assert "fleet doctor" in advice(diagnosis)


def test_roles_of_permissions_that_are_not_listed() -> None:
    assert role_for("compute.addresses.create") == "roles/compute.admin"
    assert missing_permission("compute.addresses.list", "p", doing="look", member="user:me").scope is Scope.EVERYTHING


@pytest.mark.parametrize(
    "failures",
    [
        http(401, "authError", "Invalid Credentials"),
        from_http(401, None),
        from_http(401, {"error": {"code": 401, "message": "No token.", "status": "UNAUTHENTICATED"}}),
    ],
)
def test_credentials_that_are_not_taken(failures: list[Failure]) -> None:
    diagnosis = diagnosis_of(failures)
    assert (diagnosis.kind.value, diagnosis.scope) == ("credentials", Scope.EVERYTHING)
    assert command_lines(diagnosis) == "gcloud auth application-default login"


@pytest.mark.parametrize(
    "failures",
    [
        http(404, "notFound", "The resource 'projects/proj-1' was not found"),
        http(400, "invalid", "Unknown project id: proj-1"),
        http(403, "forbidden", "Project 'proj-1' not found or deleted."),
        http(403, "CONSUMER_INVALID", "Permission denied on resource project proj-1."),
    ],
)
def test_a_project_that_is_not_there(failures: list[Failure]) -> None:
    diagnosis = diagnosis_of(failures)
    assert (diagnosis.kind.value, diagnosis.scope) == ("usage", Scope.EVERYTHING)
    assert diagnosis.message == "project 'proj-1' does not exist, or these credentials cannot access it"
    assert "gcloud projects list" in advice(diagnosis)


def test_sentences_for_credentials_that_no_call_was_made_with() -> None:
    none = no_credentials("Your default credentials were not found. To set up Application Default\nCredentials, see")
    assert none.kind is ErrorKind.CREDENTIALS
    assert none.cause == "Your default credentials were not found"
    assert command_lines(none) == "gcloud auth application-default login"
    assert no_credentials().cause
    assert expired_credentials("invalid_grant: Token has been expired or revoked.").cause == (
        "invalid_grant: Token has been expired or revoked"
    )
    assert expired_credentials().cause
    assert "--project" in advice(no_project())
    assert "'nope'" in wrong_project("nope").message


# --- rules of the organisation ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("constraint", "scope", "words"),
    [
        ("compute.vmExternalIpAccess", Scope.EVERYTHING, "--iap"),
        ("compute.requireOsLogin", Scope.EVERYTHING, "--os-login"),
        ("compute.disableGuestAttributesAccess", Scope.EVERYTHING, "org-policies reset compute.disableGuest"),
        ("compute.trustedImageProjects", Scope.EVERYTHING, "--image"),
        ("compute.requireShieldedVm", Scope.EVERYTHING, "--image"),
        ("gcp.resourceLocations", Scope.REGION, "--zone REGION"),
        ("compute.somethingElse", Scope.EVERYTHING, "administrator of the organization"),
    ],
)
def test_policies(constraint: str, scope: Scope, words: str) -> None:
    message = (
        f"Constraint constraints/{constraint} violated for project 123456789. Add instance projects/p/i to the list."
    )
    for failures in (
        http(412, "conditionNotMet", message),
        operation({"code": "CONDITION_NOT_MET", "message": message}, http=412),
    ):
        diagnosis = diagnosis_of(failures)
        assert (diagnosis.kind.value, diagnosis.scope) == ("usage", scope)
        assert constraint in diagnosis.message
        assert words in advice(diagnosis)
        assert diagnosis.cause == message


# --- things that are not there ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "expected", "scope", "words"),
    [
        (
            "The resource 'projects/proj-1/global/networks/default' was not found",
            "project proj-1 has no network default",
            Scope.EVERYTHING,
            "--network",
        ),
        (
            "Invalid value for field 'resource.networkInterfaces[0].network': 'global/networks/nope'. The referenced "
            "network resource cannot be found.",
            "project proj-1 has no network nope",
            Scope.EVERYTHING,
            "gcloud compute networks list --project proj-1",
        ),
        (
            "The resource 'projects/proj-1/regions/us-central1/subnetworks/inner' was not found",
            "us-central1-a has no subnetwork inner",
            Scope.REGION,
            "--subnet",
        ),
        (
            "The resource 'projects/proj-1/zones/us-central1-a/machineTypes/n1-standrd-4' was not found",
            "us-central1-a has no machine type n1-standrd-4",
            Scope.ZONE,
            "--machine-type",
        ),
        (
            "Invalid value for field 'resource.instanceProperties.machineType': 'n9-standard-4'. Machine type with "
            "name 'n9-standard-4' does not exist in zone 'us-central1-a'.",
            "us-central1-a has no machine type n9-standard-4",
            Scope.ZONE,
            "machine-types list",
        ),
        (
            "The resource 'projects/proj-1/zones/us-central1-a/acceleratorTypes/nvidia-tesla-t4' was not found",
            "us-central1-a has no GPUs of type nvidia-tesla-t4",
            Scope.ZONE,
            "accelerator-types list",
        ),
        (
            "The resource 'https://compute.googleapis.com/compute/v1/projects/proj-1/zones/us-central1-a/diskTypes/fast"
            "' was not found",
            "us-central1-a has no disks of type fast",
            Scope.ZONE,
            'disk-type = "pd-balanced"',
        ),
        (
            "The resource 'projects/deeplearning-platform-release/global/images/family/tf2-latest-gpu' was not found",
            "boot image tf2-latest-gpu does not exist, or these credentials cannot access it",
            Scope.EVERYTHING,
            "--image",
        ),
    ],
)
def test_what_a_request_names_and_is_not_there(message: str, expected: str, scope: Scope, words: str) -> None:
    reason = "invalid" if message.startswith("Invalid") else "notFound"
    for failures in (
        http(400 if reason == "invalid" else 404, reason, message),
        operation(
            {"code": "INVALID_FIELD_VALUE" if reason == "invalid" else "RESOURCE_NOT_FOUND", "message": message}
        ),
    ):
        diagnosis = diagnosis_of(failures)
        assert (diagnosis.kind.value, diagnosis.scope) == ("usage", scope)
        assert diagnosis.message == expected
        assert words in advice(diagnosis)


def test_an_instance_that_is_gone() -> None:
    diagnosis = diagnosis_of(
        http(404, "notFound", "The resource 'projects/proj-1/zones/us-central1-a/instances/i' was not found")
    )
    assert (diagnosis.kind.value, diagnosis.scope) == ("missing", Scope.EVERYTHING)
    assert "fleet status" in advice(diagnosis)


def test_something_of_that_name_is_there() -> None:
    message = "The resource 'projects/proj-1/zones/us-central1-a/instances/demo-worker-0' already exists"
    for failures in (
        http(409, "alreadyExists", message),
        operation({"code": "RESOURCE_ALREADY_EXISTS", "message": message}, http=409),
    ):
        diagnosis = diagnosis_of(failures)
        assert (diagnosis.kind.value, diagnosis.scope) == ("usage", Scope.EVERYTHING)
        assert "already exists" in diagnosis.message
        assert diagnosis.cause == message


# --- requests that cannot be met ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (
            "Invalid value for field 'resource.disks[0].initializeParams.diskSizeGb': '10'. Requested disk size "
            "cannot be smaller than the image size (50 GB)",
            "--disk-size 50",
        ),
        (
            "Invalid value for field 'resource.networkInterfaces[0]': '{}'. Subnetwork should be specified for "
            "custom subnetmode network; network is in custom subnet mode",
            "--subnet",
        ),
        ("[n1-standard-4, nvidia-l4] features are not compatible for creating instance.", "--machine-type"),
        ("Invalid value for field 'resource.name': 'A'. Must be a match of regex", "as the cause describes"),
    ],
)
def test_what_compute_engine_does_not_accept(message: str, words: str) -> None:
    diagnosis = diagnosis_of(http(400, "invalid", message))
    assert (diagnosis.kind.value, diagnosis.scope) == ("usage", Scope.EVERYTHING)
    assert words in advice(diagnosis)
    assert diagnosis.cause == message


# --- what passes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "failures",
    [
        http(403, "rateLimitExceeded", "Rate Limit Exceeded", "usageLimits"),
        http(
            429,
            "rateLimitExceeded",
            "Quota exceeded for quota metric 'Queries' and limit 'Queries per minute' of service 'compute.'",
            "usageLimits",
        ),
        http(500, "backendError", "Internal error. Please try again or contact Google Support. (Code: '1A')"),
        http(503, "backendError", "The service is currently unavailable."),
        from_http(502, None),
        operation({"code": "INTERNAL_ERROR", "message": "Internal error. (Code: '4C')"}, http=500),
        http(412, "conditionNotMet", "Labels fingerprint either invalid or resource labels have changed"),
        http(400, "resourceInUseByAnotherResource", "The firewall is already being used by 'x'"),
        http(400, "resourceNotReady", "The resource 'projects/p/global/networks/n' is not ready"),
    ],
)
def test_what_is_worth_another_try_at_the_same_place(failures: list[Failure]) -> None:
    diagnosis = diagnosis_of(failures)
    assert (diagnosis.kind.value, diagnosis.scope) == ("unreachable", Scope.RETRY)
    assert "repeat the command" in advice(diagnosis)


def test_no_answer() -> None:
    diagnosis = diagnosis_of([Failure(code="UNREACHABLE", message="connection refused")], "")
    assert (diagnosis.kind.value, diagnosis.scope) == ("unreachable", Scope.EVERYTHING)
    assert diagnosis.message == "could not make 2 instances: Compute Engine does not respond"


def test_an_operation_that_takes_too_long() -> None:
    diagnosis = diagnosis_of(
        [Failure(code="DEADLINE", message="making instances is not done after 600 s (operation o)")]
    )
    assert (diagnosis.kind.value, diagnosis.scope) == ("unreachable", Scope.ZONE)
    assert "timed out" in diagnosis.message


def test_fewer_than_asked_for() -> None:
    diagnosis = diagnosis_of([Failure(code="MISSING", message="1 of 2 instances are there")])
    assert (diagnosis.kind.value, diagnosis.scope, diagnosis.cause) == (
        "capacity",
        Scope.ZONE,
        "1 of 2 instances are there",
    )


# --- unknown failures --------------------------------------------------------------------------------------------


def test_an_unknown_error_keeps_its_message() -> None:
    diagnosis = diagnosis_of(operation({"code": "QUANTUM_FLUX", "message": "The flux\nis  inverted."}))
    assert diagnosis.scope is Scope.EVERYTHING
    assert "(QUANTUM_FLUX)" in diagnosis.message
    assert diagnosis.cause == "The flux is inverted."


@pytest.mark.parametrize(
    ("failures", "label"),
    [([], "unknown error"), ([Failure()], "unknown error"), (from_http(418, None), "HTTP 418")],
)
def test_errors_without_a_message(failures: list[Failure], label: str) -> None:
    diagnosis = diagnosis_of(failures)
    assert label in diagnosis.message
    assert diagnosis.cause == "no reason given"


# --- reading ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        (
            "custom.gceLabels",
            'Operation denied by custom org policy: ["customConstraints/custom.gceLabels": "A label is missing."].',
        ),
        ("custom.Disks_2", "Operation denied by org policy on resource 'x': [\"customConstraints/custom.Disks_2\"]"),
        (
            "compute.managed.requireShieldedNodes",
            "Constraint constraints/compute.managed.requireShieldedNodes violated",
        ),
        ("", "Operation denied by Custom Org Policy: see the organization's administrator."),
    ],
)
def test_a_policy_of_the_organization_is_named_and_not_retried(constraint: str, message: str) -> None:
    for failures in (
        http(412, "conditionNotMet", message),
        operation({"code": "CONDITION_NOT_MET", "message": message}, http=412),
    ):
        diagnosis = diagnosis_of(failures)
        assert (diagnosis.kind.value, diagnosis.scope) == ("usage", Scope.EVERYTHING)
        assert "policy" in diagnosis.message
        assert constraint in diagnosis.message
        assert command_lines(diagnosis).startswith("gcloud org-policies")


def test_a_managed_constraint_has_the_way_out_of_the_legacy_one() -> None:
    message = "Constraint constraints/compute.managed.vmExternalIpAccess violated for project proj-1."
    assert diagnosis_of(http(412, "conditionNotMet", message)).again == {"--iap": True}


def test_a_managed_constraint_is_lifted_with_the_command_for_managed_constraints() -> None:
    for message in (
        "Constraint constraints/compute.managed.disableGuestAttributesAccess violated for project proj-1.",
        'Operation denied by org policy: ["constraints/compute.managed.disableGuestAttributesAccess": "Disabled."].',
    ):
        diagnosis = diagnosis_of(http(400, "failedPrecondition", message))
        assert (diagnosis.kind.value, diagnosis.scope) == ("usage", Scope.EVERYTHING)
        lift = "gcloud org-policies reset compute.managed.disableGuestAttributesAccess --project proj-1"
        assert command_lines(diagnosis) == lift


def test_a_constraint_that_only_the_details_name() -> None:
    info = {"reason": "CUSTOM_ORG_POLICY_VIOLATION", "metadata": {"customConstraints": "customConstraints/custom.c"}}
    detail = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", **info}
    message = "Multiple constraints were violated. See details for more information."
    diagnosis = diagnosis_of(http(412, "conditionNotMet", message, details=[detail]))
    assert "the organization policy custom.c forbids it" in diagnosis.message


def test_a_condition_without_a_policy_is_a_race() -> None:
    message = "Supplied fingerprint does not match current metadata fingerprint."
    assert diagnosis_of(http(412, "conditionNotMet", message)).scope is Scope.RETRY


def test_scopes_that_are_too_narrow_are_credentials() -> None:
    info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "ACCESS_TOKEN_SCOPE_INSUFFICIENT"}
    message = "Request had insufficient authentication scopes."
    for failures in (
        http(403, "insufficientPermissions", message),
        http(403, "forbidden", "Insufficient Permission", details=[info]),
    ):
        diagnosis = diagnosis_of(failures)
        assert (diagnosis.kind.value, diagnosis.scope) == ("credentials", Scope.EVERYTHING)
        assert command_lines(diagnosis) == "gcloud auth application-default login"
        assert "set-service-account" in diagnosis.hint


@pytest.mark.parametrize(
    ("failures", "kind", "next_step"),
    [
        (http(400, "invalid", "Subnetwork should be specified for custom subnetmode network"), "usage", "--subnet"),
        (
            http(400, "invalid", 'Service account "1-compute@developer.gserviceaccount.com" does not exist.'),
            "usage",
            "gcloud iam service-accounts list --project proj-1",
        ),
        (
            http(404, "notFound", "The resource '1-x@y.iam' of type 'serviceAccount' was not found."),
            "usage",
            "gcloud iam service-accounts list --project proj-1",
        ),
        (http(403, "forbidden", "Project proj-1 has billing disabled."), "missing", "gcloud billing accounts list"),
        (
            http(403, "accountDisabled", "The billing account for project 1 is disabled in state absent"),
            "missing",
            "gcloud billing accounts list",
        ),
        (
            http(403, "forbidden", "The billing account for the owning project is disabled in state absent"),
            "missing",
            "gcloud billing accounts list",
        ),
        (http(400, "invalid", "Invalid value for project: X"), "usage", "gcloud projects list"),
        (
            http(429, "RESOURCE_EXHAUSTED", "The request would exceed quota limits of the project."),
            "quota",
            "iam-admin/quotas?project=proj-1",
        ),
    ],
)
def test_errors_that_name_a_setting_or_an_account(failures: list[Failure], kind: str, next_step: str) -> None:
    diagnosis = diagnosis_of(failures)
    assert diagnosis.kind.value == kind
    assert next_step in advice(diagnosis)


@pytest.mark.parametrize(
    ("permission", "role"),
    [
        ("compute.networks.create", "roles/compute.networkAdmin"),
        ("compute.networks.updatePolicy", "roles/compute.securityAdmin"),
        ("compute.networks.get", "roles/compute.networkUser"),
        ("iam.serviceaccounts.actAs", "roles/iam.serviceAccountUser"),
        ("compute.images.useReadOnly", "roles/compute.imageUser"),
        ("compute.images.create", "roles/compute.storageAdmin"),
    ],
)
def test_a_role_that_has_the_permission(permission: str, role: str) -> None:
    assert role_for(permission) == role


def test_too_many_changes_of_something_global_are_retried() -> None:
    message = "Operation rate exceeded for resource 'projects/p/global/images/i'. Too frequent operations."
    diagnosis = diagnosis_of(operation({"code": "RESOURCE_OPERATION_RATE_EXCEEDED", "message": message}))
    assert diagnosis.scope is Scope.RETRY


def test_reading_an_http_error() -> None:
    diagnosis = from_http(
        403,
        {
            "error": {
                "code": 403,
                "message": "outer",
                "errors": [
                    {"message": "inner", "domain": "usageLimits", "reason": "quotaExceeded"},
                    {"domain": "global", "reason": "forbidden"},
                ],
                "details": [{"@type": "x"}],
            }
        },
    )
    assert [(detail.code, detail.message, detail.domain, detail.http) for detail in diagnosis] == [
        ("quotaExceeded", "inner", "usageLimits", 403),
        ("forbidden", "outer", "global", 403),
    ]
    assert diagnosis[0].details == ({"@type": "x"},)
    assert from_http(500, {"error": "text"}) == [Failure(http=500)]
    assert from_http(500, {}) == [Failure(http=500)]


def test_reading_an_operation() -> None:
    assert of_operation({"status": "DONE"}) == []
    assert of_operation({"status": "DONE", "error": {}}) == []
    [bare] = of_operation({"status": "DONE", "httpErrorStatusCode": 503, "httpErrorMessage": "SERVICE UNAVAILABLE"})
    assert (bare.code, bare.http) == ("SERVICE_UNAVAILABLE", 503)
    assert diagnosis_of([bare]).scope is Scope.RETRY
    first, second = operation(MIN_COUNT, stockout(), http=409)
    assert (first.code, first.http, first.of_operation) == ("VM_MIN_COUNT_NOT_REACHED", 409, True)
    assert len(second.details) == 3


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
    bodies = ({"error": {"errors": errors, "details": other}}, {"error": other}, {"error": {"errors": other}})
    for body in bodies:
        diagnosis_of([*from_http(status, body), *of_operation({**body, "httpErrorStatusCode": status})])
    assert json.dumps(bodies) is not None
