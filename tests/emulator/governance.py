"""Rules that decide whether a call is allowed: billing, enabled APIs, organization policies, accounts, roles, tokens.

Access tokens of service accounts of instances state whose they are and what they are for.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.emulator.messages import refusal

Json = dict[str, Any]
COMPUTE = "compute.googleapis.com"
PROJECT_NUMBER = "100000000001"
DEFAULT_ACCOUNT = f"{PROJECT_NUMBER}-compute@developer.gserviceaccount.com"
EMAIL = "me@example.com"
"""The user of this computer. A token ``emulated:ADDRESS`` belongs to another account."""
ANONYMOUS = "anonymous"
"""In place of the token of a request that must have one, and has none."""
SCOPES = "https://www.googleapis.com/auth/"
_PREFIX = "ya29."
_OBJECTS = [f"storage.objects.{verb}" for verb in ("create", "delete", "get", "list", "update")]
ROLES: dict[str, list[str]] = {
    "roles/storage.objectUser": _OBJECTS,
    "roles/storage.objectViewer": ["storage.objects.get", "storage.objects.list"],
    "roles/storage.legacyBucketReader": ["storage.buckets.get", "storage.objects.list"],
    "roles/storage.admin": [*_OBJECTS, "storage.buckets.get", "storage.buckets.getIamPolicy"],
}
"""Some permissions of predefined roles."""


@dataclass(frozen=True)
class Identity:
    """A service account that calls a method.

    Attributes:
        email: E-mail address of the service account.
        scopes: What its token may be used for.
    """

    email: str
    scopes: tuple[str, ...]

    def may(self, *scopes: str) -> bool:
        """Return whether its token has one of these scopes."""
        return not {f"{SCOPES}{scope}" for scope in scopes}.isdisjoint(self.scopes)


def identity_of(token: str) -> Identity | None:
    """Return the service account of an access token; None: the token is one of a user of this computer."""
    try:
        email, scopes = json.loads(base64.urlsafe_b64decode(token.removeprefix(_PREFIX)))
    except (binascii.Error, ValueError):
        return None
    return Identity(email, tuple(scopes)) if token.startswith(_PREFIX) else None


def account_of(token: str) -> str:
    """Return the user that an access token was granted to."""
    return token.removeprefix("emulated:") if token.startswith("emulated:") else EMAIL


def account_metadata(account: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the metadata server shows of a service account, as an instance has it."""
    content = json.dumps([account["email"], list(account["scopes"])]).encode()
    access = _PREFIX + base64.urlsafe_b64encode(content).decode()
    shown = {
        "aliases": "default",
        "email": account["email"],
        "scopes": "".join(f"{scope}\n" for scope in account["scopes"]),
        "token": json.dumps({"access_token": access, "expires_in": 3599, "token_type": "Bearer"}),
    }
    return {"default": shown, account["email"]: shown}


@dataclass
class Governance:
    """The project's billing account, enabled APIs, organization policies, service accounts, and roles.

    Attributes:
        billing_account: Its billing account; empty: none.
        is_open: Whether the billing account is open.
        is_trial: Whether it is in its free trial.
        disabled: Hosts of the APIs that the project has not enabled.
        policies: Effective policies by constraint, each as the `spec` of a Policy; others have the default.
        service_accounts: Whether each service account is enabled, by its e-mail address.
        members: Who has each role on the project.
    """

    billing_account: str = "billingAccounts/012345-567890-ABCDEF"
    is_open: bool = True
    is_trial: bool = False
    disabled: set[str] = field(default_factory=set)
    policies: dict[str, Json] = field(default_factory=dict)
    service_accounts: dict[str, bool] = field(default_factory=lambda: {DEFAULT_ACCOUNT: True})
    members: dict[str, set[str]] = field(default_factory=lambda: {"roles/owner": {f"user:{EMAIL}"}})

    @property
    def is_billed(self) -> bool:
        """Return whether an open billing account pays for the project."""
        return bool(self.billing_account) and self.is_open

    def granted(self, email: str, *policies: Mapping[str, set[str]]) -> set[str]:
        """Return what the roles of a service account allow, on the project and in other `policies`."""
        bindings = [binding for policy in (self.members, *policies) for binding in policy.items()]
        member = f"serviceAccount:{email}"
        return {name for role, members in bindings if member in members for name in ROLES.get(role, ())}

    def check_call(self, host: str, project: str) -> None:
        """Raise Refusal if an API is not enabled, or needs a billing account."""
        if host in self.disabled:
            title = "Compute Engine API" if host == COMPUTE else host
            raise refusal("403-disabled", project=project, service=host, title=title)
        if host == COMPUTE and not self.is_billed:
            raise refusal("403-billing", project=project, service=host)

    def is_enforced(self, constraint: str) -> bool:
        """Return whether a boolean constraint, or the managed one of its name, is enforced."""
        managed = constraint.replace("compute.", "compute.managed.")
        return any(rule.get("enforce") for name in (constraint, managed) for rule in self.rules(name))

    def rules(self, constraint: str) -> list[Json]:
        """Return the rules of a policy; empty: it has none, or was reset to the default of the constraint."""
        return list(self.policies.get(constraint, {}).get("rules", ()))
