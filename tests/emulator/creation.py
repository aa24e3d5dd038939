"""Checks of requests to create instances that depend on the project: networks, policies, accounts, reservations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.emulator.blueprint import Blueprint, last, project_of
from tests.emulator.cloud import Cloud
from tests.emulator.governance import DEFAULT_ACCOUNT
from tests.emulator.messages import Refusal, bad_request, invalid, not_found, refusal

Json = dict[str, Any]
ACT_AS = "iam.serviceAccounts.actAs"
_PAGE = "https://cloud.google.com/resource-manager/docs/organization-policy/org-policy-constraints"


def check(cloud: Cloud, blueprint: Blueprint) -> None:
    """Raise Refusal if the project does not allow an instance."""
    _check_interfaces(cloud, blueprint)
    _check_placement(cloud, blueprint)
    _check_reservation(cloud, blueprint)
    _check_policies(cloud, blueprint)
    _check_accounts(cloud, blueprint)


def _check_interfaces(cloud: Cloud, blueprint: Blueprint) -> None:
    """Raise Refusal unless all networks and subnetworks of an instance exist and belong together."""
    at = "resource.networkInterfaces[0]"
    for interface in blueprint.body["networkInterfaces"]:
        network = cloud.network(interface["network"]) if interface.get("network") else ""
        subnetwork = interface.get("subnetwork", "")
        if not subnetwork:
            if project_of(network) not in ("", cloud.project):
                raise invalid(f"{at}.subnetwork", "", "A shared network needs a subnetwork.")
            if network and last(network) != "default":
                why = "Subnetwork should be specified for custom subnetmode network"
                raise invalid(at, f"{{ 'network': '{network}' }}", why)
            continue
        project, name = project_of(subnetwork) or cloud.project, last(subnetwork)
        path = f"projects/{project}/regions/{blueprint.region}/subnetworks/{name}"
        if name not in cloud.networks_of(project):
            raise not_found(path)
        for verb in ("use", *(("useExternalIp",) if interface.get("accessConfigs") else ())):
            if f"{project}:compute.subnetworks.{verb}" in cloud.denied:
                raise refusal("403-forbidden", permission=f"compute.subnetworks.{verb}", path=path)
        if network and project_of(network) != project:
            raise invalid(f"{at}.subnetwork", subnetwork, "It is not of the network.")


def _check_placement(cloud: Cloud, blueprint: Blueprint) -> None:
    """Raise Refusal if a placement policy does not exist, or does not support the instance."""
    for reference in blueprint.body.get("resourcePolicies", ()):
        name = last(reference)
        if (blueprint.region, name) not in cloud.policies:
            raise not_found(f"projects/{cloud.project}/regions/{blueprint.region}/resourcePolicies/{name}")
        if not blueprint.machine_type.compact:
            raise bad_request(f"Machine type {blueprint.machine_type.name} does not support compact placement.")
        if blueprint.scheduling["onHostMaintenance"] != "TERMINATE":
            raise bad_request("Instances with a compact placement policy do not support live migration.")


def _check_reservation(cloud: Cloud, blueprint: Blueprint) -> None:
    """Raise Refusal if the instance selects a reservation that does not exist, or that is not for such instances."""
    name, machine_type = blueprint.reservation, blueprint.machine_type
    if not name:
        return
    at, given = "resource.reservationAffinity", str(blueprint.body["reservationAffinity"])
    path = f"projects/{cloud.project}/reservations/{name}"
    reservation = cloud.reservations.get((blueprint.zone, name))
    if reservation is None:
        raise invalid(at, given, f"Specified reservations [{path}] do not exist.")
    if not reservation.get("specificReservationRequired"):
        why = f"Specified reservations [{path}] can not be targeted as specificReservationRequired is not set"
        raise invalid(at, given, why)
    properties = reservation["specificReservation"]["instanceProperties"]
    accelerators = properties.get("guestAccelerators", ())
    gpus = [(last(each["acceleratorType"]), each["acceleratorCount"]) for each in accelerators]
    attached = [] if machine_type.gpu else [(blueprint.gpu, blueprint.gpus)] * bool(blueprint.gpus)
    is_same_machine = properties["machineType"] == machine_type.name
    has_same_disks = len(properties.get("localSsds", ())) == blueprint.local_ssds - machine_type.local_ssds
    if not (is_same_machine and has_same_disks and (gpus == attached or machine_type.gpu)):
        raise invalid(at, given, f"The instance does not match the properties of the reservations [{path}].")


def _check_policies(cloud: Cloud, blueprint: Blueprint) -> None:
    """Raise Refusal if an organization policy forbids an instance: the first of several."""
    governance = cloud.governance
    for constraint, reason in _violations(cloud, blueprint):
        managed = constraint.replace("compute.", "compute.managed.")
        shown = managed if governance.rules(managed) else constraint
        message = f"Constraint constraints/{shown} violated for project {cloud.project}. {reason}"
        raise refusal("condition", message=message)


def _violations(cloud: Cloud, blueprint: Blueprint) -> Iterator[tuple[str, str]]:
    """Yield the violated constraints, each with what is wrong."""
    governance, path = cloud.governance, blueprint.path
    metadata = {item["key"]: item.get("value", "").upper() for item in blueprint.body["metadata"]["items"]}
    addresses = "compute.vmExternalIpAccess"
    allowed = [rule.get("values", {}).get("allowedValues") for rule in governance.rules(addresses)]
    is_denied = any(rule.get("denyAll") for rule in governance.rules(addresses)) or any(allowed)
    if blueprint.external and (governance.is_enforced(addresses) or is_denied):
        yield addresses, f"Add instance {path} to the constraint to use external IP with it."
    if governance.is_enforced("compute.requireOsLogin") and metadata.get("enable-oslogin") != "TRUE":
        yield "compute.requireOsLogin", "OS Login must be enabled."
    attributes = "compute.managed.disableGuestAttributesAccess"  # the legacy constraint hides them only
    is_enforced = any(rule.get("enforce") for rule in governance.rules(attributes))
    if is_enforced and metadata.get("enable-guest-attributes") == "TRUE":
        yield attributes, "Guest attributes must not be enabled."
    is_shielded = blueprint.body.get("shieldedInstanceConfig", {}).get("enableSecureBoot")
    if governance.is_enforced("compute.requireShieldedVm") and not is_shielded:
        text = "Secure Boot is not enabled in the 'shielded_instance_config' field."
        yield "compute.requireShieldedVm", f"{text} See {_PAGE} for more information."


def _check_accounts(cloud: Cloud, blueprint: Blueprint) -> None:
    """Raise Refusal unless the service account of an instance exists, and the caller may use it."""
    for given in blueprint.body.get("serviceAccounts", ()):
        email = given["email"] if "@" in given.get("email", "") else DEFAULT_ACCOUNT
        if not cloud.governance.service_accounts.get(email):
            raise bad_request(f'Service account "{email}" does not exist.')
        if ACT_AS in cloud.denied:
            message = (
                f"The user does not have access to service account '{email}'.  User: 'me@example.com'.  Ask a "
                "project owner to grant you the iam.serviceAccountUser role on the service account"
            )
            raise Refusal(400, "SERVICE_ACCOUNT_ACCESS_DENIED", message)
