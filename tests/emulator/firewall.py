"""Decide which instances the caller can reach by SSH, from the firewall rules of their network."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address, ip_network
from typing import Any

Json = dict[str, Any]

PROXY = "35.235.240.1"
"""An address of Identity-Aware Proxy, through which instances without an external address are reached."""


def admits(rules: Iterable[Json], instance: Json, caller: str, port: int) -> bool:
    """Return whether `rules` let `caller` connect to TCP `port` of an instance.

    Denying rules and priorities are not emulated: without a rule that allows it, nothing comes in.

    Args:
        rules: Firewall rules as the API shows them.
        instance: The instance as the API shows it.
        caller: IPv4 address from which the client connects.
        port: TCP port.
    """
    interface = instance["networkInterfaces"][0]
    source = caller if interface.get("accessConfigs") else PROXY
    tags = set(instance["tags"]["items"])
    return any(
        rule["network"] == interface["network"]
        and rule["direction"] == "INGRESS"
        and not rule.get("disabled")
        and (not rule.get("targetTags") or tags & set(rule["targetTags"]))
        and any(_contains(text, source) for text in rule.get("sourceRanges", ()))
        and any(_covers(allowed, port) for allowed in rule.get("allowed", ()))
        for rule in rules
    )


def _contains(network: str, address: str) -> bool:
    return ip_address(address) in ip_network(network, strict=False)


def _covers(allowed: Json, port: int) -> bool:
    if allowed["IPProtocol"] not in ("tcp", "6", "all"):
        return False
    ranges = [text.partition("-") for text in allowed.get("ports", ("0-65535",))]
    return any(int(first) <= port <= int(last or first) for first, _, last in ranges)
