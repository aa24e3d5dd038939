"""Host keys for which nothing vouches are shown to the user, and pinned on the user's word alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fleet.errors import CancelledError, FleetError, UnreachableError, UsageError
from fleet.events import Note, Sink
from fleet.ports import Ports
from fleet.steps import Again
from fleet.translation import translated
from provision.keys import fingerprint
from provision.model import FleetSpec

if TYPE_CHECKING:
    from provision.static.provider import StaticProvider, Stranger

Shown = Sequence[tuple["Stranger", str]]
"""Hosts, each with the key that it shows."""

_ACCEPT = "--accept-new accepts hosts that are not known yet, never one whose key has changed"


def trust(spec: FleetSpec, provider: StaticProvider, ports: Ports, sink: Sink, *, accept_new: bool) -> None:
    """Pin the keys of hosts that nothing vouches for, once the user has seen them.

    Args:
        spec: Of the fleet.
        provider: Knows the hosts, and keeps their keys.
        ports: Asks the user.
        sink: Takes what is shown.
        accept_new: The user has given the word for all of them beforehand.

    Raises:
        UnreachableError: a host does not answer, or shows a key that was revoked.
        UsageError: nobody can be asked, or the SSH configuration forbids it.
        CancelledError: the user said no.
    """
    with translated():
        strangers = provider.strangers(spec)
    if not strangers:
        return
    from fleet.remote.fanout import fan_out, raise_failures
    from fleet.remote.ssh.host_key import fetch_host_key

    outcomes = fan_out([stranger.host for stranger in strangers], fetch_host_key)
    shown = list(zip(strangers, raise_failures(outcomes, "read the host keys"), strict=True))
    for stranger, key in shown:
        if key in stranger.revoked:
            raise UnreachableError(
                f"{_called(stranger)} shows a host key that your known_hosts revokes: {fingerprint(key)}",
                hint="ask the administrator of the host",
            )
    _word(shown, ports, sink, accept_new=accept_new)
    with translated():
        provider.pin(spec.name, {stranger.host.name: key for stranger, key in shown})


def _word(shown: Shown, ports: Ports, sink: Sink, *, accept_new: bool) -> None:
    """The user's word for all of `shown`: in known_hosts, the SSH configuration, the command line, or on being asked.

    Raises:
        FleetError: there is none.
    """
    new = [(stranger, key) for stranger, key in shown if key not in stranger.trusted]
    unasked = [one for one in new if accept_new or one[0].checking in ("accept-new", "no")]
    left = [one for one in new if one not in unasked]
    for stranger, key in unasked:
        sink.emit(Note(f"{_called(stranger)} is new, and accepted: {_described(key)}"))
    for stranger, key in left:
        sink.emit(Note(f"{_called(stranger)} is not known yet: {_described(key)}"))
    if not left:
        return
    names = ", ".join(stranger.place for stranger, _ in left)
    authorities = sorted({stranger.authority for stranger, _ in left if stranger.authority})
    cause = (
        f"{', '.join(authorities)} names a certificate authority for some, and host certificates are not read here: "
        "their keys must be known themselves"
        if authorities
        else ""
    )
    strict = [stranger.place for stranger, _ in left if stranger.checking == "yes"]
    if strict:
        raise UsageError(
            f"nothing vouches for the host keys of {names}",
            cause=cause or f"StrictHostKeyChecking yes holds for {', '.join(strict)}",
            hint=_ACCEPT,
            next_steps=[Again({"--accept-new": True}, "up")],
        )
    if ports.vouch is None:
        raise UsageError(
            f"nothing vouches for the host keys of {names}, and there is no terminal on which to ask you",
            cause=cause,
            hint=_ACCEPT,
            next_steps=[Again({"--accept-new": True}, "up")],
        )
    if cause:
        sink.emit(Note(cause))
    if not ports.vouch(f"Are these the keys of {names}?"):
        raise _declined()


def _declined() -> FleetError:
    return CancelledError(
        "no host key was accepted, and nothing was started",
        hint="compare the fingerprints with those on the hosts: ssh-keygen -l -f /etc/ssh/ssh_host_ed25519_key.pub",
    )


def _called(stranger: Stranger) -> str:
    host = stranger.host
    end = host.address if host.port == 22 else f"{host.address} port {host.port}"
    return f"{stranger.place} ({host.name}, {end})"


def _described(key: str) -> str:
    return f"{key.split(maxsplit=1)[0]} {fingerprint(key)}"
