"""Diagnoses of resources that do not exist."""

from __future__ import annotations

from provision.gce.diagnosis.cases import Case, Diagnose, Diagnosis, Rule, Scope
from provision.provider import ErrorKind

IMAGE = "--image projects/PROJECT/global/images/family/FAMILY"
_NETWORK = ("project {c.project} has no network {c.missing[1]}", "select an existing network: --network NAME")


def _resource(part: str, message: str, advice: str, listing: str, scope: Scope = Scope.ZONE) -> Rule:
    """Return the rule for a missing resource whose type contains `part`; `listing` is its collection in gcloud."""
    return Rule(
        ErrorKind.USAGE,
        message,
        when=lambda c: c.is_missing and part in c.missing[0],
        scope=scope,
        hint=advice,
        next_steps=(f"gcloud compute {listing} list --project {{c.project}}",),
    )


def _default_network(case: Case) -> Diagnosis | None:
    """Diagnose that the project has no network of the name that is used by default; new projects may have none."""
    subject, name = case.missing
    if not case.is_missing or name != "default" or not ("networks/" in subject or "].network" in subject):
        return None
    return Diagnosis(
        ErrorKind.USAGE,
        f"project {case.project} has no network default",
        cause=case.text,
        hint="create it, or select an existing network: --network NAME",
        next_steps=[
            ("gcloud", "compute", "networks", "create", "default", "--subnet-mode=auto", "--project", case.project),
            ("gcloud", "compute", "networks", "list", "--project", case.project),
        ],
    )


RESOURCES: tuple[Diagnose, ...] = (
    _resource(
        "ubnetwork",
        "{c.here} has no subnetwork {c.missing[1]}",
        "select an existing subnetwork: --subnet NAME",
        "networks subnets",
        Scope.REGION,
    ),
    _default_network,
    _resource("networks/", *_NETWORK, "networks", Scope.EVERYTHING),
    _resource("].network", *_NETWORK, "networks", Scope.EVERYTHING),
    _resource(
        "machineType",
        "{c.here} has no machine type {c.missing[1]}",
        "select another --zone or --machine-type",
        "machine-types",
    ),
    _resource(
        "cceleratorType",
        "{c.here} has no GPUs of type {c.missing[1]}",
        "select another --zone or --gpu",
        "accelerator-types",
    ),
    _resource(
        "diskType",
        "{c.here} has no disks of type {c.missing[1]}",
        'select another disk-type in fleet.toml, e.g. disk-type = "pd-balanced"',
        "disk-types",
    ),
    _resource(
        "mage",
        "boot image {c.missing[1]} does not exist, or these credentials cannot access it",
        f"select an existing image: {IMAGE}",
        "images",
        Scope.EVERYTHING,
    ),
)

RESERVATIONS: tuple[Diagnose, ...] = (
    Rule(
        ErrorKind.USAGE,
        "{c.could_not}: the reservation does not exist, or instances cannot select it by name",
        codes={"RESERVATION_NOT_FOUND"},
        text=r"\breservations?\b.*\b(?:not found|does not exist|not exist|can ?not be targeted)",
        hint="a reservation is in one zone and one project, and is selected by name only if it requires this",
        next_steps=("gcloud compute reservations list --project {c.project}",),
    ),
)
