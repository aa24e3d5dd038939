"""Rules and policies of a network that deny SSH, whatever the rules of a fleet allow."""

from __future__ import annotations

import pytest

from provision.gce.api.resources import IAP_RANGE
from provision.gce.provider import GceProvider
from provision.model import FleetSpec
from provision.provider import ProviderError
from tests.cloud.conftest import Make, finding_of
from tests.emulator import Emulator
from tests.emulator.client import Client
from tests.next_steps import command_lines

NAMES = ("worker-0", "worker-1")
EVERYWHERE = "0.0.0.0/0"


def deny(emulator: Emulator, *ranges: str, priority: int = 1000) -> None:
    """Create a rule of the network that denies SSH."""
    rule = {
        "name": "closed",
        "network": "global/networks/default",
        "denied": [{"IPProtocol": "tcp", "ports": ["22"]}],
        "sourceRanges": list(ranges),
        "priority": priority,
    }
    Client(emulator).call("POST", "global/firewalls", rule)
    emulator.settle()


def refused(provider: GceProvider, spec: FleetSpec) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        provider.quote(spec, NAMES)
    return caught.value


def test_a_rule_that_denies_ssh_is_reported_before_anything_is_created(emulator: Emulator, make: Make) -> None:
    deny(emulator, EVERYWHERE, priority=900)
    provider, spec = make()
    error = refused(provider, spec)
    assert error.message == "firewall rule closed denies SSH from 127.0.0.1"
    assert (
        command_lines(error)
        == "gcloud compute networks get-effective-firewalls default --project proj-1 --format yaml"
    )
    assert error.again is None
    finding = finding_of(provider, "firewall")
    assert (finding.ok, finding.next_steps) == (False, error.next_steps)


@pytest.mark.usefixtures("gcloud")
def test_identity_aware_proxy_is_suggested_if_it_is_allowed(emulator: Emulator, make: Make) -> None:
    match = {"srcIpRanges": [IAP_RANGE], "layer4Configs": [{"ipProtocol": "tcp", "ports": ["22"]}]}
    emulator.cloud.firewall_policies = [
        {
            "type": "HIERARCHY",
            "shortName": "acme",
            "rules": [
                {"action": "goto_next", "direction": "INGRESS", "priority": 1, "match": match},
                {
                    "action": "deny",
                    "direction": "INGRESS",
                    "priority": 2,
                    "match": {**match, "srcIpRanges": [EVERYWHERE]},
                },
            ],
        }
    ]
    provider, spec = make()
    error = refused(provider, spec)
    assert error.message == "rule 2 of firewall policy acme denies SSH from 127.0.0.1"
    assert error.again == {"--iap": True}
    provider, spec = make(external=False)
    assert provider.quote(spec, NAMES).offers
    deny(emulator, IAP_RANGE)
    assert refused(provider, spec).message == "firewall rule closed denies SSH from Identity-Aware Proxy"


def test_rules_that_cannot_be_read_stop_nothing(emulator: Emulator, make: Make) -> None:
    deny(emulator, EVERYWHERE)
    emulator.deny("compute.networks.getEffectiveFirewalls")
    provider, spec = make()
    assert provider.quote(spec, NAMES).offers
    finding = finding_of(provider, "firewall")
    assert finding.ok is None
    assert "could not check the firewall: these credentials lack the permission compute.networks" in finding.message
    assert "--role roles/compute.networkViewer" in command_lines(finding)
