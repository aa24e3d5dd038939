"""Access tokens of the service accounts of instances, which say whose they are and what they are for."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ANONYMOUS = "anonymous"
"""In place of the token of a request that must have one, and has none."""
_PREFIX = "ya29."


@dataclass(frozen=True)
class Identity:
    """The caller of a method.

    Attributes:
        email: E-mail address of the service account.
        scopes: What its token may be used for.
    """

    email: str
    scopes: tuple[str, ...]


def identity_of(token: str) -> Identity | None:
    """Return the service account of an access token; None: the token is one of the user of this computer."""
    try:
        email, scopes = json.loads(base64.urlsafe_b64decode(token.removeprefix(_PREFIX)))
    except (binascii.Error, ValueError):
        return None
    return Identity(email, tuple(scopes)) if token.startswith(_PREFIX) else None


def account_metadata(account: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the metadata server shows of a service account, as an instance has it."""
    content = json.dumps([account["email"], list(account["scopes"])]).encode()
    token = {
        "access_token": _PREFIX + base64.urlsafe_b64encode(content).decode(),
        "expires_in": 3599,
        "token_type": "Bearer",
    }
    shown = {
        "aliases": "default",
        "email": account["email"],
        "scopes": "".join(f"{scope}\n" for scope in account["scopes"]),
        "token": json.dumps(token),
    }
    return {"default": shown, account["email"]: shown}
