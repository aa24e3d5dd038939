"""Check what service accounts of instances may do with Compute Engine, by their scopes and roles in the project."""

from __future__ import annotations

from tests.emulator.cloud import Cloud
from tests.emulator.failures import Refusal, forbidden
from tests.emulator.identity import Identity
from tests.emulator.storage import Storage

_SCOPES = ("cloud-platform", "compute")


def check_service_account(cloud: Cloud, caller: Identity, permission: str) -> None:
    """Check that a service account has a permission.

    Raises:
        Refusal: neither its roles nor the scopes of its token allow it.
    """
    if not {f"https://www.googleapis.com/auth/{scope}" for scope in _SCOPES} & set(caller.scopes):
        raise Refusal(403, "insufficientPermissions", "Request had insufficient authentication scopes.")
    member, roles = f"serviceAccount:{caller.email}", cloud.governance.roles
    granted = {
        name
        for role, members in cloud.part(Storage).project.items()
        if member in members
        for name in roles.get(role, ())
    }
    if permission not in granted:
        raise forbidden(permission, f"projects/{cloud.project}")
