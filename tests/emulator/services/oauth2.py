"""The profile of the caller."""

from __future__ import annotations

from typing import Any

from tests.emulator.cloud import Call, Cloud
from tests.emulator.failures import Refusal
from tests.emulator.registry import method

Json = dict[str, Any]
DOCUMENT = "oauth2.v2"
EMAIL = "me@example.com"
SCOPE = "https://www.googleapis.com/auth/userinfo.email"


def permissions(cloud: Cloud, call: Call) -> tuple[tuple[str, str], ...]:
    """Return no permission: the scope of the access token decides."""
    return ()


@method("oauth2.userinfo.get")
def get_userinfo(cloud: Cloud, call: Call) -> Json:
    if SCOPE not in cloud.scopes:
        raise Refusal(401, "authError", "Request is missing required authentication credential.")
    return {"id": "1", "email": EMAIL, "verified_email": True}
