"""The end of Identity-Aware Proxy to which the stand-in for gcloud connects; Google's end is a WebSocket."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.emulator.api import Answer, Request, encode
from tests.emulator.endpoints import endpoint
from tests.emulator.iap import NoTunnel, open_tunnel
from tests.emulator.services.oauth2 import account_of

if TYPE_CHECKING:
    from tests.emulator.server import Emulator


@endpoint("/emulator/tunnel")
def answer_tunnel(emulator: Emulator, request: Request) -> Answer:
    """Return the address to connect to, or the code and the reason why the proxy opens no tunnel."""
    given = json.loads(request.body)
    emulator.api.count("iap.tunnel")
    with emulator.clock.changed:
        emulator.clock.run_due()
        try:
            target = (str(given["zone"]), str(given["instance"]), int(given["port"]))
            address = open_tunnel(emulator.cloud, account_of(request.token), *target)
        except NoTunnel as refusal:
            return encode(403, {"code": refusal.code, "reason": refusal.reason})
    return encode(200, {"address": address})
