"""Predefined roles of Google Cloud, and the commands that grant them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

UNKNOWN_MEMBER = '"user:$(gcloud config get account)"'
"""The account that gcloud uses, for credentials whose account cannot be determined; the shell inserts it."""

_CHANGES = ("create", "delete", "update", "patch", "expandIpCidrRange", "setLabels", "deprecate")
# fmt: off
_ROLES = {
    "iam.serviceAccountUser": ["iam.serviceAccounts."],
    "serviceusage.serviceUsageConsumer": ["serviceusage."],
    "iap.tunnelResourceAccessor": ["iap."],
    "browser": ["resourcemanager."],
    "cloudkms.cryptoKeyEncrypterDecrypter": ["cloudkms."],
    "billing.viewer": ["billing."],
    "orgpolicy.policyViewer": ["orgpolicy."],
    "compute.securityAdmin": ["compute.firewalls.", "compute.networks.updatePolicy"],
    "compute.networkAdmin": [f"compute.{noun}.{verb}" for noun in ("networks", "subnetworks") for verb in _CHANGES],
    "compute.networkViewer": ["compute.networks.getEffectiveFirewalls", "compute.routers."],
    "compute.networkUser": ["compute.networks.", "compute.subnetworks."],
    "compute.storageAdmin": [f"compute.images.{verb}" for verb in _CHANGES],
    "compute.imageUser": ["compute.images."],
    "compute.osLogin": ["compute.instances.osLogin"],
    "compute.osAdminLogin": ["compute.instances.osAdminLogin"],
    "compute.instanceAdmin.v1": ["compute.instances.", "compute.disks."],
    "compute.viewer": ["compute.projects.get", "compute.regions.", "compute.zones."],
}
"""Predefined roles by beginnings of permissions; the first match decides.

Source: https://cloud.google.com/compute/docs/access/iam.
"""
# fmt: on


def grant_role(group: str, resource: Sequence[str], role: str, member: str) -> str:
    """Return the command line that gives a member a role.

    Args:
        group: Commands of gcloud for the type of the resource, ``projects``, ``iam service-accounts``.
        resource: Operands and options that select the resource.
        role: ``roles/compute.admin``.
        member: Member of the policy, quoted for a shell: ``user:me@example.com``.
    """
    words = shlex.join(["gcloud", *group.split(), "add-iam-policy-binding", *resource, "--role", role])
    return f"{words} --member={member}"


def role_for(permission: str) -> str:
    """Return the narrowest predefined role with `permission` that a user of this program is likely to get."""
    pairs = ((prefix, role) for role, prefixes in _ROLES.items() for prefix in prefixes)
    match = (role for prefix, role in pairs if permission.lower().startswith(prefix.lower()))
    return f"roles/{next(match, 'compute.admin')}"
