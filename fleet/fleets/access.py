"""Choose the hosts of a fleet and reach them: admit this computer through the firewall, and confirm host keys."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from fleet.errors import CancelledError, FleetError, NotFoundError, UnreachableError, UsageError, WrongHostError, fold
from fleet.events import Level, Note, Sink
from fleet.remote.fanout import Outcome, fan_out, raise_failures
from fleet.services import Services
from fleet.steps import Again, NextStep, Step
from provision.keys import fingerprint
from provision.model import FleetSpec, Host, SshAccess, UnknownHost
from provision.names import instance_name, is_instance_name
from provision.provider import Provider

if TYPE_CHECKING:
    from fleet.remote.client import AgentClient

T = TypeVar("T")

Kept = dict[tuple[str, int, str, str], "AgentClient"]
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
        if not self.spec.options.rents or not any(_is_silent(outcome.error) for outcome in outcomes):
            return outcomes
        access, words, steps = self._explain(always=False)
        end = time.monotonic() + access.propagation_s
        while access.changed and (silent := [each.host for each in outcomes if _is_silent(each.error)]):
            again = {outcome.host.name: outcome for outcome in connect(silent)}
            outcomes = [again.get(outcome.host.name, outcome) for outcome in outcomes]
            if time.monotonic() > end:
                break
            self.services.sleep(_PAUSE_S)
        if access.changed:
            return outcomes
        return [
            replace(outcome, error=_add_cause(outcome.error, words, steps))
            if outcome.error is not None and _is_silent(outcome.error)
            else outcome
            for outcome in outcomes
        ]

    def let_in(self, *, make: bool = False) -> SshAccess:
        """Update the firewall rule of the fleet if it does not admit this computer.

        Args:
            make: Create missing rules as well.

        Raises:
            FleetError: the rule cannot be read or changed.
        """
        if not self.spec.options.rents:
            return SshAccess()
        access = self.services.provider(self.spec.options).open_ssh(self.spec, make=make)
        if access.changed and access.before and self.sink is not None:
            now, before = _join_ranges(access.callers), _join_ranges(access.before)
            self.sink.emit(Note(f"SSH was open to {before} only; the firewall rule now admits this computer ({now})"))
        return access

    def explained(self, error: FleetError) -> FleetError:
        """Return `error` with the cause in the firewall added, if there is one."""
        if not self.spec.options.rents or not _is_silent(error):
            return error
        _, words, steps = self._explain(always=True)
        return _add_cause(error, words, steps)

    def reconcile(self, *, make: bool = True) -> None:
        """Set the firewall rules of a fleet as `let_in` does; only warn about a failure: SSH may still work."""
        try:
            self.let_in(make=make)
        except FleetError as error:
            if self.sink is not None:
                self.sink.emit(Note(f"the firewall rules were not updated: {error.message}", Level.WARNING))

    def _explain(self, *, always: bool) -> tuple[SshAccess, str, Sequence[NextStep]]:
        """Return the rule, and the cause and the command if it blocks this computer; otherwise they are empty.

        Args:
            always: Name the ranges that the rule admits even if it admits this computer.
        """
        try:
            access = self.let_in()
        except FleetError as error:
            return SshAccess(), error.message, error.next_steps
        words, steps = f"SSH is open to {_join_ranges(access.open_to)} only", list[NextStep]()
        if access.denied_by or not access.open_to:
            words = access.denied_by or access.note
        elif not access.callers:
            words += f"; the address of this computer is not known: name it with 'fleet up {access.option}'"
        elif access.admits_caller:
            words = words.removesuffix(" only") if always else ""
        else:
            words += f"; you call from {_join_ranges(access.callers)}"
            options = [word for source in (*access.open_to, *access.callers) for word in (access.option, source)]
            steps = [Step("up", *options, fleet=self.spec.name)]
        return access, words, steps


def _is_silent(error: FleetError | None) -> bool:
    """Return whether the error means that no connection to the host was possible."""
    return isinstance(error, UnreachableError) and not isinstance(error, WrongHostError)


def _add_cause(error: FleetError, words: str, steps: Sequence[NextStep]) -> FleetError:
    return error.replaced(cause="; ".join(filter(None, (error.cause, words))), next_steps=steps or None)


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
    unconfirmed = []
    for host, key in shown:
        if key in host.trusted:
            continue
        name, description = _describe_host(host), f"{key.split(maxsplit=1)[0]} {fingerprint(key)}"
        if accept_new or host.checking in ("accept-new", "no"):
            sink.emit(Note(f"{name} is new; accepted its key: {description}"))
        else:
            sink.emit(Note(f"{name} is unknown: {description}"))
            unconfirmed.append(host)
    if unconfirmed:
        _confirm(unconfirmed, services, sink)
    provider.pin(spec.name, {host.host.name: key for host, key in shown})


def _confirm(hosts: Sequence[UnknownHost], services: Services, sink: Sink) -> None:
    """Ask the user to confirm the keys of hosts.

    Raises:
        FleetError: a key is not accepted.
    """
    names = ", ".join(host.inventory_name for host in hosts)
    authorities = ", ".join(sorted({host.authority for host in hosts if host.authority}))
    cause = (
        f"{authorities} names a certificate authority for some, but fleet does not read host "
        "certificates: each key must be in known_hosts"
        if authorities
        else ""
    )
    strict = ", ".join(host.inventory_name for host in hosts if host.checking == "yes")
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


ALL = "all"


def select_hosts(fleet: str, hosts: Sequence[Host], given: str) -> list[Host]:
    """Return the hosts that ``1``, ``worker-1``, ``worker:1``, or ``all`` names; commas separate several names.

    Args:
        fleet: Name of the fleet, for messages.
        hosts: Hosts of the fleet, in their order.
        given: The names.

    Raises:
        UsageError: a name is not that of a host.
        NotFoundError: the fleet does not have such a host.
    """
    if given == ALL:
        return list(hosts)
    by_name = {host.name: host for host in hosts}
    chosen = {}
    for word in given.split(","):
        name = instance_name(int(word)) if word.isascii() and word.isdigit() else word.replace(":", "-")
        if not is_instance_name(name):
            raise UsageError(
                f"{word!r} is not a host",
                hint=f"hosts of fleet {fleet!r}: {fold(by_name)}; tasks are selected with --job",
                next_steps=[Step("status", fleet=fleet)],
            )
        if name not in by_name:
            raise NotFoundError(
                f"fleet {fleet!r} has no host {name!r}",
                cause=f"its hosts are {fold(by_name)}" if len(by_name) > 1 else f"its only host is {fold(by_name)}",
                next_steps=[Step("status", fleet=fleet)],
            )
        chosen[name] = by_name[name]
    return [host for host in hosts if host.name in chosen]
