"""Reach the hosts of a fleet: admit this computer through the firewall, and confirm unknown host keys."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from fleet.errors import CancelledError, FleetError, UnreachableError, UsageError, WrongHostError
from fleet.events import Level, Note, Sink
from fleet.remote.client import AgentClient
from fleet.remote.fanout import Outcome, fan_out, raise_failures
from fleet.services import Services
from fleet.steps import Again, NextStep, Step
from provision.keys import fingerprint
from provision.model import FleetSpec, Host, SshAccess, UnknownHost
from provision.provider import Provider

T = TypeVar("T")

Kept = dict[tuple[str, int, str, str], AgentClient]
"""Open agents by address, port, host key, and directory on the host."""

_PAUSE_S = 1.0


@dataclass(frozen=True)
class Access:
    """Repairs the access to the hosts of a fleet.

    Attributes:
        spec: The fleet.
        services: The outside world.
        sink: Takes a note if a rule was changed; None: no note is emitted.
        kept: The open agents, for the next requests of the same command, which closes them; None: they are
            closed after each.
    """

    spec: FleetSpec
    services: Services
    sink: Sink | None = None
    kept: Kept | None = None

    def retried(
        self, outcomes: list[Outcome[T]], connect: Callable[[Sequence[Host]], list[Outcome[T]]]
    ) -> list[Outcome[T]]:
        """Return `outcomes` after a second try if a firewall rule blocked this computer.

        Args:
            outcomes: The outcomes of connecting to each host.
            connect: Connects to some of the hosts again.
        """
        failed = [outcome.host for outcome in outcomes if _is_silent(outcome.error)]
        if not self.spec.options.rents or not failed:
            return outcomes
        try:
            access = self.let_in()
            obstacle = self._obstacle(access)
        except FleetError as error:
            access, obstacle = SshAccess(), (error.message, error.next_steps)
        if access.changed:
            return self._retry(outcomes, connect, access.propagation_s)
        return [
            replace(outcome, error=_add_cause(outcome.error, *obstacle))
            if outcome.error is not None and _is_silent(outcome.error)
            else outcome
            for outcome in outcomes
        ]

    def let_in(self) -> SshAccess:
        """Update the firewall rule of the fleet if it does not admit this computer.

        Raises:
            FleetError: the rule cannot be read or changed.
        """
        if not self.spec.options.rents:
            return SshAccess()
        provider = self.services.provider(self.spec.options)
        access = provider.open_ssh(self.spec)
        self.report(access)
        return access

    def report(self, access: SshAccess) -> None:
        """Emit a note if a rule was changed."""
        if access.changed and access.before and self.sink is not None:
            now, before = _join_ranges(access.callers), _join_ranges(access.before)
            self.sink.emit(Note(f"SSH was open to {before} only; the firewall rule now admits this computer ({now})"))

    def explained(self, error: FleetError) -> FleetError:
        """Return `error` with the cause in the firewall added, if there is one."""
        if not self.spec.options.rents or not _is_silent(error):
            return error
        try:
            words, steps = self._obstacle(self.let_in(), always=True)
        except FleetError as second:
            words, steps = second.message, ()
        return _add_cause(error, words, steps)

    def reconcile(self, *, make: bool = True) -> None:
        """Set the firewall rules of a fleet as its spec requires; only warn about a failure: SSH may still work.

        Args:
            make: Create missing rules as well; otherwise only admit this computer.
        """
        if not self.spec.options.rents:
            return
        try:
            access = self.services.provider(self.spec.options).open_ssh(self.spec, make=make)
        except FleetError as error:
            if self.sink is not None:
                self.sink.emit(Note(f"the firewall rules were not updated: {error.message}", Level.WARNING))
        else:
            self.report(access)

    def _retry(
        self,
        outcomes: list[Outcome[T]],
        connect: Callable[[Sequence[Host]], list[Outcome[T]]],
        timeout_s: float,
    ) -> list[Outcome[T]]:
        by_host = {outcome.host.name: outcome for outcome in outcomes}
        end = time.monotonic() + timeout_s
        while silent := [outcome.host for outcome in by_host.values() if _is_silent(outcome.error)]:
            by_host |= {outcome.host.name: outcome for outcome in connect(silent)}
            if time.monotonic() > end:
                break
            self.services.sleep(_PAUSE_S)
        return [by_host[outcome.host.name] for outcome in outcomes]

    def _obstacle(self, access: SshAccess, *, always: bool = False) -> tuple[str, Sequence[NextStep]]:
        """Return the cause and the command if the rule blocks this computer; empty texts if it does not."""
        if access.denied_by or not access.open_to:
            return access.denied_by or access.note, ()
        if not access.callers:
            words = f"SSH is open to {_join_ranges(access.open_to)} only; the address of this computer is not known"
            return f"{words}: name it with 'fleet up {access.option}'", ()
        if access.admits_caller:
            return (f"SSH is open to {_join_ranges(access.open_to)}" if always else ""), ()
        words = f"SSH is open to {_join_ranges(access.open_to)} only; you call from {_join_ranges(access.callers)}"
        options = [word for source in (*access.open_to, *access.callers) for word in (access.option, source)]
        return words, [Step("up", *options, fleet=self.spec.name)]


def _is_silent(error: FleetError | None) -> bool:
    """Return whether the error means that no connection to the host was possible."""
    return isinstance(error, UnreachableError) and not isinstance(error, WrongHostError)


def _add_cause(error: FleetError, words: str, steps: Sequence[NextStep]) -> FleetError:
    cause = "; ".join(filter(None, (error.cause, words)))
    return error.replaced(cause=cause, next_steps=steps or None)


def _join_ranges(ranges: Sequence[str]) -> str:
    return ", ".join(source.removesuffix("/32") for source in ranges)


def is_reachable_now(host: Host, key: Path, access: Access) -> bool:
    """Return whether a host that could not be reached can be reached now; False if it always could.

    Raises:
        UnreachableError: it does not answer.
    """
    from fleet.remote.ssh.connection import connect

    def probe(hosts: Sequence[Host]) -> list[Outcome[None]]:
        return fan_out(hosts, lambda each: connect(each, key).close())

    outcomes = probe([host])
    if all(outcome.error is None for outcome in outcomes):
        return False
    raise_failures(access.retried(outcomes, probe), "open a session")
    return True


Shown = Sequence[tuple[UnknownHost, str]]
"""Hosts, each with the key that it presents."""


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
    from fleet.remote.ssh.connection import fetch_host_key

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
    strict = ", ".join(host.inventory_name for host, _ in left if host.checking == "yes")
    if strict or services.confirm_keys is None:
        raise UsageError(
            f"the host keys of {names} are unknown{'' if strict else ', and confirmation requires a terminal'}",
            cause=cause or (f"StrictHostKeyChecking is yes for {strict}" if strict else ""),
            hint="--accept-new accepts unknown hosts, but no host whose key has changed",
            next_steps=[Again({"--accept-new": True}, "up")],
        )
    if cause:
        sink.emit(Note(cause))
    if not services.confirm_keys(f"Are these the keys of {names}?"):
        raise CancelledError(
            "host keys rejected; nothing was started",
            hint="compare the fingerprints with those on the hosts: "
            "ssh-keygen -l -f /etc/ssh/ssh_host_ed25519_key.pub",
        )


def _describe_host(unknown: UnknownHost) -> str:
    host = unknown.host
    end = host.address if host.port == 22 else f"{host.address} port {host.port}"
    return f"{unknown.inventory_name} ({host.name}, {end})"


def _describe_key(key: str) -> str:
    return f"{key.split(maxsplit=1)[0]} {fingerprint(key)}"
