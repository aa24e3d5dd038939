"""Predefined roles, and the command that grants one.

Source: https://cloud.google.com/compute/docs/access/iam.
"""

from __future__ import annotations

import shlex

_ROLES = (
    ("iam.serviceAccounts.", "roles/iam.serviceAccountUser"),
    ("serviceusage.", "roles/serviceusage.serviceUsageConsumer"),
    ("iap.", "roles/iap.tunnelResourceAccessor"),
    ("resourcemanager.", "roles/browser"),
    ("compute.firewalls.", "roles/compute.securityAdmin"),
    ("compute.networks.updatePolicy", "roles/compute.securityAdmin"),
    *(
        (f"compute.{noun}.{verb}", "roles/compute.networkAdmin")
        for noun in ("networks", "subnetworks")
        for verb in ("create", "delete", "update", "patch", "expandIpCidrRange")
    ),
    ("compute.networks.", "roles/compute.networkUser"),
    ("compute.subnetworks.", "roles/compute.networkUser"),
    ("compute.images.", "roles/compute.imageUser"),
    ("compute.instances.", "roles/compute.instanceAdmin.v1"),
    ("compute.disks.", "roles/compute.instanceAdmin.v1"),
    ("compute.projects.get", "roles/compute.viewer"),
    ("compute.regions.", "roles/compute.viewer"),
    ("compute.zones.", "roles/compute.viewer"),
)


def grant_role(project: str, role: str) -> str:
    """Return the command line that gives the user a role; the shell inserts the account that gcloud uses."""
    words = shlex.join(["gcloud", "projects", "add-iam-policy-binding", project, "--role", role])
    return f'{words} --member="user:$(gcloud config get account)"'


def role_for(permission: str) -> str:
    """Return the narrowest predefined role with `permission` that a user of this program is likely to get."""
    lower = permission.lower()
    return next((role for prefix, role in _ROLES if lower.startswith(prefix.lower())), "roles/compute.admin")
