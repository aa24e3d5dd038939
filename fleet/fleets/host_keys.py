"""Show unconfirmed host keys to the user, and pin them only if the user accepts them."""

from __future__ import annotations

from collections.abc import Sequence

from fleet.errors import CancelledError, FleetError, UnreachableError, UsageError
from fleet.events import Note, Sink
from fleet.remote.fanout import fan_out, raise_failures
from fleet.services import Services
from fleet.steps import Again
from provision.keys import fingerprint
from provision.model import FleetSpec, UnknownHost
from provision.provider import Provider

Shown = Sequence[tuple[UnknownHost, str]]
"""Hosts, each with the key that it presents."""

_ACCEPT = "--accept-new accepts unknown hosts, but no host whose key has changed"


def confirm_host_keys(
    spec: FleetSpec, provider: Provider, services: Services, sink: Sink, *, accept_new: bool
) -> None:
    """Pin the keys of unknown hosts after the user has confirmed them.

    Args:
        spec: The fleet.
        provider: Lists the unknown hosts, and stores their keys.
        services: Asks the user.
        sink: Takes notes about the keys.
        accept_new: The user has accepted all new keys in advance.

    Raises:
        UnreachableError: a host does not answer, or presents a key that was revoked.
        UsageError: the user cannot be asked, or the SSH configuration forbids new keys.
        CancelledError: the user declined.
    """
    unknown = provider.unknown_hosts(spec)
    if not unknown:
        return
    from fleet.remote.ssh.host_key import fetch_host_key

    outcomes = fan_out([unknown_host.host for unknown_host in unknown], fetch_host_key)
    shown = list(zip(unknown, raise_failures(outcomes, "read the host keys"), strict=True))
    for host, key in shown:
        if key in host.revoked:
            raise UnreachableError(
                f"{_describe_host(host)} presented a host key that your known_hosts revokes: {fingerprint(key)}",
                hint="ask the administrator of the host",
            )
    _confirm(shown, services, sink, accept_new=accept_new)
    provider.pin(spec.name, {host.host.name: key for host, key in shown})


def _confirm(shown: Shown, services: Services, sink: Sink, *, accept_new: bool) -> None:
    """Get the user's consent to all keys in `shown`: from known_hosts, SSH configuration, an option, or a question.

    Raises:
        FleetError: a key is not accepted.
    """
    new = [(host, key) for host, key in shown if key not in host.trusted]
    unasked = [entry for entry in new if accept_new or entry[0].checking in ("accept-new", "no")]
    left = [entry for entry in new if entry not in unasked]
    for host, key in unasked:
        sink.emit(Note(f"{_describe_host(host)} is new; accepted its key: {_describe_key(key)}"))
    for host, key in left:
        sink.emit(Note(f"{_describe_host(host)} is unknown: {_describe_key(key)}"))
    if not left:
        return
    names = ", ".join(host.inventory_name for host, _ in left)
    authorities = sorted({host.authority for host, _ in left if host.authority})
    cause = (
        f"{', '.join(authorities)} names a certificate authority for some, but fleet does not read host "
        "certificates: each key must be in known_hosts"
        if authorities
        else ""
    )
    strict = [host.inventory_name for host, _ in left if host.checking == "yes"]
    if strict:
        raise UsageError(
            f"the host keys of {names} are unknown",
            cause=cause or f"StrictHostKeyChecking is yes for {', '.join(strict)}",
            hint=_ACCEPT,
            next_steps=[Again({"--accept-new": True}, "up")],
        )
    if services.confirm_keys is None:
        raise UsageError(
            f"the host keys of {names} are unknown, and confirmation requires a terminal",
            cause=cause,
            hint=_ACCEPT,
            next_steps=[Again({"--accept-new": True}, "up")],
        )
    if cause:
        sink.emit(Note(cause))
    if not services.confirm_keys(f"Are these the keys of {names}?"):
        raise _declined()


def _declined() -> FleetError:
    return CancelledError(
        "host keys rejected; nothing was started",
        hint="compare the fingerprints with those on the hosts: ssh-keygen -l -f /etc/ssh/ssh_host_ed25519_key.pub",
    )


def _describe_host(unknown: UnknownHost) -> str:
    host = unknown.host
    end = host.address if host.port == 22 else f"{host.address} port {host.port}"
    return f"{unknown.inventory_name} ({host.name}, {end})"


def _describe_key(key: str) -> str:
    return f"{key.split(maxsplit=1)[0]} {fingerprint(key)}"
