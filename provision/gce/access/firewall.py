"""Create and update the firewall rules of a fleet, for SSH and for the traffic among its instances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from provision.gce.access import iap
from provision.gce.access.denial import POLICIES_FIRST, Connection, denying_rule
from provision.gce.access.public_ip import public_addresses
from provision.gce.account import Account
from provision.gce.catalog.networks import network_of
from provision.gce.options import GceOptions
from provision.gce.options.account import is_loopback
from provision.gce.rest.api import ApiError, Json
from provision.gce.rest.bodies.labels import stem
from provision.gce.rest.bodies.network import IAP_RANGE, firewalls
from provision.model import FleetSpec, SshAccess
from provision.provider import ErrorKind, ProviderError

_OPTION = "--ssh-from"
_NOT_FOUND = 404
_PROPAGATION_S = 30.0
_DECISIVE = ("sourceRanges", "targetTags")


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
    policies_first = network.get("networkFirewallPolicyEnforcementOrder") == POLICIES_FIRST
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
        cause="neither a name server (UDP) nor a web service (HTTPS) responded; the firewall allows SSH from this "
        "address only",
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
    existing = {str(rule["name"]): rule for rule in account.api.firewalls(account.host_project)}
    for body in _rules(account, spec, cloud, sources):
        current = existing.get(body["name"])
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
    account: Account, spec: FleetSpec, cloud: GceOptions, body: Json, callers: tuple[str, ...]
) -> SshAccess:
    rules = account.api.firewalls(account.host_project)
    current = next((rule for rule in rules if rule["name"] == body["name"]), None)
    if current is None:
        return SshAccess((), callers)
    now = SshAccess(tuple(str(text) for text in current.get("sourceRanges", ())), callers, option=_OPTION)
    if callers and now.admits_caller:
        return replace(now, denied_by=denied_by(account, spec, cloud, callers))
    if not callers or cloud.ssh_from:
        return now
    _write(account, spec, "patch", body)
    return SshAccess(callers, callers, changed=True, before=now.open_to, propagation_s=_PROPAGATION_S)


def _rules(account: Account, spec: FleetSpec, cloud: GceOptions, sources: Sequence[str]) -> list[Json]:
    """Return the bodies of the rules of a fleet; in the host project of a Shared VPC, they name its own project."""
    project = account.api.project if account.host_project else ""
    return firewalls(spec.name, account.owner, account.user, cloud, sources, project=project)


def _differs(current: Json, body: Json) -> bool:
    return any(sorted(current.get(key, ())) != sorted(body.get(key, ())) for key in _DECISIVE)


def _write(account: Account, spec: FleetSpec, method: Literal["insert", "patch"], body: Json) -> None:
    host = account.host_project
    with account.request(spec.name, method, firewall=body["name"], project=host) as request:
        account.api.done(account.api.write_firewall(method, body, request.id, host), "opening the firewall")
