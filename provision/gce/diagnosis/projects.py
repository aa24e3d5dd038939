"""Diagnoses of projects: missing, suspended, without billing, without the API, or closed to the caller."""

from __future__ import annotations

import re

from provision.gce.diagnosis.cases import Case, Diagnose, Diagnosis, Rule, first_sentence
from provision.provider import ErrorKind

_NO_PROJECT = re.compile(
    r"The resource 'projects/[^/']+' was not found|Failed to find project|Unknown project"
    r"|Project \S+ not found or deleted|Invalid value for project\b",
    re.IGNORECASE,
)
_NAMED_PROJECT = re.compile(r"The resource 'projects/([^/']+)' was not found")
_PERIMETER = re.compile(
    r"vpcServiceControlsUniqueIdentifier|violates VPC Service Controls|prohibited by organization'?s policy",
    re.IGNORECASE,
)
_TRIAL = re.compile(r"billing account is (?:currently )?in the free tier|free[- ]trial", re.IGNORECASE)
_VIOLATION = re.compile(r"vpcServiceControlsUniqueIdentifier:?\s*([\w-]+)")


def no_project() -> Diagnosis:
    """Return the diagnosis that neither the options nor the credentials name a project."""
    return Diagnosis(
        ErrorKind.USAGE,
        "no Google Cloud project set",
        cause="neither --project nor the credentials name a project",
        hint="set the project: --project ID",
        next_steps=[("gcloud", "projects", "list")],
    )


def wrong_project(project: str, reason: str = "", hint: str = "") -> Diagnosis:
    """Return the diagnosis that a project does not exist, or that the caller may not see it."""
    return Diagnosis(
        ErrorKind.USAGE,
        f"project {project!r} does not exist, or these credentials cannot access it",
        cause=first_sentence(reason),
        hint=hint or "select one of your projects: --project ID",
        next_steps=[("gcloud", "projects", "list")],
    )


def free_trial(project: str, cause: str = "") -> Diagnosis:
    """Return the diagnosis that the billing account is in its free trial, which has no GPUs.

    Source: https://cloud.google.com/free/docs/free-cloud-features#how-to-upgrade.
    """
    return Diagnosis(
        ErrorKind.MISSING,
        f"the billing account of project {project} is in its free trial, which has no GPUs",
        cause=cause,
        hint="upgrade it to a paid account, which keeps the credit, at "
        f"https://console.cloud.google.com/billing/linkedaccount?project={project}, then request a quota for GPUs",
        next_steps=[("gcloud", "billing", "projects", "describe", project)],
    )


def _project(case: Case) -> Diagnosis | None:
    if case.reasons & {"CONSUMER_INVALID", "RESOURCE_PROJECT_INVALID"} or (
        case.status in {400, 403, 404} and _NO_PROJECT.search(case.text)
    ):
        named = _NAMED_PROJECT.search(case.text)
        if named is None or named[1] == case.project or named[1].isdecimal():
            return wrong_project(case.project, case.text)
        return wrong_project(
            named[1], case.text, "check the project in --network, --subnet, --image, or --reservation"
        )
    return None


def _free_trial(case: Case) -> Diagnosis | None:
    return free_trial(case.project, case.text) if _TRIAL.search(case.text) else None


def _perimeter(case: Case) -> Diagnosis | None:
    """Diagnose a violation of VPC Service Controls.

    Source: https://cloud.google.com/vpc-service-controls/docs/troubleshooting.
    """
    if "SECURITY_POLICY_VIOLATED" not in case.reasons and not _PERIMETER.search(case.text):
        return None
    match = _VIOLATION.search(case.text)
    violation = case.metadata("uid") or (match[1] if match else "")
    entries = "protoPayload.metadata.vpcServiceControlsUniqueId" + (f'="{violation}"' if violation else ":*")
    return Diagnosis(
        ErrorKind.CREDENTIALS,
        f"{case.could_not}: VPC Service Controls protect project {case.project} from calls of this computer",
        cause=case.text,
        hint="run fleet on a computer in the service perimeter, or ask an administrator of the perimeter to admit "
        "this account and address; the audit log names the rule",
        next_steps=[("gcloud", "logging", "read", entries, "--project", case.project, "--freshness", "1d")],
    )


PROJECTS: tuple[Diagnose, ...] = (
    _perimeter,
    Rule(
        ErrorKind.MISSING,
        "Google has suspended project {c.project}",
        codes={"CONSUMER_SUSPENDED"},
        text=r"\bConsumer '[^']+' has been suspended|\bproject \S+ (?:is|has been) suspended",
        hint="its owners can appeal at https://console.cloud.google.com/home/dashboard?project={c.project}; "
        "until then, select another project: --project ID",
        next_steps=("gcloud projects list",),
    ),
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
    _free_trial,
    # Also reported as a disabled API: that of the project to which gcloud itself belongs.
    Rule(
        ErrorKind.CREDENTIALS,
        "{c.could_not}: these credentials do not name the project to which calls to {c.service} are charged",
        text=r"requires a quota project, which is not set",
        hint="set it, and enable the API in it",
        next_steps=(
            "gcloud auth application-default set-quota-project {c.project}",
            "gcloud services enable {c.service} --project {c.project}",
        ),
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
