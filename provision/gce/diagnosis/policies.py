"""Diagnoses of violated organization policies."""

from __future__ import annotations

import re
from typing import Any

from provision.gce.diagnosis.cases import Case, Diagnose, Rule, Scope
from provision.gce.diagnosis.resources import IMAGE
from provision.provider import ErrorKind

_ALLOW = (
    "administrators can lift it: "
    "gcloud resource-manager org-policies disable-enforce {c.constraint} --project {c.project}"
)
_EXCEPTION = "ask an administrator of the organization for an exception"
_POLICY = re.compile(r"\bpolic(?:y|ies)\b|\bconstraints?\b", re.IGNORECASE)


def _constraint(name: str, message: str, advice: str, **rest: Any) -> Rule:
    """Return the rule for a constraint of an organization policy.

    A managed constraint forbids the same as the legacy one: ``compute.managed.vmExternalIpAccess``.
    """
    message = f"{{c.could_not}}: the policy {{c.constraint}} {message}"
    return Rule(
        ErrorKind.USAGE, message, when=lambda c: c.constraint.replace(".managed.", ".") == name, hint=advice, **rest
    )


def _is_unnamed_policy(case: Case) -> bool:
    unmet = case.status == 412 or case.reasons & {"conditionNotMet", "CONDITION_NOT_MET"}
    return bool(unmet and _POLICY.search(case.text))


POLICIES: tuple[Diagnose, ...] = (
    _constraint(
        "compute.vmExternalIpAccess",
        "forbids external addresses in project {c.project}",
        "--iap reaches the instances through Identity-Aware Proxy, without external addresses",
        again={"--iap": True},
    ),
    _constraint("compute.requireOsLogin", "requires OS Login, which rejects the fleet's own SSH key", _ALLOW),
    _constraint(
        "compute.disableGuestAttributesAccess",
        "disables guest attributes, from which the SSH host keys of the instances are read",
        _ALLOW,
    ),
    _constraint(
        "compute.trustedImageProjects",
        "does not allow images of this project",
        f"select an allowed image: {IMAGE}",
    ),
    _constraint(
        "compute.requireShieldedVm",
        "requires an image that supports Shielded VM",
        f"select such an image: {IMAGE}",
    ),
    _constraint(
        "gcp.resourceLocations",
        "does not allow resources in this location",
        "select an allowed region: --zone REGION",
        scope=Scope.REGION,
    ),
    Rule(
        ErrorKind.USAGE,
        "{c.could_not}: the organization policy {c.constraint} forbids it in project {c.project}",
        when=lambda c: bool(c.constraint),
        hint=_EXCEPTION,
        next_steps=("gcloud org-policies describe {c.constraint} --project {c.project} --effective",),
    ),
    Rule(
        ErrorKind.USAGE,
        "{c.could_not}: a policy of the organization forbids it in project {c.project}",
        when=_is_unnamed_policy,
        hint=_EXCEPTION,
        next_steps=("gcloud org-policies list --project {c.project}",),
    ),
)
