"""Networks: subnetworks, Cloud NAT, the firewall rules of a fleet, and rules that deny SSH.

Instances without external addresses download nothing without Cloud NAT: https://cloud.google.com/nat/docs/overview.

Firewall policies of the organization come first, then the firewall rules of the network, then its own
firewall policies, or these before the rules if the network is configured so. The first one that decides wins:
https://cloud.google.com/firewall/docs/firewall-policies-overview#rule-evaluation.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, ip_network
from typing import Literal
from urllib.request import getproxies

import requests
from google.cloud import compute_v1

from provision.gce.access import hosts
from provision.gce.account import Account
from provision.gce.api.client import ApiError, to_json
from provision.gce.api.resources import IAP_RANGE, firewalls
from provision.gce.catalog.machines import ARM_IMAGE, CPU_IMAGE, GPU_IMAGE
from provision.gce.catalog.names import Fleet, last, network_of, region_of, regions_of, subnetwork_of
from provision.gce.options import GceOptions, is_loopback, root_scripts
from provision.model import SshAccess
from provision.provider import ErrorKind, ProviderError


def check_subnetwork(network: compute_v1.Network, cloud: GceOptions, project: str) -> list[str]:
    """Return the requested regions in which the network has the subnetwork; without a request, all of them.

    Args:
        network: The network, as the API returns it.
        cloud: Options of the instances.
        project: The project of the instances.

    Raises:
        ProviderError: there is none, or the user must select one.
    """
    host, regions = network_of(cloud.network).project, _regions(network, cloud)
    list_them = ("gcloud", "compute", "networks", "subnets", "list", "--project", host or project)
    if not cloud.subnetwork and (host or not network.auto_create_subnetworks):
        raise ProviderError(
            ErrorKind.USAGE,
            f"network {cloud.network} requires a subnetwork",
            cause="it has subnetworks in " + ", ".join(sorted(set(regions))[:5]) if regions else "",
            hint="select one: --subnet NAME",
            next_steps=[list_them],
        )
    if not regions:
        where = f" in {', '.join(sorted(regions_of(cloud.zones)))}" if cloud.zones else ""
        message = f"network {cloud.network} has no subnetwork {last(cloud.subnetwork)}".rstrip() + where
        raise ProviderError(ErrorKind.USAGE, message, hint="select another: --subnet NAME", next_steps=[list_them])
    return regions


def _regions(network: compute_v1.Network, cloud: GceOptions) -> list[str]:
    """Return the requested regions in which the network has the subnetwork; without a request, all."""
    asked = regions_of(cloud.zones)
    given = subnetwork_of(cloud.subnetwork) if cloud.subnetwork else None
    regions = []
    for url in network.subnetworks:
        _, region, _, name = url.rsplit("/", 3)
        fits = given is None or (given.name == name and given.region in ("", region))
        if fits and (not asked or region in asked):
            regions.append(region)
    return regions


_ALL = ("ALL_SUBNETWORKS_ALL_IP_RANGES", "ALL_SUBNETWORKS_ALL_PRIMARY_IP_RANGES")
_ONLY_SECONDARY = ["LIST_OF_SECONDARY_IP_RANGES"]
"""Ranges of a subnetwork that do not include its primary one, which instances use."""
_ROUTER = "fleet-nat"


def needs_nat(fleet: Fleet) -> bool:
    """Return whether instances download packages and have no external address.

    If the user gave a package index or a proxy, it may be in the network. If the user gave an image or scripts for
    root, these may have the packages, or another package index.
    """
    cloud, spec = fleet.cloud, fleet.spec
    is_given = cloud.image not in (ARM_IMAGE, CPU_IMAGE, GPU_IMAGE) or bool(root_scripts(cloud))
    is_inside = bool(spec.index_url or spec.pip_proxy)
    return bool(spec.packages) and not cloud.external and not is_given and not is_inside


def regions_with_nat(account: Account, cloud: GceOptions) -> frozenset[str]:
    """Return the regions in which Cloud NAT serves the instances.

    Raises:
        ApiError: the call failed, for example because the caller may not list the routers.
    """
    network = network_of(cloud.network)
    routers = account.api.routers(account.host_project)
    subnetwork = subnetwork_of(cloud.subnetwork).name or network.name  # in auto mode, it has the network's name
    return frozenset(
        last(router.region)
        for router in routers
        if last(router.network) == network.name and any(_serves(nat, subnetwork) for nat in router.nats)
    )


def _serves(nat: compute_v1.RouterNat, subnetwork: str) -> bool:
    """Return whether a NAT translates to public addresses, and serves the instances of a subnetwork of its region."""
    if (nat.type_ or "PUBLIC") != "PUBLIC":
        return False
    primary = [each for each in nat.subnetworks if list(each.source_ip_ranges_to_nat) != _ONLY_SECONDARY]
    listed = {last(each.name) for each in primary}
    return nat.source_subnetwork_ip_ranges_to_nat in _ALL or subnetwork in listed


def with_nat(account: Account, fleet: Fleet, offered: list[str]) -> list[str]:
    """Return the zones of `offered` in whose regions the instances can download the packages of a fleet.

    These are all zones if it is unknown which regions have Cloud NAT, because the caller may not list the routers.

    Raises:
        ApiError: a call failed.
        ProviderError: none of the requested regions has Cloud NAT.
    """
    asked = regions_of(fleet.cloud.zones or offered)
    zones = [zone for zone in offered if region_of(zone) in asked]
    if not zones or not needs_nat(fleet):
        return offered
    try:
        served = regions_with_nat(account, fleet.cloud)
    except ApiError as error:
        if not error.is_forbidden:
            raise
        return offered
    if not served & asked:
        cheapest = min(zones, key=lambda zone: account.prices.usd_h(fleet.cloud, zone) or math.inf)
        raise missing_nat(account, fleet.cloud, region_of(cheapest))
    return [zone for zone in offered if region_of(zone) in served]


def missing_nat(account: Account, cloud: GceOptions, region: str) -> ProviderError:
    """Return the error that no region has Cloud NAT, with the commands that create it in one."""
    name, project = network_of(cloud.network).name, account.host_project or account.api.project
    common = ("--region", region, "--project", project)
    addresses = ("--auto-allocate-nat-external-ips", "--nat-all-subnet-ip-ranges")
    return ProviderError(
        ErrorKind.MISSING,
        f"instances without external addresses cannot download packages: network {name} has no Cloud NAT in the "
        "requested regions",
        cause="pip on the instances connects to the package index directly",
        hint="create Cloud NAT in a region, or select a package index in the network (--index-url), or an image with "
        "the packages (--image, --python)",
        next_steps=[
            ("gcloud", "compute", "routers", "create", _ROUTER, "--network", name, *common),
            ("gcloud", "compute", "routers", "nats", "create", _ROUTER, "--router", _ROUTER, *addresses, *common),
        ],
    )


POLICIES_FIRST = "BEFORE_CLASSIC_FIREWALL"
"""Value of a network's ``networkFirewallPolicyEnforcementOrder``."""
_SOURCES = frozenset({"srcAddressGroups", "srcFqdns", "srcRegionCodes", "srcSecureTags", "srcThreatIntelligences"})
"""Conditions of a firewall policy that are alternatives to ranges of addresses."""


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
    effective: compute_v1.NetworksGetEffectiveFirewallsResponse,
    connection: Connection,
    fleet_rules: Sequence[compute_v1.Firewall] = (),
    *,
    policies_first: bool = False,
) -> str:
    """Return the rule that certainly denies a connection, for a message; empty if it is allowed, or unknown.

    Args:
        effective: Answer of networks.getEffectiveFirewalls.
        connection: The connection.
        fleet_rules: Rules of the fleet, which may not exist yet.
        policies_first: The firewall policies of the network come before its rules.
    """
    names = {rule.name for rule in fleet_rules}
    existing = [rule for rule in effective.firewalls if rule.name not in names]
    rules = [_of_network(rule, connection) for rule in (*existing, *fleet_rules)]
    organization: list[list[_Rule]] = []
    network: list[list[_Rule]] = []
    for policy in effective.firewall_policys:
        stage = list(_of_policy(policy, connection))
        (network if policy.type_ == "NETWORK" else organization).append(stage)
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


def _of_network(rule: compute_v1.Firewall, connection: Connection) -> _Rule:
    """Return a firewall rule of a network."""
    protocols = [(each.I_p_protocol, each.ports) for each in rule.denied or rule.allowed]
    parts = (
        (rule.direction or "INGRESS") == "INGRESS" and not rule.disabled,
        not rule.target_tags or not set(rule.target_tags).isdisjoint(connection.tags),
        None if rule.target_service_accounts else True,
        _covers(rule.source_ranges, connection.source),
        _is_port(protocols, connection.port),
    )
    priority = rule.priority if "priority" in rule else 1000
    return _Rule(f"firewall rule {rule.name}", priority, "deny" if rule.denied else "allow", _all(parts))


def _of_policy(
    policy: compute_v1.NetworksGetEffectiveFirewallsResponseEffectiveFirewallPolicy, connection: Connection
) -> Iterator[_Rule]:
    """Yield the rules of a firewall policy."""
    title = policy.short_name or policy.display_name or policy.name
    for rule in policy.rules:
        given, match = to_json(rule), to_json(rule.match)
        source = _covers(rule.match.src_ip_ranges, connection.source)
        others = match.keys() - {"srcIpRanges", "layer4Configs"} - (_SOURCES if source else set())
        targets = {key for key in given if key.startswith("target")} - {"targetType"}
        parts = (
            rule.direction == "INGRESS" and not rule.disabled,
            given.get("targetType", "INSTANCES") == "INSTANCES",
            None if others or targets else source,
            _is_port([(each.ip_protocol, each.ports) for each in rule.match.layer4_configs], connection.port),
        )
        name = f"rule {rule.rule_name or rule.priority} of firewall policy {title}"
        yield _Rule(name, rule.priority, rule.action, _all(parts))


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


def _is_port(protocols: Iterable[tuple[str, Sequence[str]]], port: int) -> bool:
    """Return whether TCP `port` is in a list of protocols, each with its ports; without ports, it has all."""
    ports = [
        text for protocol, texts in protocols if protocol in ("tcp", "6", "all") for text in texts or ("0-65535",)
    ]
    ranges = [text.partition("-") for text in ports]
    return any(int(first) <= port <= int(end or first) for first, _, end in ranges)


_OPTION = "--ssh-from"
_NOT_FOUND = 404
_PROPAGATION_S = 30.0

# --- the addresses of this computer -------------------------------------------------------------------------------

URL_VARIABLE = "FLEET_ADDRESS_URL"
"""Environment variable with the URL of a service to query instead of those below."""

_URLS = ("https://checkip.amazonaws.com", "https://ipv4.icanhazip.com")  # the second if the first does not respond
_DIRECT = {"http": "", "https": ""}
_TIMEOUT_S = 4.0
_LONGEST = 64


def caller_addresses(account: Account) -> tuple[str, ...]:
    """Return the addresses from which this computer reaches instances; empty if they cannot be determined.

    A web service reports the address from which it was called. If a proxy is set, the service is called through it
    and directly: SSH may use either way. The instances of an emulator are on this computer.
    """
    url = os.environ.get(URL_VARIABLE, "")
    if is_loopback(account.api.endpoint) and not url:
        return ("127.0.0.1/32",)
    ways: list[dict[str, str]] = [_DIRECT, {}] if getproxies() else [{}]
    for service in [url] if url else _URLS:
        reported = dict.fromkeys(_reported_address(service, proxies) for proxies in ways)
        if addresses := tuple(f"{address}/32" for address in reported if address):
            return addresses
    return ()


def _reported_address(url: str, proxies: dict[str, str]) -> str:
    """Return the IPv4 address that a service reports; empty if it reports none."""
    try:
        with requests.get(url, timeout=_TIMEOUT_S, allow_redirects=False, stream=True, proxies=proxies) as answer:
            if answer.status_code != requests.codes.ok:
                return ""
            text = next(answer.iter_content(_LONGEST), b"").decode("ascii", "replace").strip()
            return str(IPv4Address(text))
    except (OSError, ValueError):  # errors of requests are OSErrors; ValueError: the URL or the address is invalid
        return ""


def ssh_sources(account: Account, cloud: GceOptions) -> tuple[str, ...]:
    """Return the addresses that may use SSH: those that the user gave, otherwise only those of this computer.

    Raises:
        ProviderError: the address of this computer cannot be determined.
    """
    if cloud.ssh_from or not cloud.external or not cloud.firewall:
        return cloud.ssh_from
    if addresses := caller_addresses(account):
        return addresses
    raise ProviderError(
        ErrorKind.MISSING,
        "could not detect the public IP address of this computer",
        cause="no web service that reports it responded; the firewall allows SSH from this address only",
        hint=f"set it with {_OPTION} ADDRESS/32, or reach the instances through Identity-Aware Proxy",
        again={"--iap": True},
    )


# --- rules that deny SSH ------------------------------------------------------------------------------------------


def open_sources(account: Account, fleet: Fleet) -> tuple[str, ...]:
    """Return the addresses that may use SSH, as `ssh_sources` does, if no other rule is known to deny them.

    Raises:
        ApiError: a call failed, other than because the caller may not read the rules.
        ProviderError: a rule denies SSH, or the address of this computer cannot be determined.
    """
    sources = ssh_sources(account, fleet.cloud)
    try:
        check_rules(account, fleet, sources)
    except ApiError as error:
        if not error.is_forbidden:
            raise
    return sources


def check_rules(account: Account, fleet: Fleet, sources: Sequence[str]) -> None:
    """Check that no other rule denies SSH from all addresses of `sources`.

    Raises:
        ApiError: a call failed, for example because the caller may not read the rules.
        ProviderError: a rule denies SSH; it suggests Identity-Aware Proxy if that is allowed.
    """
    denial = _find_denial(account, fleet, sources)
    if not denial:
        return
    is_open = fleet.cloud.external and not denied_by(account, fleet.changed(external=False), ())
    network, project = network_of(fleet.cloud.network).name, account.host_project or account.api.project
    show = ("gcloud", "compute", "networks", "get-effective-firewalls", network)
    proxy = ", or reach the instances through Identity-Aware Proxy" if is_open else ""
    raise ProviderError(
        ErrorKind.MISSING,
        denial,
        cause="it takes precedence over the rule of the fleet",
        hint=f"ask an administrator of the network for an exception{proxy}",
        next_steps=[(*show, "--project", project, "--format", "yaml")],
        again={"--iap": True} if is_open else None,
    )


def denied_by(account: Account, fleet: Fleet, sources: Sequence[str]) -> str:
    """Return a clause about the rule that denies SSH from all addresses of `sources`; empty if none is known.

    Raises:
        ApiError: a call failed, other than because the caller may not read the rules.
    """
    try:
        return _find_denial(account, fleet, sources)
    except ApiError as error:
        if not error.is_forbidden:
            raise
        return ""


def _find_denial(account: Account, fleet: Fleet, sources: Sequence[str]) -> str:
    """Return a clause about the rule that denies SSH from all addresses of `sources`; empty if none does for certain.

    Without external addresses, the connections come from Identity-Aware Proxy instead.

    Raises:
        ApiError: a call failed.
    """
    cloud, api = fleet.cloud, account.api
    sources = sources if cloud.external else [IAP_RANGE]
    if not sources:
        return ""
    effective, network = api.together(
        lambda: api.effective_firewalls(cloud.network), lambda: api.network(cloud.network)
    )
    fleet_rules = _rules(account, fleet, sources) if cloud.firewall else []
    policies_first = network.network_firewall_policy_enforcement_order == POLICIES_FIRST
    tags = {*cloud.tags, fleet.stem}
    connections = [Connection(source, cloud.ssh_port, tags) for source in sources if ":" not in source]
    names = [denying_rule(effective, each, fleet_rules, policies_first=policies_first) for each in connections]
    if not names or not all(names):
        return ""
    origin = ", ".join(source.removesuffix("/32") for source in sources)
    return f"{names[0]} denies SSH from {origin if cloud.external else 'Identity-Aware Proxy'}"


# --- the rules of a fleet -----------------------------------------------------------------------------------------


def open_firewall(account: Account, fleet: Fleet) -> SshAccess:
    """Create the rules of a fleet, or update them; the caller's address may have changed.

    Raises:
        ApiError: a call failed.
        ProviderError: the address of this computer cannot be determined.
    """
    cloud = fleet.cloud
    if not cloud.firewall:
        return SshAccess(note=_missing_rules(account, fleet))
    sources = ssh_sources(account, cloud)
    changed = False
    try:
        existing = {rule.name: rule for rule in account.api.firewalls(account.host_project)}
        for body in _rules(account, fleet, sources):
            current = existing.get(body.name)
            if current is None or _differs(current, body):
                _write(account, fleet, "patch" if current else "insert", body)
                changed = True
    except ApiError as error:
        if not account.host_project or not error.is_forbidden:
            raise
        return SshAccess(note=_missing_rules(account, fleet))
    callers = () if cloud.ssh_from or not cloud.external else sources
    return SshAccess(sources, callers, changed, option=_OPTION)


def _missing_rules(account: Account, fleet: Fleet) -> str:
    """Return a sentence with the rules that a network must have for a fleet without rules of its own."""
    why = "the fleet has no firewall rules of its own (--no-firewall)"
    if fleet.cloud.firewall:
        host = account.host_project
        why = f"the network belongs to project {host}, in which these credentials cannot create rules"
    source = "this computer" if fleet.cloud.external else IAP_RANGE
    ssh = f"existing rules must allow tcp:{fleet.cloud.ssh_port} from {source}"
    return f"{why}: {ssh}, and all ports among instances with tag {fleet.stem}"


def follow_caller(account: Account, fleet: Fleet) -> SshAccess:
    """Update the SSH rule of a fleet if it does not admit this computer; create nothing.

    A rule with addresses that the user gave is reported, not changed.

    Raises:
        ApiError: a call failed.
        ProviderError: instances have no external address, and the account of gcloud cannot open tunnels.
    """
    if not fleet.cloud.firewall:
        return SshAccess(note=_missing_rules(account, fleet))
    if not fleet.cloud.external:
        hosts.check_tunnels(account)
        return SshAccess(denied_by=denied_by(account, fleet, ()))
    callers = caller_addresses(account)
    try:
        return _followed(account, fleet, callers)
    except ApiError as error:
        if error.status == _NOT_FOUND:  # `fleet down` deleted it meanwhile
            return SshAccess((), callers)
        if not account.host_project or not error.is_forbidden:
            raise
        return SshAccess(note=_missing_rules(account, fleet))


def _followed(account: Account, fleet: Fleet, callers: tuple[str, ...]) -> SshAccess:
    body, *_ = _rules(account, fleet, callers)
    rules = account.api.firewalls(account.host_project)
    current = next((rule for rule in rules if rule.name == body.name), None)
    if current is None:
        return SshAccess((), callers)
    now = SshAccess(tuple(current.source_ranges), callers, option=_OPTION)
    if callers and now.admits_caller:
        return now._replace(denied_by=denied_by(account, fleet, callers))
    if not callers or fleet.cloud.ssh_from:
        return now
    _write(account, fleet, "patch", body)
    return SshAccess(callers, callers, changed=True, before=now.open_to, propagation_s=_PROPAGATION_S)


def _rules(account: Account, fleet: Fleet, sources: Sequence[str]) -> list[compute_v1.Firewall]:
    """Return the bodies of the rules of a fleet; in the host project of a Shared VPC, they name its own project."""
    return firewalls(fleet, sources, project=account.api.project if account.host_project else "")


def _differs(current: compute_v1.Firewall, body: compute_v1.Firewall) -> bool:
    pairs = ((current.source_ranges, body.source_ranges), (current.target_tags, body.target_tags))
    return any(sorted(before) != sorted(after) for before, after in pairs)


def _write(account: Account, fleet: Fleet, method: Literal["insert", "patch"], body: compute_v1.Firewall) -> None:
    host, is_new = account.host_project, method == "insert"
    words = ("global", "firewalls", *(() if is_new else (body.name,)))
    with account.request(fleet.name, method, firewall=body.name, project=host) as request:
        operation = account.api.create(words, body, request.id, project=host, verb="" if is_new else "PATCH")
        request.is_accepted = True
        account.api.done(operation, "opening the firewall")
