"""Check the permissions that the calls for a fleet need."""

from __future__ import annotations

import re

from provision.gce.account import Account
from provision.gce.catalog.machines import COMPACT
from provision.gce.catalog.networks import network_of
from provision.gce.catalog.reservations import split_path
from provision.gce.checks.check import Check
from provision.gce.diagnosis.roles import grant_role
from provision.gce.options import GceOptions
from provision.gce.rest.governance import permitted
from provision.provider import ErrorKind, ProviderError

_ALWAYS = (
    "compute.acceleratorTypes.list",
    "compute.addresses.list",
    "compute.disks.create",
    "compute.disks.delete",
    "compute.disks.list",
    "compute.firewalls.list",
    "compute.globalOperations.list",
    "compute.images.list",
    "compute.instances.create",
    "compute.instances.delete",
    "compute.instances.getGuestAttributes",
    "compute.instances.getSerialPortOutput",
    "compute.instances.list",
    "compute.instances.setLabels",
    "compute.instances.setMetadata",
    "compute.instances.setScheduling",
    "compute.instances.setTags",
    "compute.instances.start",
    "compute.instances.stop",
    "compute.machineTypes.list",
    "compute.projects.get",
    "compute.regionOperations.get",
    "compute.regions.list",
    "compute.zoneOperations.get",
)
_NETWORK = ("compute.networks.get", "compute.subnetworks.use")
_FIREWALL = (
    "compute.firewalls.create",
    "compute.firewalls.delete",
    "compute.firewalls.update",
    "compute.globalOperations.get",
    "compute.networks.updatePolicy",
)
_ROLE = "roles/compute.admin"
_IMAGE = re.compile(r"projects/([^/]+)/global/images/(family/)?")


def permissions(cloud: GceOptions, project: str) -> tuple[str, ...]:
    """Return the permissions in `project` that the calls for fleets like `cloud` need, sorted.

    Permissions in other projects (of a Shared VPC, of a public image) are left out: this project cannot confirm them.

    Source: https://cloud.google.com/compute/docs/reference/rest/v1, IAM permissions of each method.
    """
    network, image = network_of(cloud.network).project, _IMAGE.search(cloud.image)
    names = {*_ALWAYS}
    if network in ("", project):
        names |= {*_NETWORK, *(_FIREWALL if cloud.firewall else ())}
        names |= {"compute.subnetworks.useExternalIp"} if cloud.external else set()
    if image is not None and image[1] == project:
        names |= {"compute.images.useReadOnly", f"compute.images.{'getFromFamily' if image[2] else 'get'}"}
    if cloud.placement == COMPACT:
        names |= {f"compute.resourcePolicies.{verb}" for verb in ("create", "delete", "list", "use")}
    if cloud.scopes:
        # iam.serviceAccounts.actAs is also needed, but it is often granted on the account and not in the project.
        names.add("compute.instances.setServiceAccount")
    if cloud.reservation and split_path(cloud.reservation)[0] in ("", project):
        names.add("compute.reservations.list")
    return tuple(sorted(names))


def _permissions(account: Account, cloud: GceOptions) -> str:
    needed = permissions(cloud, account.api.project)
    missing = sorted(set(needed) - permitted(account.api, needed))
    if missing:
        grant = grant_role("projects", [account.api.project], _ROLE, account.api.member())
        raise ProviderError(ErrorKind.CREDENTIALS, f"missing: {', '.join(missing)}", next_steps=[grant])
    return f"all {len(needed)} required permissions"


PERMISSIONS = Check("permissions", _permissions, is_optional=True)
