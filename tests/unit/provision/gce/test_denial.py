"""The rule that denies SSH, in the order in which Compute Engine evaluates policies and rules."""

from __future__ import annotations

from typing import Any

import pytest
from google.cloud import compute_v1

from provision.gce.access.networks import Connection, denying_rule
from provision.gce.api.client import from_json
from provision.gce.api.resources import firewalls
from provision.gce.catalog.names import Fleet
from provision.gce.options import GceOptions
from provision.model import FleetSpec

HOME = "203.0.113.7/32"
SSH = [{"IPProtocol": "tcp", "ports": ["20-25"]}]
OWN = firewalls(Fleet(FleetSpec("demo", "gce", 1), GceOptions(), "k3jq7xab", "ada"), [HOME])
CONNECTION = Connection(HOME, 22, {"demo-k3jq7xab", "web"})


def rule(name: str = "no", **fields: Any) -> dict[str, Any]:
    return {"name": name, "direction": "INGRESS", "priority": 1000, "sourceRanges": ["0.0.0.0/0"], **fields}


def policy(kind: str, *rules: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "shortName": kind.lower(), "rules": list(rules)}


def part(
    action: str, priority: int = 1, *, ranges: tuple[str, ...] = ("0.0.0.0/0",), **fields: Any
) -> dict[str, Any]:
    match = {"srcIpRanges": list(ranges), "layer4Configs": [{"ipProtocol": "all"}], **fields.pop("match", {})}
    return {"action": action, "direction": "INGRESS", "priority": priority, "match": match, **fields}


def denied(*rules: dict[str, Any], policies: tuple[dict[str, Any], ...] = (), first: bool = False) -> str:
    return denying_rule(answer(*rules, policies=policies), CONNECTION, OWN, policies_first=first)


def answer(
    *rules: dict[str, Any], policies: tuple[dict[str, Any], ...] = ()
) -> compute_v1.NetworksGetEffectiveFirewallsResponse:
    effective = {"firewalls": list(rules), "firewallPolicys": list(policies)}
    return from_json(compute_v1.NetworksGetEffectiveFirewallsResponse, effective)


@pytest.mark.parametrize(
    ("fields", "is_denied"),
    [
        ({}, True),  # of equal priority, the denying one wins
        ({"priority": 1001}, False),
        ({"disabled": True}, False),
        ({"targetTags": ["web"]}, True),
        ({"targetServiceAccounts": ["a@b"]}, False),
        ({"sourceRanges": ["203.0.113.0/24", "::/0"]}, True),
        ({"denied": [{"IPProtocol": "tcp", "ports": ["3389"]}]}, False),
    ],
)
def test_a_rule_of_the_network_denies_what_it_matches(fields: dict[str, Any], is_denied: bool) -> None:
    assert denied(rule(**{"denied": SSH, **fields})) == ("firewall rule no" if is_denied else "")


@pytest.mark.parametrize(
    ("rules", "is_denied"),
    [
        ([part("allow", 1), part("deny", 2)], False),
        ([part("deny", 2), part("allow", 1, ranges=("198.51.100.0/24",))], True),
        ([part("deny", targetType="INTERNAL_MANAGED_LB")], False),
        # What is not known here is not reported.
        ([part("deny", targetSecureTags=[{"name": "t"}])], False),
        ([part("deny", match={"srcNetworkType": "NON_INTERNET"})], False),
        ([part("allow", 1, ranges=(), match={"srcRegionCodes": ["DE"]}), part("deny", 2)], False),
        ([part("deny", match={"srcRegionCodes": ["RU"]})], True),
    ],
)
def test_a_policy_of_the_organization_comes_first(rules: list[dict[str, Any]], is_denied: bool) -> None:
    assert bool(denied(policies=(policy("HIERARCHY", *rules),))) == is_denied


def test_policies_of_the_network_come_after_its_rules_unless_it_is_configured_otherwise() -> None:
    network = policy("NETWORK", part("deny", ruleName="closed"))
    assert denied(policies=(network,)) == ""
    assert denied(policies=(network,), first=True) == "rule closed of firewall policy network"
    open_first = policy("HIERARCHY", part("allow"))
    assert denied(policies=(network, open_first), first=True) == ""


def test_a_range_that_is_denied_in_part_is_not_reported() -> None:
    proxy = Connection("35.235.240.0/20", 22)
    for ranges, is_denied in ((["35.235.241.0/24"], False), (["35.235.0.0/16"], True)):
        effective = answer(rule(denied=SSH, sourceRanges=ranges))
        assert bool(denying_rule(effective, proxy)) == is_denied
