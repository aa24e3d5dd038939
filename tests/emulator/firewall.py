"""Decide which instances can be reached by SSH, from the firewall policies and rules of their network.

Source: https://cloud.google.com/firewall/docs/firewall-policies-overview#rule-evaluation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import ip_address, ip_network
from typing import Any

Json = dict[str, Any]

PROXY = "35.235.240.1"
"""An address of Identity-Aware Proxy, through which instances without an external address are reached."""


def admits(rules: Iterable[Json], policies: Sequence[Json], instance: Json, caller: str, port: int) -> bool:
    """Return whether a connection from `caller` to TCP `port` of an instance gets through.

    The first policy or rule that decides wins; without one, nothing comes in.

    Args:
        rules: Firewall rules as the API shows them, of all networks.
        policies: Firewall policies.
        instance: The instance as the API shows it.
        caller: IPv4 address from which the client connects.
        port: TCP port.
    """
    organization = [policy for policy in policies if policy["type"] != "NETWORK"]
    network = [policy for policy in policies if policy["type"] == "NETWORK"]
    verdicts = (
        *(_verdict_of_policy(policy, caller, port) for policy in organization),
        _verdict_of_rules(rules, instance, caller, port),
        *(_verdict_of_policy(policy, caller, port) for policy in network),
    )
    return next((verdict == "allow" for verdict in verdicts if verdict), False)


def _verdict_of_policy(policy: Json, caller: str, port: int) -> str:
    """Return ``allow`` or ``deny``; empty if the policy leaves the decision to the next one."""
    for rule in sorted(policy["rules"], key=lambda rule: int(rule["priority"])):
        match = rule["match"]
        applies = rule["direction"] == "INGRESS" and not rule.get("disabled") and not rule.get("targetSecureTags")
        if (
            applies
            and _contains(match["srcIpRanges"], caller)
            and _covers(match["layer4Configs"], "ipProtocol", port)
        ):
            return "" if rule["action"] == "goto_next" else str(rule["action"])
    return ""


def _verdict_of_rules(rules: Iterable[Json], instance: Json, caller: str, port: int) -> str:
    """Return ``allow`` or ``deny``; empty if no rule applies. Of equal priorities, a rule that denies wins."""
    interface, tags = instance["networkInterfaces"][0], set(instance["tags"]["items"])
    applying = [
        rule
        for rule in rules
        if rule["network"] == interface["network"]
        and rule["direction"] == "INGRESS"
        and not rule.get("disabled")
        and (not rule.get("targetTags") or tags & set(rule["targetTags"]))
        and _contains(rule.get("sourceRanges", ()), caller)
        and _covers(rule.get("allowed") or rule.get("denied", ()), "IPProtocol", port)
    ]
    first = min(applying, key=lambda rule: (int(rule["priority"]), "denied" not in rule), default=None)
    return "" if first is None else "deny" if "denied" in first else "allow"


def _contains(ranges: Iterable[str], address: str) -> bool:
    return any(ip_address(address) in ip_network(text, strict=False) for text in ranges)


def _covers(protocols: Iterable[Json], key: str, port: int) -> bool:
    for protocol in protocols:
        ranges = [text.partition("-") for text in protocol.get("ports", ("0-65535",))]
        if protocol[key] in ("tcp", "6", "all") and any(
            int(first) <= port <= int(last or first) for first, _, last in ranges
        ):
            return True
    return False
