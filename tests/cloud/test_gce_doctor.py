"""`fleet doctor` finds what would stop `fleet up`; the emulator enforces the same state on both."""

from __future__ import annotations

from typing import Any

import pytest

from provision.gce.provider import GceProvider
from provision.model import Finding, FleetSpec
from provision.provider import ProviderError
from tests.cloud.conftest import Make, finding_of
from tests.emulator import Emulator
from tests.next_steps import command_lines
from tests.program import Program

NAMES = ("worker-0", "worker-1")
SCOPES = ("https://www.googleapis.com/auth/devstorage.read_only",)


def problems(provider: GceProvider) -> dict[str, Finding]:
    """Return the findings that are not ok, by subject."""
    return {
        finding.subject: finding for finding in provider.doctor() if not finding.ok and finding.subject != "gcloud"
    }


def refused(provider: GceProvider, spec: FleetSpec) -> ProviderError:
    """Return the error with which the creation of the fleet ends; no instance is left."""
    with pytest.raises(ProviderError) as caught:
        provider.create(spec, NAMES, lambda *_: None)
    assert provider.list("demo") == []
    assert provider.delete_fleet("demo", lambda *_: None) == []
    return caught.value


# --- quotas -------------------------------------------------------------------------------------------------------


def test_quotas_for_all_workers_are_checked_in_the_regions_that_are_tried(emulator: Emulator, make: Make) -> None:
    for metric in ("NVIDIA_T4_GPUS", "PREEMPTIBLE_NVIDIA_T4_GPUS"):
        emulator.set_quota(metric, 1, "us-central1")
    results = {}
    for zones in (("us-central1-a",), ()):
        provider, _ = make(gpu="t4", zones=zones)
        for workers in (1, 2):
            checks = {finding.subject: finding for finding in provider.doctor(workers)}
            results[zones, workers] = checks["regional quota"]
    assert [finding.ok for finding in results.values()] == [True, False, True, True]
    short, elsewhere = list(results.values())[1::2]
    assert short.message.startswith("the quota NVIDIA_T4_GPUS of project proj-1 allows 1 in us-central1")
    assert "--preferred-value 2 --dimensions region=us-central1 " in command_lines(short)
    machine = "n1-standard-4 + 1 nvidia-tesla-t4"
    assert elsewhere.message == f"room for 2 instances ({machine}) in 1 of 2 regions"  # of the continent


def test_a_free_trial_is_recognized_by_its_quotas(emulator: Emulator, make: Make) -> None:
    emulator.start_trial()
    assert problems(make()[0]) == {}
    provider, spec = make(gpu="t4")
    assert "https://console.cloud.google.com/billing/linkedaccount" in problems(provider)["global quota"].hint
    emulator.set_quota("GPUS_ALL_REGIONS", 8)  # a quota does not help
    error = refused(provider, spec)
    assert error.message == "the billing account of project proj-1 is in its free trial, which has no GPUs"


# --- policies -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("constraint", "rule"),
    [
        ("compute.vmExternalIpAccess", {"denyAll": True}),
        ("compute.vmExternalIpAccess", {"values": {"allowedValues": ["projects/p/zones/z/instances/i"]}}),
        ("compute.managed.vmExternalIpAccess", {"enforce": True}),
        ("compute.managed.disableGuestAttributesAccess", {"enforce": True}),
        ("compute.requireShieldedVm", {"enforce": True}),
    ],
)
def test_a_policy_that_rejects_instances_is_found_before(
    emulator: Emulator, make: Make, constraint: str, rule: dict[str, Any]
) -> None:
    emulator.cloud.governance.policies[constraint] = {"rules": [rule]}
    provider, spec = make()
    [finding] = problems(provider).values()
    assert finding.subject == "policies"
    assert constraint in finding.message
    assert command_lines(finding)
    error = refused(provider, spec)
    assert constraint in error.message
    assert error.hint == finding.hint


@pytest.mark.usefixtures("gcloud")
def test_a_policy_that_allows_the_instances_is_no_problem(emulator: Emulator, make: Make) -> None:
    emulator.translate_addresses("us-central1")
    policies = emulator.cloud.governance.policies
    policies["compute.vmExternalIpAccess"] = {"rules": [{"denyAll": True}]}
    policies["compute.requireShieldedVm"] = {"rules": [{"enforce": True, "condition": {"expression": "x"}}]}
    policies["compute.disableGuestAttributesAccess"] = {"rules": [{"enforce": True}]}
    provider, _ = make(external=False)
    assert problems(provider) == {}
    assert "host keys are read from the serial consoles" in finding_of(provider, "policies").message


# --- billing, APIs, accounts --------------------------------------------------------------------------------------


def test_a_closed_billing_account_is_found(emulator: Emulator, make: Make) -> None:
    emulator.cloud.governance.is_open = False
    provider, spec = make()
    findings = problems(provider)
    assert {"billing", "API"} == findings.keys()
    assert command_lines(findings["billing"]) == "gcloud billing accounts list"
    with pytest.raises(ProviderError, match="has no billing account"):
        provider.quote(spec, NAMES)


def test_what_cannot_be_checked_is_neither_ok_nor_missing(emulator: Emulator, make: Make) -> None:
    for name in ("cloudbilling", "cloudresourcemanager", "orgpolicy", "iam"):
        emulator.cloud.governance.disabled.add(f"{name}.googleapis.com")
    findings = problems(make(scopes=SCOPES)[0])
    assert {finding.ok for finding in findings.values()} == {None}
    assert {subject: command_lines(finding).split()[3] for subject, finding in findings.items()} == {
        "billing": "cloudbilling.googleapis.com",
        "prices": "cloudbilling.googleapis.com",
        "permissions": "cloudresourcemanager.googleapis.com",
        "policies": "orgpolicy.googleapis.com",
        "service account": "iam.googleapis.com",
    }


def test_a_missing_service_account_is_refused_with_the_commands_that_create_it(
    emulator: Emulator, make: Make
) -> None:
    email = "trainer@proj-1.iam.gserviceaccount.com"
    provider, spec = make(scopes=SCOPES, service_account=email)
    with pytest.raises(ProviderError, match=f"the service account {email} does not exist") as refusal:
        provider.quote(spec, NAMES)
    lines = command_lines(refusal.value)
    assert lines.startswith("gcloud iam service-accounts create trainer --project proj-1\n")
    [finding] = problems(provider).values()
    assert (finding.subject, command_lines(finding)) == ("service account", lines)
    emulator.deny("iam.serviceAccounts.get")  # then Compute Engine decides
    assert provider.quote(spec, NAMES).offers


def test_a_service_account_that_the_caller_may_not_use_is_found(emulator: Emulator, make: Make) -> None:
    emulator.deny("iam.serviceAccounts.actAs")
    provider, spec = make(scopes=SCOPES)
    [finding] = problems(provider).values()
    assert command_lines(finding) == command_lines(refused(provider, spec))
    assert command_lines(finding).startswith(
        "gcloud iam service-accounts add-iam-policy-binding 100000000001-compute@developer.gserviceaccount.com "
        "--project proj-1 --role roles/iam.serviceAccountUser --member="
    )


# --- networks -----------------------------------------------------------------------------------------------------


def test_a_network_in_custom_mode_requires_a_subnetwork(emulator: Emulator, make: Make) -> None:
    emulator.set_networks("prod")
    provider, spec = make(network="prod")
    [finding] = problems(provider).values()
    assert finding.message.startswith("network prod requires a subnetwork: it has subnetworks in ")
    assert "--subnet" in refused(provider, spec).hint
    with pytest.raises(ProviderError, match="network prod requires a subnetwork"):
        provider.quote(spec, NAMES)
    assert problems(make(network="prod", subnetwork="prod")[0]) == {}
    [finding] = problems(make(network="prod", subnetwork="other")[0]).values()
    assert finding.message == "network prod has no subnetwork other in us-central1"


# --- the printed lines ----------------------------------------------------------------------------------------------


@pytest.mark.wire
def test_doctor_prints_all_findings_of_one_run(program: Program, emulator: Emulator) -> None:
    program.env.update(FLEET_GCE_ENDPOINT=emulator.url, FLEET_GCE_PROJECT="proj-1")
    governance = emulator.cloud.governance
    governance.policies["compute.requireShieldedVm"] = {"rules": [{"enforce": True}]}
    governance.disabled.add("cloudbilling.googleapis.com")
    emulator.set_networks("prod")
    emulator.faults.add("503", times=1)
    ran = program.run("doctor", "--provider", "gce", code=14)
    assert "asking Compute Engine; retrying after HTTP 503\n" in ran.err
    lines = ran.text.splitlines()
    assert [line.split(":")[0] for line in lines if line.startswith(("missing", "unknown"))] == [
        "unknown  billing",
        "unknown  prices",
        "missing  network",
        "missing  policies",
    ]
    assert "gcloud services enable cloudbilling.googleapis.com --project proj-1" in ran.text
    assert "gcloud org-policies reset compute.requireShieldedVm --project proj-1" in ran.text
    assert "gcloud compute networks list --project proj-1" in ran.text
