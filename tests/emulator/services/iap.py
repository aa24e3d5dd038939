"""Identity-Aware Proxy, as far as it answers whether callers may open tunnels."""

from __future__ import annotations

from typing import Any

from tests.emulator.cloud import Call, Cloud
from tests.emulator.failures import Refusal
from tests.emulator.iap import may_use
from tests.emulator.registry import method
from tests.emulator.services.oauth2 import account_of

Json = dict[str, Any]
DOCUMENT = "iap.v1"


def permissions(cloud: Cloud, call: Call) -> tuple[tuple[str, str], ...]:
    """Return no permission: callers may always test theirs."""
    return ()


@method("iap.testIamPermissions")
def test_iam_permissions(cloud: Cloud, call: Call) -> Json:
    if call.path["resource"] != f"projects/{cloud.project}/iap_tunnel":
        raise Refusal(400, "badRequest", "Request contains an invalid argument.", canonical="INVALID_ARGUMENT")
    account, asked = account_of(call.token), call.body.get("permissions", [])
    return {"permissions": [name for name in asked if may_use(cloud, account, name)]}
