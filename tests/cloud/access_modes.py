"""The ways in which hosts are reached, and what each of them requires of the emulated project."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.emulator import Emulator
from tests.emulator.catalog import REGIONS

HOST = "host-proj"
"""The host project of a Shared VPC."""
NETWORK = f"projects/{HOST}/global/networks/shared"
EMAIL = "me@proj-1.iam.gserviceaccount.com"
"""The account of the credentials."""
MODES: dict[str, dict[str, Any]] = {
    "external": {},
    "iap": {"external": False},
    "shared": {"network": NETWORK, "subnetwork": "shared"},
    "os-login": {"os_login": True},
}
"""Options of each access mode."""

OPTIONAL = {
    "compute.networks.getEffectiveFirewalls",
    "compute.resourcePolicies.list",
    "compute.routers.list",
    "serviceusage.services.get",
}
"""Without these, `fleet up` skips a check of the prerequisites, or a list of what it cannot have created."""


def allow(emulator: Emulator) -> None:
    """Let the project have what the access modes require."""
    emulator.share_networks(HOST, "shared")
    emulator.translate_addresses(*REGIONS)
    emulator.cloud.governance.service_accounts[EMAIL] = True


def write_credentials(directory: Path, url: str) -> str:
    """Write the key file of the service account `EMAIL`, whose tokens an emulator grants; return its path."""
    account = {"type": "service_account", "project_id": "proj-1", "client_email": EMAIL, "private_key_id": "1"}
    file = directory / "key.json"
    file.write_text(json.dumps({**account, "private_key": _private_key(), "token_uri": f"{url}/token"}))
    return str(file)


@cache
def _private_key() -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
