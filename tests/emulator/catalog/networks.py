"""Networks and their subnetworks."""

from __future__ import annotations

from typing import Any

from tests.emulator.catalog.entries import entry
from tests.emulator.catalog.locations import REGIONS

Json = dict[str, Any]


def is_automatic(name: str) -> bool:
    """Return whether a network is in auto mode: those that users create are in custom mode."""
    return name == "default"


def network_body(base: str, name: str) -> Json:
    """Return a Network with one subnetwork of its name in each region."""
    return {
        **entry("network", name),
        "description": "Default network for the project",
        "autoCreateSubnetworks": is_automatic(name),
        "subnetworks": [f"{base}/regions/{region}/subnetworks/{name}" for region in REGIONS],
        "routingConfig": {"routingMode": "REGIONAL"},
        "networkFirewallPolicyEnforcementOrder": "AFTER_CLASSIC_FIREWALL",
        "selfLink": f"{base}/global/networks/{name}",
    }


def subnetwork_body(base: str, region: str, name: str) -> Json:
    """Return a Subnetwork."""
    third = 128 + 4 * list(REGIONS).index(region)
    return {
        **entry("subnetwork", name),
        "network": f"{base}/global/networks/{name}",
        "ipCidrRange": f"10.{third}.0.0/20",
        "gatewayAddress": f"10.{third}.0.1",
        "region": f"{base}/regions/{region}",
        "privateIpGoogleAccess": False,
        "privateIpv6GoogleAccess": "DISABLE_GOOGLE_ACCESS",
        "purpose": "PRIVATE",
        "stackType": "IPV4_ONLY",
        "fingerprint": "7ATVeZfHBPE=",
        "selfLink": f"{base}/regions/{region}/subnetworks/{name}",
    }
