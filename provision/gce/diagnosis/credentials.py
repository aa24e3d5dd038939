"""Diagnoses of credentials, projects, APIs, and permissions."""

from __future__ import annotations

import re

from provision.gce.diagnosis.cases import Case, Diagnose, Diagnosis, Rule, Scope
from provision.gce.diagnosis.roles import grant_role, role_for
from provision.provider import ErrorKind

_LOGIN = "gcloud auth application-default login"
_NO_PROJECT = re.compile(
    r"The resource 'projects/[^/']+' was not found|Failed to find project|Unknown project"
    r"|Project \S+ not found or deleted|Invalid value for project\b",
    re.IGNORECASE,
)
_PERMISSION = re.compile(
    r"Required '([a-zA-Z0-9.]+)' permission|[Pp]ermission '?([a-z][a-zA-Z0-9]*\.[a-zA-Z0-9.]+)'?"
)


def no_credentials(reason: str = "") -> Diagnosis:
    """Return the diagnosis that there are no Application Default Credentials."""
    return Diagnosis(
        ErrorKind.CREDENTIALS,
        "no Google Cloud credentials found",
        cause=_first_sentence(reason) or "GOOGLE_APPLICATION_CREDENTIALS is not set, and gcloud is not logged in",
        next_steps=[tuple(_LOGIN.split())],
    )


def expired_credentials(reason: str = "") -> Diagnosis:
    """Return the diagnosis that Google does not accept the credentials any more."""
    return Diagnosis(
        ErrorKind.CREDENTIALS,
        "Google Cloud rejected the credentials of this computer",
        cause=_first_sentence(reason) or "they have expired or were revoked",
        next_steps=[tuple(_LOGIN.split())],
    )


def no_project() -> Diagnosis:
    """Return the diagnosis that neither the options nor the credentials name a project."""
    return Diagnosis(
        ErrorKind.USAGE,
        "no Google Cloud project set",
        cause="neither --project nor the credentials name a project",
        hint="set the project: --project ID",
        next_steps=[("gcloud", "projects", "list")],
    )


def wrong_project(project: str, reason: str = "") -> Diagnosis:
    """Return the diagnosis that the project does not exist, or that the caller may not see it."""
    return Diagnosis(
        ErrorKind.USAGE,
        f"project {project!r} does not exist, or these credentials cannot access it",
        cause=_first_sentence(reason),
        hint="select one of your projects: --project ID",
        next_steps=[("gcloud", "projects", "list")],
    )


def _first_sentence(text: str) -> str:
    """Return the first sentence of a text, on one line."""
    return " ".join(text.split()).partition(". ")[0].rstrip(".")


def _login(case: Case) -> Diagnosis | None:
    if case.status == 401 or case.reasons & {"authError", "UNAUTHENTICATED", "ACCESS_TOKEN_EXPIRED"}:
        return expired_credentials(case.text)
    return None


def _project(case: Case) -> Diagnosis | None:
    if case.reasons & {"CONSUMER_INVALID", "RESOURCE_PROJECT_INVALID"} or (
        case.status in {400, 403, 404} and _NO_PROJECT.search(case.text)
    ):
        return wrong_project(case.project, case.text)
    return None


def missing_permission(permission: str, project: str, *, doing: str, cause: str = "") -> Diagnosis:
    """Return the diagnosis that the caller lacks a permission.

    Args:
        permission: ``compute.instances.create``.
        project: Project of the call.
        doing: Purpose of the call, ``create 2 instances``.
        cause: Message of the answer.
    """
    return Diagnosis(
        ErrorKind.CREDENTIALS,
        f"could not {doing}: these credentials lack the permission {permission} in project {project}",
        cause=cause,
        hint="ask an administrator of the project for it, or add it if you have the right",
        next_steps=[grant_role(project, role_for(permission))],
    )


def permission_denied(case: Case) -> Diagnosis | None:
    """Return the diagnosis that the caller lacks a permission or a role; None if the failure is another."""
    named = _PERMISSION.search(case.text)
    permission = case.metadata("permission") or (named and (named[1] or named[2])) or ""
    if "iam.serviceAccountUser" in case.text or "does not have access to service account" in case.text:
        permission = "iam.serviceAccounts.actAs"
    denied = case.reasons & {"IAM_PERMISSION_DENIED", "PERMISSIONS_ERROR", "USER_PROJECT_DENIED"}
    denied |= case.reasons & {"forbidden", "PERMISSION_DENIED", "SERVICE_ACCOUNT_ACCESS_DENIED"}
    if permission and (case.status == 403 or denied or named):
        return missing_permission(permission.rstrip("."), case.project, doing=case.doing, cause=case.text)
    if "USER_PROJECT_DENIED" in denied:
        return missing_permission("serviceusage.services.use", case.project, doing=case.doing, cause=case.text)
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


PROJECTS: tuple[Diagnose, ...] = (
    _login,
    Rule(
        ErrorKind.MISSING,
        "project {c.project} has no billing account, which Compute Engine requires",
        codes={
            "BILLING_DISABLED",
            "billingNotEnabled",
            "billingDisabled",
            "UREQ_PROJECT_BILLING_NOT_FOUND",
            "accountDisabled",
        },
        text=r"requires billing to be enabled|has billing disabled|billing (?:is|has been) (?:disabled|not enabled)"
        r"|billing account .*\b(?:disabled|absent|closed|not found)\b",
        hint="link one of your billing accounts: gcloud billing projects link {c.project} --billing-account ID",
        next_steps=("gcloud billing accounts list",),
    ),
    Rule(
        ErrorKind.MISSING,
        "the API {c.service} is not enabled in project {c.project}",
        codes={"accessNotConfigured", "SERVICE_DISABLED"},
        hint="it takes effect after a few minutes",
        next_steps=("gcloud services enable {c.service} --project {c.project}",),
    ),
    _project,
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
    # The access token is valid, but not for Compute Engine; the roles of the caller do not matter.
    Rule(
        ErrorKind.CREDENTIALS,
        "could not {c.doing}: the scopes of these credentials do not allow calls to Compute Engine",
        codes={"insufficientPermissions", "ACCESS_TOKEN_SCOPE_INSUFFICIENT"},
        text="insufficient authentication scopes",
        hint="on a Compute Engine instance, stop it and give it the scope cloud-platform with "
        "'gcloud compute instances set-service-account', or log in as yourself",
        next_steps=(_LOGIN,),
    ),
)
