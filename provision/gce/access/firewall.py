"""Firewall rules: create and update those of a fleet, and find one of the network that denies SSH.

Firewall policies of the organization come first, then the firewall rules of the network, then its own
firewall policies, or these before the rules if the network is configured so. The first one that decides wins.

Source: https://cloud.google.com/firewall/docs/firewall-policies-overview#rule-evaluation, and the schemas Firewall
and FirewallPolicyRule of the discovery document.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Network, ip_network
from typing import Literal

from google.cloud import compute_v1

from provision.gce.access import iap
from provision.gce.access.public_ip import public_addresses
from provision.gce.account import Account
from provision.gce.api.messages import ApiError
from provision.gce.api.requests import IAP_RANGE, firewalls
from provision.gce.catalog.names import network_of, stem
from provision.gce.options import GceOptions, is_loopback
from provision.model import FleetSpec, SshAccess
from provision.provider import ErrorKind, ProviderError

POLICIES_FIRST = "BEFORE_CLASSIC_FIREWALL"
"""Value of a network's ``networkFirewallPolicyEnforcementOrder``."""
_SOURCES = ("src_address_groups", "src_fqdns", "src_region_codes", "src_secure_tags", "src_threat_intelligences")
_TARGETS = ("target_resources", "target_secure_tags", "target_service_accounts")
_CONDITIONS = (
    *("dest_ip_ranges", "dest_address_groups", "dest_fqdns", "dest_region_codes", "dest_threat_intelligences"),
    *("src_networks", "src_network_context", "src_network_type", "dest_network_context", "dest_network_type"),
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
        match = rule.match
        source = _covers(match.src_ip_ranges, connection.source)
        is_open = source is not True and any(getattr(match, name, None) for name in _SOURCES)
        is_limited = any(getattr(match, name, None) for name in _CONDITIONS)
        is_targeted = any(getattr(rule, name, None) for name in _TARGETS)
        is_of_instances = getattr(rule, "target_type", "") in ("", "INSTANCES")
        parts = (
            rule.direction == "INGRESS" and not rule.disabled and is_of_instances,
            None if is_open or is_limited or is_targeted else source,
            _is_port([(each.ip_protocol, each.ports) for each in match.layer4_configs], connection.port),
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


def caller_addresses(account: Account) -> tuple[str, ...]:
    """Return the addresses from which this computer reaches instances; empty if they cannot be determined."""
    addresses = public_addresses(local=is_loopback(account.api.endpoint))
    return tuple(f"{address}/32" for address in addresses)


def ssh_sources(account: Account, cloud: GceOptions) -> tuple[str, ...]:
    """Return the addresses that may use SSH: those that the user gave, otherwise only those of this computer.

    Raises:
        ProviderError: the address of this computer cannot be determined.
    """
    if cloud.ssh_from or not cloud.external or not cloud.firewall:
        return cloud.ssh_from
    addresses = caller_addresses(account)
    if not addresses:
        raise unknown_address()
    return addresses


def open_sources(account: Account, spec: FleetSpec, cloud: GceOptions) -> tuple[str, ...]:
    """Return the addresses that may use SSH, as `ssh_sources` does, if no other rule is known to deny them.

    Raises:
        ApiError: a call failed, other than because the caller may not read the rules.
        ProviderError: a rule denies SSH, or the address of this computer cannot be determined.
    """
    sources = ssh_sources(account, cloud)
    try:
        check_rules(account, spec, cloud, sources)
    except ApiError as error:
        if not error.is_forbidden:
            raise
    return sources


def check_rules(account: Account, spec: FleetSpec, cloud: GceOptions, sources: Sequence[str]) -> None:
    """Check that no other rule denies SSH from all addresses of `sources`.

    Raises:
        ApiError: a call failed, for example because the caller may not read the rules.
        ProviderError: a rule denies SSH.
    """
    if denial := _find_denial(account, spec, cloud, sources):
        raise _denied(account, spec, cloud, denial)


def denied_by(account: Account, spec: FleetSpec, cloud: GceOptions, sources: Sequence[str]) -> str:
    """Return a clause about the rule that denies SSH from all addresses of `sources`; empty if none is known.

    Raises:
        ApiError: a call failed, other than because the caller may not read the rules.
    """
    try:
        return _find_denial(account, spec, cloud, sources)
    except ApiError as error:
        if not error.is_forbidden:
            raise
        return ""


def _find_denial(account: Account, spec: FleetSpec, cloud: GceOptions, sources: Sequence[str]) -> str:
    """Return a clause about the rule that denies SSH from all addresses of `sources`; empty if none does for certain.

    Without external addresses, the connections come from Identity-Aware Proxy instead.

    Raises:
        ApiError: a call failed.
    """
    sources = sources if cloud.external else [IAP_RANGE]
    if not sources:
        return ""
    effective, network = account.api.together(
        lambda: account.api.effective_firewalls(cloud.network), lambda: account.api.network(cloud.network)
    )
    fleet_rules = _rules(account, spec, cloud, sources) if cloud.firewall else []
    tags = {*cloud.tags, stem(spec.name, account.owner)}
    policies_first = network.network_firewall_policy_enforcement_order == POLICIES_FIRST
    connections = [Connection(source, cloud.ssh_port, tags) for source in sources if ":" not in source]
    names = [denying_rule(effective, each, fleet_rules, policies_first=policies_first) for each in connections]
    if not names or not all(names):
        return ""
    origin = ", ".join(source.removesuffix("/32") for source in sources)
    return f"{names[0]} denies SSH from {origin if cloud.external else 'Identity-Aware Proxy'}"


def _denied(account: Account, spec: FleetSpec, cloud: GceOptions, denial: str) -> ProviderError:
    """Return the error that a rule denies SSH; it suggests Identity-Aware Proxy if that is allowed."""
    proxy = replace(cloud, external=False)
    is_open = cloud.external and not denied_by(account, spec, proxy, ())
    network, project = network_of(cloud.network).name, account.host_project or account.api.project
    show = ("gcloud", "compute", "networks", "get-effective-firewalls", network)
    return ProviderError(
        ErrorKind.MISSING,
        denial,
        cause="it takes precedence over the rule of the fleet",
        hint="ask an administrator of the network for an exception"
        + (", or reach the instances through Identity-Aware Proxy" if is_open else ""),
        next_steps=[(*show, "--project", project, "--format", "yaml")],
        again={"--iap": True} if is_open else None,
    )


def unknown_address() -> ProviderError:
    """Return the error that the address of this computer cannot be determined."""
    return ProviderError(
        ErrorKind.MISSING,
        "could not detect the public IP address of this computer",
        cause="no web service that reports it responded; the firewall allows SSH from this address only",
        hint=f"set it with {_OPTION} ADDRESS/32, or reach the instances through Identity-Aware Proxy",
        again={"--iap": True},
    )


def open_firewall(account: Account, spec: FleetSpec, cloud: GceOptions) -> SshAccess:
    """Create the rules of a fleet, or update them; the caller's address may have changed.

    Raises:
        ApiError: a call failed.
        ProviderError: the address of this computer cannot be determined.
    """
    if not cloud.firewall:
        return SshAccess(note=_no_firewall(account, spec, cloud))
    sources = ssh_sources(account, cloud)
    try:
        changed = _make_rules(account, spec, cloud, sources)
    except ApiError as error:
        if not account.host_project or not error.is_forbidden:
            raise
        return SshAccess(note=_not_allowed(account, spec, cloud))
    callers = () if cloud.ssh_from or not cloud.external else sources
    return SshAccess(sources, callers, changed, option=_OPTION)


def needed(spec: FleetSpec, account: Account, cloud: GceOptions) -> str:
    """Return a clause with the rules that a network must have for a fleet without rules of its own."""
    source = IAP_RANGE if not cloud.external else "this computer"
    tag = stem(spec.name, account.owner)
    return (
        f"existing rules must allow tcp:{cloud.ssh_port} from {source}, and all ports among instances with tag {tag}"
    )


def _no_firewall(account: Account, spec: FleetSpec, cloud: GceOptions) -> str:
    return f"the fleet has no firewall rules of its own (--no-firewall): {needed(spec, account, cloud)}"


def _not_allowed(account: Account, spec: FleetSpec, cloud: GceOptions) -> str:
    return (
        f"the network belongs to project {account.host_project}, in which these credentials cannot create rules: "
        f"{needed(spec, account, cloud)}"
    )


def _make_rules(account: Account, spec: FleetSpec, cloud: GceOptions, sources: Sequence[str]) -> bool:
    """Create and update the rules; return whether a rule was changed."""
    changed = False
    existing = {rule.name: rule for rule in account.api.firewalls(account.host_project)}
    for body in _rules(account, spec, cloud, sources):
        current = existing.get(body.name)
        if current is None:
            _write(account, spec, "insert", body)
        elif _differs(current, body):
            _write(account, spec, "patch", body)
        else:
            continue
        changed = True
    return changed


def follow_caller(account: Account, spec: FleetSpec, cloud: GceOptions) -> SshAccess:
    """Update the SSH rule of a fleet if it does not admit this computer; create nothing.

    A rule with addresses that the user gave is reported, not changed.

    Raises:
        ApiError: a call failed.
        ProviderError: instances have no external address, and the account of gcloud cannot open tunnels.
    """
    if not cloud.firewall:
        return SshAccess(note=_no_firewall(account, spec, cloud))
    if not cloud.external:
        iap.check(account)
        return SshAccess(denied_by=denied_by(account, spec, cloud, ()))
    callers = caller_addresses(account)
    body, *_ = _rules(account, spec, cloud, callers)
    try:
        return _followed(account, spec, cloud, body, callers)
    except ApiError as error:
        if error.status == _NOT_FOUND:  # `fleet down` deleted it meanwhile
            return SshAccess((), callers)
        if not account.host_project or not error.is_forbidden:
            raise
        return SshAccess(note=_not_allowed(account, spec, cloud))


def _followed(
    account: Account, spec: FleetSpec, cloud: GceOptions, body: compute_v1.Firewall, callers: tuple[str, ...]
) -> SshAccess:
    rules = account.api.firewalls(account.host_project)
    current = next((rule for rule in rules if rule.name == body.name), None)
    if current is None:
        return SshAccess((), callers)
    now = SshAccess(tuple(current.source_ranges), callers, option=_OPTION)
    if callers and now.admits_caller:
        return replace(now, denied_by=denied_by(account, spec, cloud, callers))
    if not callers or cloud.ssh_from:
        return now
    _write(account, spec, "patch", body)
    return SshAccess(callers, callers, changed=True, before=now.open_to, propagation_s=_PROPAGATION_S)


def _rules(account: Account, spec: FleetSpec, cloud: GceOptions, sources: Sequence[str]) -> list[compute_v1.Firewall]:
    """Return the bodies of the rules of a fleet; in the host project of a Shared VPC, they name its own project."""
    project = account.api.project if account.host_project else ""
    return firewalls(spec.name, account.owner, account.user, cloud, sources, project=project)


def _differs(current: compute_v1.Firewall, body: compute_v1.Firewall) -> bool:
    pairs = ((current.source_ranges, body.source_ranges), (current.target_tags, body.target_tags))
    return any(sorted(before) != sorted(after) for before, after in pairs)


def _write(account: Account, spec: FleetSpec, method: Literal["insert", "patch"], body: compute_v1.Firewall) -> None:
    host, is_new = account.host_project, method == "insert"
    words = ("global", "firewalls", *(() if is_new else (body.name,)))
    with account.request(spec.name, method, firewall=body.name, project=host) as request:
        operation = account.api.create(words, body, request.id, project=host, verb="" if is_new else "PATCH")
        account.api.done(operation, "opening the firewall")
