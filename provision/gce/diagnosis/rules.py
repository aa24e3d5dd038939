"""The table of rules: the most decisive one first.

The first rule that matches any failure of a call decides, because Compute Engine often puts the least specific
failure first (VM_MIN_COUNT_NOT_REACHED).

Source of the forms of errors: https://cloud.google.com/compute/docs/troubleshooting/troubleshooting-vm-creation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from provision.gce.diagnosis.capacity import STOCKOUTS, TOO_FEW, ZONES
from provision.gce.diagnosis.cases import Case, Diagnose, Diagnosis
from provision.gce.diagnosis.credentials import CREDENTIALS
from provision.gce.diagnosis.failures import Failure
from provision.gce.diagnosis.permissions import ACCOUNTS, permission_denied
from provision.gce.diagnosis.policies import POLICIES
from provision.gce.diagnosis.projects import PROJECTS
from provision.gce.diagnosis.quotas import QUOTAS
from provision.gce.diagnosis.rejections import INCOMPATIBLE, REJECTIONS
from provision.gce.diagnosis.resources import RESERVATIONS, RESOURCES
from provision.gce.diagnosis.roles import UNKNOWN_MEMBER
from provision.gce.diagnosis.transient import TRANSIENT
from provision.provider import ErrorKind


def diagnose(
    failures: Sequence[Failure],
    *,
    project: str,
    location: str,
    doing: str,
    member: Callable[[], str] = lambda: UNKNOWN_MEMBER,
) -> Diagnosis:
    """Return the diagnosis of all failures of one call; the most specific failure decides.

    Args:
        failures: Failures that the answer reports.
        project: Project of the call.
        location: Zone or region of the call; empty: it has none.
        doing: Purpose of the call, ``create 2 instances``.
        member: Function that returns the caller as a member of a policy, quoted for a shell.
    """
    cases = [Case(failure, project, location, doing, member) for failure in failures or (Failure(),)]
    zones = tuple(dict.fromkeys(zone for case in cases for zone in case.zones_available))
    diagnoses = (rule(case) for rule in _RULES for case in cases)
    return replace(next(filter(None, diagnoses), _unknown(cases[0])), zones=zones)


def _unknown(case: Case) -> Diagnosis:
    """Return the diagnosis of a failure that no rule matches, with its own message."""
    label = case.code or case.status_note.strip(" ()") or "unknown error"
    return Diagnosis(
        ErrorKind.MISSING,
        f"{case.could_not}: Compute Engine rejected the request ({label})",
        cause=case.text or "no reason given",
        next_steps=[("gcloud", "compute", "operations", "list", "--project", case.project)],
    )


_RULES: tuple[Diagnose, ...] = (
    *CREDENTIALS,
    *PROJECTS,
    *POLICIES,
    *ACCOUNTS,
    *QUOTAS,
    *STOCKOUTS,
    *RESERVATIONS,
    *RESOURCES,
    permission_denied,
    *INCOMPATIBLE,
    *ZONES,
    *REJECTIONS,
    *TRANSIENT,
    # A failure with an unknown code explains more than that there are too few instances.
    lambda case: _unknown(case) if case.code not in TOO_FEW.codes else None,
    TOO_FEW,
)
