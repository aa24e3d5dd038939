"""Profiles of OS Login: the account of each Google account on instances, and the SSH keys that log in to it."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.emulator.failures import Refusal

Json = dict[str, Any]
ENABLE = "enable-oslogin"
LOGIN, ADMIN = "compute.instances.osLogin", "compute.instances.osAdminLogin"
_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")
_FIRST_UID = 2_000_000


@dataclass
class Profile:
    """The login profile of a Google account.

    Attributes:
        email: Address of the account.
        uid: Its uid on all instances.
        keys: Its SSH keys by fingerprint, as the API shows them.
    """

    email: str
    uid: int
    keys: dict[str, Json] = field(default_factory=dict)

    @property
    def user(self) -> str:
        """Return the login name, ``me_example_com``; a service account has the one of its number."""
        if self.email.endswith(".gserviceaccount.com"):
            return f"sa_{self.uid}"
        return _NOT_IN_NAMES.sub("_", self.email.lower())

    def body(self, project: str) -> Json:
        """Return it as the API shows it."""
        account = {
            "name": f"users/{self.email}/projects/{project}",
            "primary": True,
            "username": self.user,
            "uid": str(self.uid),
            "gid": str(self.uid),
            "homeDirectory": f"/home/{self.user}",
            "operatingSystemType": "LINUX",
            "accountId": project,
        }
        return {"name": str(self.uid), "posixAccounts": [account], "sshPublicKeys": self.keys}

    def add(self, given: Json, now: float) -> Json:
        """Add a key, and return it; one that exists is unchanged, also its expiry.

        Raises:
            Refusal: the key is invalid, or it has expired.
        """
        mark = fingerprint(given.get("key", ""))
        if mark not in self.keys:
            check_expiry(given, now)
            self.keys[mark] = {
                **given,
                "fingerprint": mark,
                "name": f"users/{self.email}/sshPublicKeys/{mark}",
            }
        return self.keys[mark]

    def valid_keys(self, now: float) -> list[str]:
        """Return the keys that have not expired."""
        return [
            str(key["key"])
            for key in self.keys.values()
            if not key.get("expirationTimeUsec") or int(key["expirationTimeUsec"]) > now * 1e6
        ]


@dataclass
class Profiles:
    """The profiles by e-mail address; one appears when it is first used."""

    by_email: dict[str, Profile] = field(default_factory=dict)

    def get(self, email: str) -> Profile:
        """Return the profile of a Google account."""
        return self.by_email.setdefault(email, Profile(email, _FIRST_UID + len(self.by_email)))

    def granted(self, denied: set[str], *, has_service_account: bool, now: float) -> dict[str, list[str]]:
        """Return the keys by user that log in on an instance.

        The caller's permissions decide: one of `LOGIN` and `ADMIN`, and, on an instance with a service account, the
        permission to act as it.

        Source: https://cloud.google.com/compute/docs/oslogin/set-up-oslogin#configure_users.
        """
        if {LOGIN, ADMIN} <= denied or (has_service_account and "iam.serviceAccounts.actAs" in denied):
            return {}
        return {profile.user: profile.valid_keys(now) for profile in self.by_email.values()}


def is_enabled(metadata: Mapping[str, str]) -> bool:
    """Return whether metadata items enable OS Login."""
    return metadata.get(ENABLE, "").upper() == "TRUE"


def check_expiry(given: Json, now: float) -> None:
    """Raise Refusal if a key has expired already."""
    expiry = given.get("expirationTimeUsec")
    if expiry and int(expiry) <= now * 1e6:
        raise _invalid("The expiration time of the key has passed.")


def fingerprint(key: str) -> str:
    """Return the fingerprint of a public key.

    Raises:
        Refusal: it is not a public key.
    """
    try:
        kind, text = key.split()[:2]
        blob = base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error) as error:
        raise _invalid("The SSH public key is malformed.") from error
    if kind.encode() not in blob[:32]:
        raise _invalid("The SSH public key is malformed.")
    return hashlib.sha256(blob).hexdigest()


def _invalid(message: str) -> Refusal:
    return Refusal(400, "badRequest", message, canonical="INVALID_ARGUMENT")
