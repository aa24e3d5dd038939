"""Access tokens for callers."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from tests.emulator.api import Answer, Broken, Request, encode
from tests.emulator.endpoints import endpoint

if TYPE_CHECKING:
    from tests.emulator.server import Emulator


@endpoint("/token")
def grant_token(emulator: Emulator, request: Request) -> Answer:
    """Return OAuth's answer to a refresh token, or to a service account's assertion."""
    emulator.api.count("oauth.token")
    rule = emulator.faults.draw("oauth.token", in_batch=False, place="", makes_operation=False)
    emulator.api.strike(rule)
    if rule and rule.kind == "invalid-grant":
        return encode(400, {"error": "invalid_grant", "error_description": "Token has been expired or revoked."})
    given = dict(parse_qsl(request.body.decode()))
    grant = given.get("grant_type", "")
    if grant not in ("refresh_token", "urn:ietf:params:oauth:grant-type:jwt-bearer"):
        return encode(400, {"error": "unsupported_grant_type", "error_description": f"Invalid grant_type: {grant}"})
    if rule and rule.kind == "lost":
        raise Broken(reset=False)
    emulator.cloud.scopes = given.get("scope", "https://www.googleapis.com/auth/cloud-platform")
    token = {"access_token": "emulated", "expires_in": 3599, "token_type": "Bearer"}
    return encode(200, {**token, "scope": emulator.cloud.scopes})
