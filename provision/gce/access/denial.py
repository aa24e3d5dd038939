"""Find the rule that denies SSH although a rule of the fleet allows it.

Firewall policies of the organization come first, then the firewall rules of the network, then its own
firewall policies, or these before the rules if the network is configured so. The first one that decides wins.

Source: https://cloud.google.com/firewall/docs/firewall-policies-overview#rule-evaluation, and the schemas Firewall
and FirewallPolicyRule of the discovery document.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, ip_network
from typing import Any

Json = Mapping[str, Any]

POLICIES_FIRST = "BEFORE_CLASSIC_FIREWALL"
"""Value of a network's ``networkFirewallPolicyEnforcementOrder``."""
_SOURCES = ("srcAddressGroups", "srcFqdns", "srcRegionCodes", "srcSecureTags", "srcThreatIntelligences")
_TARGETS = ("targetResources", "targetSecureTags", "targetServiceAccounts")
_CONDITIONS = (
    *("destIpRanges", "destAddressGroups", "destFqdns", "destRegionCodes", "destThreatIntelligences"),
    *("srcNetworks", "srcNetworkContext", "srcNetworkType", "destNetworkContext", "destNetworkType"),
)


@dataclass(frozen=True)
class Connection:
    """Incoming TCP connections.

    Attributes:
        source: Range of addresses in CIDR notation.
        port: TCP port.
        tags: Network tags of the instance.
    """

    source: str
    port: int
    tags: Collection[str] = ()


@dataclass(frozen=True)
class _Rule:
    """A rule, and whether it applies to a connection.

    Attributes:
        name: The rule in messages.
        priority: The lowest number is evaluated first.
        action: ``allow``, ``deny``, ``goto_next``, or another one.
        applies: None: it depends on what is not known here.
    """

    name: str
    priority: int
    action: str
    applies: bool | None


def denying_rule(
    effective: Json, connection: Connection, fleet_rules: Sequence[Json] = (), *, policies_first: bool = False
) -> str:
    """Return the rule that certainly denies a connection, for a message; empty if it is allowed, or unknown.

    Args:
        effective: Answer of networks.getEffectiveFirewalls.
        connection: The connection.
        fleet_rules: Rules of the fleet, which may not exist yet.
        policies_first: The firewall policies of the network come before its rules.
    """
    names = {rule["name"] for rule in fleet_rules}
    existing = [rule for rule in effective.get("firewalls", ()) if rule.get("name") not in names]
    rules = [_of_network(rule, connection) for rule in (*existing, *fleet_rules)]
    organization: list[list[_Rule]] = []
    network: list[list[_Rule]] = []
    for policy in effective.get("firewallPolicys", ()):
        stage = list(_of_policy(policy, connection))
        (network if policy.get("type") == "NETWORK" else organization).append(stage)
    for stage in (*organization, *((*network, rules) if policies_first else (rules, *network))):
        if (decision := _decide(stage)) is not None:
            return decision
    return ""


def _decide(rules: Iterable[_Rule]) -> str | None:
    """Return the rule that denies, empty if it is allowed or unknown; None if the next rules decide."""
    for rule in sorted(rules, key=lambda rule: (rule.priority, rule.action != "deny")):
        if rule.applies is None and rule.action != "deny":
            return ""
        if rule.applies:
            return {"deny": rule.name, "goto_next": None}.get(rule.action, "")
    return None


def _of_network(rule: Json, connection: Connection) -> _Rule:
    """Return a firewall rule of a network."""
    action = "deny" if rule.get("denied") else "allow"
    applies = rule.get("direction", "INGRESS") == "INGRESS" and not rule.get("disabled")
    targets = rule.get("targetTags", ())
    parts = (
        applies,
        not targets or not set(targets).isdisjoint(connection.tags),
        None if rule.get("targetServiceAccounts") else True,
        _covers(rule.get("sourceRanges", ()), connection.source),
        _is_port(rule.get("denied") or rule.get("allowed") or (), "IPProtocol", connection.port),
    )
    return _Rule(f"firewall rule {rule.get('name', '')}", int(rule.get("priority", 1000)), action, _all(parts))


def _of_policy(policy: Json, connection: Connection) -> Iterator[_Rule]:
    """Yield the rules of a firewall policy."""
    title = policy.get("shortName") or policy.get("displayName") or policy.get("name", "")
    for rule in policy.get("rules", ()):
        match: Json = rule.get("match", {})
        applies = rule.get("direction") == "INGRESS" and not rule.get("disabled")
        source = _covers(match.get("srcIpRanges", ()), connection.source)
        is_open = source is not True and any(match.get(name) for name in _SOURCES)
        is_limited = any(match.get(name) for name in _CONDITIONS)
        is_targeted = any(rule.get(name) for name in _TARGETS)
        parts = (
            applies and rule.get("targetType", "INSTANCES") == "INSTANCES",
            None if is_open or is_limited or is_targeted else source,
            _is_port(match.get("layer4Configs", ()), "ipProtocol", connection.port),
        )
        priority = int(rule.get("priority", 0))
        name = f"rule {rule.get('ruleName') or priority} of firewall policy {title}"
        yield _Rule(name, priority, str(rule.get("action")), _all(parts))


def _all(parts: Iterable[bool | None]) -> bool | None:
    """Return whether all conditions are met; None if some are unknown, and no other fails."""
    values = list(parts)
    return False if False in values else None if None in values else True


def _covers(ranges: Iterable[str], source: str) -> bool | None:
    """Return whether ranges contain the addresses of `source`; None if they contain some of them."""
    network = IPv4Network(source, strict=False)
    others = [other for text in ranges if isinstance(other := ip_network(text, strict=False), IPv4Network)]
    if any(network.subnet_of(other) for other in others):
        return True
    return None if any(network.overlaps(other) for other in others) else False


def _is_port(protocols: Iterable[Json], key: str, port: int) -> bool:
    """Return whether TCP `port` is in a list of protocols, each with its ports; without ports, it has all."""
    for protocol in protocols:
        ranges = [str(text).partition("-") for text in protocol.get("ports") or ("0-65535",)]
        if protocol.get(key) in ("tcp", "6", "all") and any(
            int(first) <= port <= int(last or first) for first, _, last in ranges
        ):
            return True
    return False
