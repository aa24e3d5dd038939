"""Firewall rules of a fleet: who may use SSH, and that its instances reach each other."""

from __future__ import annotations

from provision.gce.account import Account
from provision.gce.address import public_addresses
from provision.gce.api import ApiError, Json, is_loopback
from provision.gce.requests import firewalls
from provision.model import CloudSpec, FleetSpec, SshAccess
from provision.provider import ProviderError

_NOT_FOUND = 404
_DECISIVE = ("sourceRanges", "targetTags")


def caller_addresses(account: Account) -> tuple[str, ...]:
    """Return the addresses from which this computer reaches instances; empty if they cannot be determined."""
    found = public_addresses(local=is_loopback(account.api.endpoint))
    return tuple(f"{address}/32" for address in found)


def ssh_sources(account: Account, cloud: CloudSpec) -> tuple[str, ...]:
    """Return who may use SSH: the addresses that the user named, else this computer alone.

    Raises:
        ProviderError: the address of this computer cannot be determined.
    """
    if cloud.ssh_from or not cloud.external:
        return cloud.ssh_from
    found = caller_addresses(account)
    if not found:
        raise unknown_address()
    return found


def unknown_address() -> ProviderError:
    """Return the error that the address of this computer cannot be determined."""
    return ProviderError(
        "missing",
        "The public address of this computer cannot be determined",
        cause="neither a name server (UDP) nor a web service (HTTPS) answered, and the firewall allows SSH from this "
        "address alone",
        hint="name your address with --ssh-from ADDRESS/32, or reach the instances through Identity-Aware Proxy",
        again={"--iap": True},
    )


def open_firewall(account: Account, spec: FleetSpec, cloud: CloudSpec) -> SshAccess:
    """Create the rules of a fleet, or update them; the caller's address may have changed.

    Raises:
        ApiError: a call failed.
        ProviderError: the address of this computer cannot be determined.
    """
    sources = ssh_sources(account, cloud)
    there = {str(one["name"]): one for one in account.api.firewalls()}
    changed = False
    for body in firewalls(spec.name, account.owner, account.user, cloud, sources):
        known = there.get(body["name"])
        if known is None:
            with account.insertion(spec.name, "insert", firewall=body["name"]) as request_id:
                account.api.done(account.api.insert_firewall(body, request_id), "opening the firewall")
        elif _differs(known, body):
            _patch(account, spec, body)
        else:
            continue
        changed = True
    return SshAccess(sources, () if cloud.ssh_from or not cloud.external else sources, changed)


def follow_caller(account: Account, spec: FleetSpec, cloud: CloudSpec) -> SshAccess:
    """Update the SSH rule of a fleet if it does not admit this computer; create nothing.

    A rule with addresses that the user named is reported, not changed.

    Raises:
        ApiError: a call failed.
    """
    if not cloud.external:
        return SshAccess()
    callers = caller_addresses(account)
    body, *_ = firewalls(spec.name, account.owner, account.user, cloud, callers)
    known = next((one for one in account.api.firewalls() if one["name"] == body["name"]), None)
    if known is None:
        return SshAccess((), callers)
    now = SshAccess(tuple(str(text) for text in known.get("sourceRanges", ())), callers)
    if not callers or now.admits_caller or cloud.ssh_from:
        return now
    try:
        _patch(account, spec, body)
    except ApiError as error:
        if error.status != _NOT_FOUND:  # else `fleet down` was faster
            raise
        return SshAccess((), callers)
    return SshAccess(callers, callers, changed=True, before=now.open_to)


def _differs(known: Json, body: Json) -> bool:
    return any(sorted(known.get(key, ())) != sorted(body.get(key, ())) for key in _DECISIVE)


def _patch(account: Account, spec: FleetSpec, body: Json) -> None:
    with account.insertion(spec.name, "patch", firewall=body["name"]) as request_id:
        account.api.done(account.api.patch_firewall(body, request_id), "opening the firewall")
