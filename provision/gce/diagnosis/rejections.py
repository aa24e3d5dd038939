"""Diagnoses of requests that Compute Engine rejects."""

from __future__ import annotations

import re

from provision.gce.diagnosis.cases import Case, Diagnose, Diagnosis, Rule
from provision.gce.diagnosis.transient import RATE
from provision.provider import ErrorKind

_REJECTED = "{c.could_not}: Compute Engine rejected the request"
_INVALID = frozenset(
    {"invalid", "badRequest", "required", "INVALID_ARGUMENT", "INVALID_USAGE", "INVALID_FIELD_VALUE"}
)
_INCOMPATIBLE = re.compile(
    r"not compatible|incompatible|not supported|not available for|cannot be used with", re.IGNORECASE
)
_DISK_SIZE = re.compile(r"disk size.*cannot be smaller than the image size \((\d+)\s*GB\)", re.IGNORECASE)


def _disk_too_small(case: Case) -> Diagnosis | None:
    size = _DISK_SIZE.search(case.text)
    message = _REJECTED.format(c=case)
    return Diagnosis(ErrorKind.USAGE, message, cause=case.text, again={"--disk-size": size[1]}) if size else None


INCOMPATIBLE: tuple[Diagnose, ...] = (
    # The code UNSUPPORTED_OPERATION also means that instances were preempted during their creation.
    Rule(
        ErrorKind.USAGE,
        _REJECTED,
        when=lambda c: bool(c.reasons & {*_INVALID, "UNSUPPORTED_OPERATION"} and _INCOMPATIBLE.search(c.text)),
        hint="select another --machine-type or --gpu, or another disk-type in fleet.toml",
        next_steps=("gcloud compute machine-types list --project {c.project}",),
    ),
)

REJECTIONS: tuple[Diagnose, ...] = (
    Rule(
        ErrorKind.MISSING,
        "{c.could_not}: the resource does not exist",
        codes={"notFound", "NOT_FOUND"},
        statuses=(404,),
        next_steps=("fleet status",),
    ),
    _disk_too_small,
    Rule(
        ErrorKind.USAGE,
        _REJECTED,
        text="custom (subnet ?)?mode.*subnetwork|subnetwork.*(custom (subnet ?)?mode|must be (specified|provided))",
        hint="this network requires a subnetwork: --subnet NAME",
    ),
    Rule(ErrorKind.USAGE, _REJECTED, codes=_INVALID, hint="change the request as the cause describes"),
    RATE,
    Rule(
        ErrorKind.USAGE,
        "{c.could_not}: a resource of this name already exists",
        codes={"alreadyExists", "RESOURCE_ALREADY_EXISTS", "ALREADY_EXISTS"},
        statuses=(409,),
        hint="fleet up adopts the resources of the fleet, fleet down deletes them",
        next_steps=("fleet up", "fleet down"),
    ),
)
