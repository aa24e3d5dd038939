"""Organization policies of the project; creations of instances are checked against them."""

from __future__ import annotations

from typing import Any

from tests.emulator.blueprint import Blueprint, project_of
from tests.emulator.cloud import Call, Cloud
from tests.emulator.creation import on_create
from tests.emulator.failures import Refusal, condition_not_met, not_found
from tests.emulator.governance import PROJECT_NUMBER
from tests.emulator.registry import method

Json = dict[str, Any]
DOCUMENT = "orgpolicy.v2"
_PAGE = "https://cloud.google.com/resource-manager/docs/organization-policy/org-policy-constraints"
_HELP = f"See {_PAGE} for more information."
_LISTS = ("compute.vmExternalIpAccess", "compute.trustedImageProjects", "gcp.resourceLocations")


def permissions(cloud: Cloud, call: Call) -> tuple[tuple[str, str], ...]:
    """Return the permission that a call needs."""
    project = project_of(call.path.get("name") or f"{call.path['parent']}/")
    if project not in (cloud.project, PROJECT_NUMBER):
        raise not_found(f"projects/{project}")
    verb = call.method.id.rpartition(".")[2]
    permission = {"list": "policies.list", "get": "policy.get", "getEffectivePolicy": "policy.get"}.get(verb)
    return ((cloud.project, f"orgpolicy.{permission or 'policy.set'}"),)


@method("orgpolicy.projects.policies.getEffectivePolicy")
def get_effective_policy(cloud: Cloud, call: Call) -> Json:
    constraint = _constraint(call)
    default = [{"allowAll": True} if constraint in _LISTS else {"enforce": False}]
    return _policy(constraint, {"rules": cloud.governance.rules(constraint) or default})


@method("orgpolicy.projects.policies.get")
def get_policy(cloud: Cloud, call: Call) -> Json:
    return _policy(_constraint(call), cloud.governance.policies[_existing(cloud, call)])


@method("orgpolicy.projects.policies.list")
def list_policies(cloud: Cloud, call: Call) -> Json:
    return {"policies": [_policy(name, spec) for name, spec in cloud.governance.policies.items()]}


@method("orgpolicy.projects.policies.create", "orgpolicy.projects.policies.patch")
def write_policy(cloud: Cloud, call: Call) -> Json:
    constraint = call.body["name"].rpartition("/")[2]
    cloud.governance.policies[constraint] = call.body.get("spec", {})
    return _policy(constraint, cloud.governance.policies[constraint])


@method("orgpolicy.projects.policies.delete")
def delete_policy(cloud: Cloud, call: Call) -> Json:
    del cloud.governance.policies[_existing(cloud, call)]
    return {}


def _constraint(call: Call) -> str:
    return call.path["name"].rpartition("/")[2]


def _existing(cloud: Cloud, call: Call) -> str:
    constraint = _constraint(call)
    if constraint not in cloud.governance.policies:
        raise Refusal(404, "notFound", "Requested entity was not violations.", canonical="NOT_FOUND")
    return constraint


def _policy(constraint: str, spec: Json) -> Json:
    return {"name": f"projects/{PROJECT_NUMBER}/policies/{constraint}", "spec": spec}


@on_create
def check_policies(cloud: Cloud, blueprint: Blueprint) -> None:
    """Raise Refusal if a policy forbids an instance; one that several forbid is refused by the first of them."""
    for constraint, reason in _violations(cloud, blueprint):
        managed = constraint.replace("compute.", "compute.managed.")
        shown = managed if cloud.governance.rules(managed) else constraint
        raise condition_not_met(f"Constraint constraints/{shown} violated for project {cloud.project}. {reason}")
    zone = blueprint.zone
    places = (zone, blueprint.region, f"in:{blueprint.region}-locations", f"in:{zone.partition('-')[0]}-locations")
    if not cloud.governance.allows("gcp.resourceLocations", *places):
        raise condition_not_met(f"Location ZONE:{zone} violates constraint constraints/gcp.resourceLocations")


def _violations(cloud: Cloud, blueprint: Blueprint) -> list[tuple[str, str]]:
    governance, path = cloud.governance, blueprint.path
    metadata = {item["key"]: item.get("value", "") for item in blueprint.body["metadata"]["items"]}
    violations = []
    addresses = "compute.vmExternalIpAccess"
    if blueprint.external and (governance.is_enforced(addresses) or not governance.allows(addresses, path)):
        violations.append((addresses, f"Add instance {path} to the constraint to use external IP with it."))
    if governance.is_enforced("compute.requireOsLogin") and metadata.get("enable-oslogin", "").upper() != "TRUE":
        violations.append(("compute.requireOsLogin", "OS Login must be enabled."))
    attributes = "compute.managed.disableGuestAttributesAccess"  # the legacy constraint hides them only
    is_enforced = any(rule.get("enforce") for rule in governance.rules(attributes))
    if is_enforced and metadata.get("enable-guest-attributes", "").upper() == "TRUE":
        violations.append((attributes, "Guest attributes must not be enabled."))
    if governance.is_enforced("compute.requireShieldedVm"):
        config = blueprint.body.get("shieldedInstanceConfig", {})
        if not config.get("enableSecureBoot"):
            reason = f"Secure Boot is not enabled in the 'shielded_instance_config' field. {_HELP}"
            violations.append(("compute.requireShieldedVm", reason))
    for project in {project_of(disk.get("sourceImage", "")) for disk in blueprint.disks}:
        if not governance.allows("compute.trustedImageProjects", f"projects/{project}"):
            reason = f"Use of images from project {project} is prohibited."
            violations.append(("compute.trustedImageProjects", reason))
    return violations
