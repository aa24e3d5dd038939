"""Diagnoses of missing permissions, with the command that grants a role on the resource that was refused."""

from __future__ import annotations

import re

from provision.gce.diagnosis.cases import Case, Diagnose, Diagnosis, Rule, Scope
from provision.gce.diagnosis.roles import grant_role, role_for
from provision.provider import ErrorKind

_PERMISSION = re.compile(
    r"Required '([a-zA-Z0-9.]+)' permission|[Pp]ermission '?([a-z][a-zA-Z0-9]*\.[a-zA-Z0-9.]+)'?"
)
_REFUSED = re.compile(
    r"(?:permission for|denied on resource) '(?://[a-z]+\.googleapis\.com/)?projects/([^/']+)/?([^']*)'"
)
_SUBNETWORK = re.compile(r"regions/([^/]+)/subnetworks/([^/]+)")
_ACCOUNT = re.compile(r"service account ['\"]?([^\s'\"]+@[^\s'\"]*[^\s'\".,])")
_KEY = re.compile(r"projects/[^/\s']+/locations/[^/\s']+/keyRings/[^/\s']+/cryptoKeys/[^/\s':]+")


def missing_permission(
    permission: str, project: str, *, doing: str, member: str, cause: str = "", path: str = ""
) -> Diagnosis:
    """Return the diagnosis that the caller lacks a permission.

    Args:
        permission: ``compute.instances.create``.
        project: Project of the resource, which differs from that of the call in a Shared VPC.
        doing: Purpose of the call, ``create 2 instances``.
        member: The caller as a member of a policy, quoted for a shell.
        cause: Message of the answer.
        path: Path of the resource in its project, ``regions/us-central1/subnetworks/s``; empty: the project.
    """
    role = role_for(permission)
    subnetwork = _SUBNETWORK.match(path)
    if subnetwork and role == "roles/compute.networkUser":
        operands = [subnetwork[2], "--region", subnetwork[1], "--project", project]
        grant = grant_role("compute networks subnets", operands, role, member)
    else:
        grant = grant_role("projects", [project], role, member)
    return Diagnosis(
        ErrorKind.CREDENTIALS,
        f"could not {doing}: these credentials lack the permission {permission} in project {project}",
        cause=cause,
        hint="ask an administrator of the project for it, or add it if you have the right",
        next_steps=[grant],
    )


def permission_denied(case: Case) -> Diagnosis | None:
    """Return the diagnosis that the caller lacks a permission or a role; None if the failure is another."""
    named = _PERMISSION.search(case.text)
    permission = case.metadata("permission") or (named and (named[1] or named[2])) or ""
    denied = case.reasons & {"IAM_PERMISSION_DENIED", "PERMISSIONS_ERROR", "USER_PROJECT_DENIED"}
    denied |= case.reasons & {"forbidden", "PERMISSION_DENIED"}
    if "USER_PROJECT_DENIED" in denied and not permission:
        permission = "serviceusage.services.use"
    if permission and (case.status == 403 or denied or named):
        refused = _REFUSED.search(case.text)
        project, path = (refused[1], refused[2]) if refused else (case.project, "")
        return missing_permission(
            permission.rstrip("."), project, doing=case.doing, member=case.member(), cause=case.text, path=path
        )
    if not denied:
        return None
    return Diagnosis(
        ErrorKind.CREDENTIALS,
        f"could not {case.doing}: project {case.project} does not allow this for these credentials",
        scope=Scope.EVERYTHING,
        cause=case.text,
        hint="fleet doctor lists the missing permissions",
        next_steps=[("fleet", "doctor", "--provider", "gce", "--project", case.project)],
    )


def _service_account(case: Case) -> Diagnosis | None:
    """Diagnose that the caller may not give the service account to instances."""
    refused = "SERVICE_ACCOUNT_ACCESS_DENIED" in case.reasons or "iam.serviceAccountUser" in case.text
    if not refused and "does not have access to service account" not in case.text:
        return None
    named, role = _ACCOUNT.search(case.text), "roles/iam.serviceAccountUser"
    group, operands = (
        ("iam service-accounts", [named[1], "--project", case.project]) if named else ("projects", [case.project])
    )
    return Diagnosis(
        ErrorKind.CREDENTIALS,
        f"could not {case.doing}: these credentials lack the permission iam.serviceAccounts.actAs"
        + (f" on the service account {named[1]}" if named else f" in project {case.project}"),
        cause=case.text,
        hint="ask an administrator of the project for it, or use no service account: remove --scopes",
        next_steps=[grant_role(group, operands, role, case.member())],
    )


def _key(case: Case) -> Diagnosis | None:
    """Diagnose that Compute Engine may not use the Cloud KMS key of a disk.

    Source: https://cloud.google.com/compute/docs/disks/customer-managed-encryption#required-roles.
    """
    if "Cloud KMS" not in case.text and "cloudkms." not in case.text:
        return None
    named = _KEY.search(case.text)
    number = f"$(gcloud projects describe {case.project} --format='value(projectNumber)')"
    member = f'"serviceAccount:service-{number}@compute-system.iam.gserviceaccount.com"'
    role = "roles/cloudkms.cryptoKeyEncrypterDecrypter"
    group, operands = ("kms keys", [named[0]]) if named else ("projects", [case.project])
    return Diagnosis(
        ErrorKind.CREDENTIALS,
        f"{case.could_not}: Compute Engine may not use the Cloud KMS key of the disks",
        cause=case.text,
        hint="grant its service agent the use of the key, or select an image without a key: "
        "--image projects/PROJECT/global/images/family/FAMILY",
        next_steps=[grant_role(group, operands, role, member)],
    )


ACCOUNTS: tuple[Diagnose, ...] = (
    Rule(
        ErrorKind.USAGE,
        "{c.could_not}: the service account for the instances does not exist in project {c.project}",
        text=r"service account \S+ (?:does not exist|was not found|is disabled|not found)"
        r"|of type 'serviceAccount' was not found",
        hint="select an existing account with --service-account, or remove --scopes to use none",
        next_steps=("gcloud iam service-accounts list --project {c.project}",),
    ),
    _service_account,
    _key,
)
