"""Diagnoses of violated organization policies."""

from __future__ import annotations

import re
from typing import Any

from provision.gce.diagnosis.cases import Case, Diagnose, Rule, Scope
from provision.gce.diagnosis.resources import IMAGE
from provision.provider import ErrorKind

_LIFT = "gcloud org-policies reset {c.constraint} --project {c.project}"
_ALLOW = "an administrator of the organization can lift it for the project"
_DESCRIBE = "gcloud org-policies describe {c.constraint} --project {c.project} --effective"
_EXCEPTION = "ask an administrator of the organization for an exception"
_POLICY = re.compile(r"\bpolic(?:y|ies)\b|\bconstraints?\b", re.IGNORECASE)
_DENIED = re.compile(r"denied by (?:custom )?org(?:anization)? polic", re.IGNORECASE)


def _constraint(name: str, message: str, advice: str, about: str = "", **rest: Any) -> Rule:
    """Return the rule for a constraint of an organization policy.

    A managed constraint forbids the same as the legacy one: ``compute.managed.vmExternalIpAccess``.

    Args:
        name: The constraint, without the mark of managed ones.
        message: What the policy requires or forbids.
        advice: Hint of the diagnosis.
        about: Part of the failure's message, without which the rule does not apply.
        rest: Other attributes of the rule.
    """
    message = f"{{c.could_not}}: the policy {{c.constraint}} {message}"
    return Rule(
        ErrorKind.USAGE,
        message,
        when=lambda c: c.constraint.replace(".managed.", ".") == name and about in c.text,
        hint=advice,
        **rest,
    )


def _is_unnamed_policy(case: Case) -> bool:
    unmet = case.status == 412 or case.reasons & {"conditionNotMet", "CONDITION_NOT_MET"}
    return bool((unmet and _POLICY.search(case.text)) or _DENIED.search(case.text))


POLICIES: tuple[Diagnose, ...] = (
    _constraint(
        "compute.vmExternalIpAccess",
        "forbids external addresses in project {c.project}",
        "--iap reaches the instances through Identity-Aware Proxy, without external addresses",
        again={"--iap": True},
    ),
    _constraint(
        "compute.requireOsLogin",
        "requires OS Login",
        "--os-login imports the fleet's SSH key into your OS Login profile",
        again={"--os-login": True},
    ),
    _constraint(
        "compute.disableGuestAttributesAccess",
        "disables guest attributes, from which the SSH host keys of the instances are read",
        _ALLOW,
        next_steps=(_LIFT,),
    ),
    _constraint(
        "compute.trustedImageProjects",
        "does not allow images of this project",
        f"select an allowed image: {IMAGE}",
        next_steps=(_DESCRIBE,),
    ),
    # With Secure Boot, the kernel rejects the unsigned modules of NVIDIA's driver on the images.
    _constraint(
        "compute.requireShieldedVm",
        "requires Secure Boot, which is off because the NVIDIA driver of the images does not load with it",
        _ALLOW,
        about="Secure Boot",
        next_steps=(_LIFT,),
    ),
    _constraint(
        "compute.requireShieldedVm",
        "requires an image that supports Shielded VM",
        f"select such an image: {IMAGE}",
        next_steps=(
            "gcloud compute images list --project {c.project} --filter guestOsFeatures.type:UEFI_COMPATIBLE",
        ),
    ),
    _constraint(
        "gcp.resourceLocations",
        "does not allow resources in this location",
        "select an allowed region: --zone REGION",
        scope=Scope.REGION,
        next_steps=(_DESCRIBE,),
    ),
    Rule(
        ErrorKind.USAGE,
        "{c.could_not}: the organization policy {c.constraint} forbids it in project {c.project}",
        when=lambda c: bool(c.constraint),
        hint=_EXCEPTION,
        next_steps=(_DESCRIBE,),
    ),
    Rule(
        ErrorKind.USAGE,
        "{c.could_not}: a policy of the organization forbids it in project {c.project}",
        when=_is_unnamed_policy,
        hint=_EXCEPTION,
        next_steps=("gcloud org-policies list --project {c.project}",),
    ),
)
