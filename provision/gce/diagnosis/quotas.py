"""Diagnoses of exhausted quotas, and how to request larger ones."""

from __future__ import annotations

import re
import shlex
from urllib.parse import quote

from provision.gce.diagnosis.cases import Case, Diagnose, Diagnosis, Scope
from provision.provider import ErrorKind

_QUOTA = re.compile(r"Quota '([A-Z0-9_a-z-]+)' exceeded\.?(?:\s+Limit:\s*([0-9]+(?:\.[0-9]+)?))?")
_GLOBAL_QUOTAS = frozenset({"GPUS_ALL_REGIONS", "GPUS-ALL-REGIONS-per-project", "CPUS_ALL_REGIONS"})
_ADVICE = {
    "GPUS_ALL_REGIONS": "; the answer takes minutes to days, and an account in its free trial must be upgraded first",
    "SSD_TOTAL_GB": ", or use --disk-type pd-standard if the machine type supports it, or a smaller --disk-size",
}
_OVER_QUOTA = re.compile(r"exceed\w* (?:the )?quota limit", re.IGNORECASE)


def quota_page(project: str) -> str:
    """Return the URL of the page on which a larger quota is requested."""
    return f"https://console.cloud.google.com/iam-admin/quotas?project={quote(project)}"


def quota_hint(metric: str, project: str, region: str = "") -> str:
    """Return a hint how to request a larger quota, or how to use another one."""
    where = f" in {region}" if region else ""
    return f"request more {metric}{where} at {quota_page(project)}{_ADVICE.get(metric, '')}"


def quota_request(metric: str, project: str, region: str, limit: float) -> str:
    """Return the command line that requests a quota; the account of gcloud is asked if Google has a question.

    Args:
        metric: ``NVIDIA_T4_GPUS``.
        project: The project.
        region: Region of the quota; empty: it counts all regions together.
        limit: The limit to request.

    Source: https://cloud.google.com/docs/quotas/gcloud-cli-examples.
    """
    quota = metric.replace("_", "-") + ("-per-project-region" if region else "-per-project")
    words = ["gcloud", "beta", "quotas", "preferences", "create", "--service", "compute.googleapis.com"]
    words += ["--project", project, "--quota-id", quota, "--preferred-value", f"{limit:g}"]
    words += ["--dimensions", f"region={region}"] if region else []
    return f'{shlex.join(words)} --email="$(gcloud config get account)"'


def _quota(case: Case) -> Diagnosis | None:
    exhausted = "RESOURCE_EXHAUSTED" in case.reasons and _OVER_QUOTA.search(case.text)
    if not case.reasons & {"QUOTA_EXCEEDED", "quotaExceeded"} and (not exhausted or "per minute" in case.text):
        return None
    named = _QUOTA.search(case.text)
    metric = (named[1] if named else "") or case.quota("limitName") or case.quota("metricName").rpartition("/")[2]
    limit = (named[2] if named and named[2] else "") or case.quota("limit")
    allows = f" allows {_plain_number(limit)}" if limit else " is used up"
    everywhere = metric.replace("-per-project", "").upper().replace("-", "_") in _GLOBAL_QUOTAS or (
        "globally" in case.text
    )
    where = " in all regions together" if everywhere else f" in {case.region}" if case.location else ""
    return Diagnosis(
        ErrorKind.QUOTA,
        f"{case.could_not}: the quota {metric or '(unnamed)'} of project {case.project}{allows}{where}",
        scope=Scope.EVERYTHING if everywhere else Scope.REGION,
        cause=case.text,
        hint=quota_hint(metric or "of it", case.project, "" if everywhere else case.region)
        + ("" if everywhere else ", or select another region: --zone REGION"),
        metric=metric,
        limit=float(named[2]) if named and named[2] else 0.0,
    )


def _is_global_quota(case: Case) -> Diagnosis | None:
    """Diagnose a quota for all regions; it decides before a quota of one region."""
    diagnosis = _quota(case)
    return diagnosis if diagnosis is not None and diagnosis.scope is Scope.EVERYTHING else None


def _plain_number(text: str) -> str:
    try:
        return f"{float(text):g}"
    except ValueError:
        return text


QUOTAS: tuple[Diagnose, ...] = (
    _is_global_quota,
    _quota,
)
