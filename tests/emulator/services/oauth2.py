"""The profile of the caller. A token ``emulated:ADDRESS`` belongs to that account, any other to `EMAIL`."""

from __future__ import annotations

from typing import Any

from tests.emulator.cloud import Call, Cloud
from tests.emulator.failures import Refusal
from tests.emulator.registry import method

Json = dict[str, Any]
DOCUMENT = "oauth2.v2"
EMAIL = "me@example.com"
_PREFIX = "emulated:"
SCOPE = "https://www.googleapis.com/auth/userinfo.email"


def account_of(token: str) -> str:
    """Return the account that an access token was granted to."""
    return token.removeprefix(_PREFIX) if token.startswith(_PREFIX) else EMAIL


def permissions(cloud: Cloud, call: Call) -> tuple[tuple[str, str], ...]:
    """Return no permission: the scope of the access token decides."""
    return ()


@method("oauth2.userinfo.get")
def get_userinfo(cloud: Cloud, call: Call) -> Json:
    if SCOPE not in cloud.scopes and not call.token.startswith(_PREFIX):
        raise Refusal(401, "authError", "Request is missing required authentication credential.")
    return {"id": "1", "email": account_of(call.token), "verified_email": True}
