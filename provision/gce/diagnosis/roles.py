"""Predefined roles, and the commands that grant them.

Source: https://cloud.google.com/compute/docs/access/iam.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

UNKNOWN_MEMBER = '"user:$(gcloud config get account)"'
"""The account that gcloud uses, for credentials whose account cannot be determined; the shell inserts it."""

_ROLES = (
    ("iam.serviceAccounts.", "roles/iam.serviceAccountUser"),
    ("serviceusage.", "roles/serviceusage.serviceUsageConsumer"),
    ("iap.", "roles/iap.tunnelResourceAccessor"),
    ("resourcemanager.", "roles/browser"),
    ("cloudkms.", "roles/cloudkms.cryptoKeyEncrypterDecrypter"),
    ("billing.", "roles/billing.viewer"),
    ("orgpolicy.", "roles/orgpolicy.policyViewer"),
    ("compute.firewalls.", "roles/compute.securityAdmin"),
    ("compute.networks.updatePolicy", "roles/compute.securityAdmin"),
    *(
        (f"compute.{noun}.{verb}", "roles/compute.networkAdmin")
        for noun in ("networks", "subnetworks")
        for verb in ("create", "delete", "update", "patch", "expandIpCidrRange")
    ),
    ("compute.networks.getEffectiveFirewalls", "roles/compute.networkViewer"),
    ("compute.routers.", "roles/compute.networkViewer"),
    ("compute.networks.", "roles/compute.networkUser"),
    ("compute.subnetworks.", "roles/compute.networkUser"),
    *(
        (f"compute.images.{verb}", "roles/compute.storageAdmin")
        for verb in ("create", "delete", "setLabels", "update", "deprecate")
    ),
    ("compute.images.", "roles/compute.imageUser"),
    ("compute.instances.osLogin", "roles/compute.osLogin"),
    ("compute.instances.osAdminLogin", "roles/compute.osAdminLogin"),
    ("compute.instances.", "roles/compute.instanceAdmin.v1"),
    ("compute.disks.", "roles/compute.instanceAdmin.v1"),
    ("compute.projects.get", "roles/compute.viewer"),
    ("compute.regions.", "roles/compute.viewer"),
    ("compute.zones.", "roles/compute.viewer"),
)


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
    lower = permission.lower()
    return next((role for prefix, role in _ROLES if lower.startswith(prefix.lower())), "roles/compute.admin")
