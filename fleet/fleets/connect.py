"""From instances to hosts that answer: host keys, SSH, and what must be on each host."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from fleet.errors import UnreachableError
from fleet.events import HostConnected, InstanceChanged, Sink, ZoneTried
from fleet.fleets.agents import opened
from fleet.fleets.install import ready
from fleet.ports import Ports
from fleet.state import FleetDirectory
from fleet.steps import Step
from fleet.translation import translated
from provision.model import FleetSpec, Host, Instance
from provision.names import is_instance_name
from provision.provider import Progress, Provider

if TYPE_CHECKING:
    from collections.abc import Callable

    from fleet.remote.channel import AgentChannel

T = TypeVar("T")

SSH_WAIT_S = 300.0
"""Longest time that instances take to boot."""
SSH_WAIT_BOOTED_S = 60.0
"""The same for instances that were up before."""
BOOTED = "booted"
"""What a rented instance is when its provider is done with it."""
CHOSEN = "chosen"
"""The same of a host that exists already."""

_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 5.0


def progress_to(sink: Sink, last: str, told: str = "") -> Progress:
    """What a provider calls with its progress.

    Args:
        sink: Takes the events.
        last: The provider's last step with an instance.
        told: What that step is called where it is not the last one for the user; empty: it is.
    """

    def progress(subject: str, step: str) -> None:
        if is_instance_name(subject) and step == last:
            sink.emit(InstanceChanged(subject, told or step, done=not told))
        elif is_instance_name(subject):
            sink.emit(InstanceChanged(subject, step))
        else:
            sink.emit(ZoneTried(subject, step))

    return progress


def reach(
    spec: FleetSpec,
    instances: Sequence[Instance],
    provider: Provider,
    directory: FleetDirectory,
    ports: Ports,
    sink: Sink,
    *,
    wait_s: float = SSH_WAIT_S,
) -> list[Host]:
    """Hosts that answer, in the order of `instances`, with all on them that tasks need.

    Rented ones may still be booting: they are waited for, up to `wait_s` seconds.

    Raises:
        UnreachableError: one does not answer; the sentence says how long it was waited for.
        FleetError: what is needed cannot be put on one.
    """
    wait_s = wait_s if spec.options.rents else 0.0

    def ask() -> list[Host]:
        with translated():
            return list(provider.hosts(spec, instances))

    if spec.options.rents:
        for instance in instances:
            sink.emit(InstanceChanged(instance.name, "waiting for SSH"))
    hosts = _until(ask, wait_s, ports)
    waiting = {host.name: host for host in hosts}
    reached: dict[str, Host] = {}

    def connect() -> None:
        with opened(list(waiting.values()), directory.key) as outcomes:
            from fleet.remote.fanout import raise_failures

            for outcome in outcomes:
                if outcome.value is not None:
                    del waiting[outcome.host.name]
                    reached[outcome.host.name] = _with_address(outcome.host, outcome.value)
                    sink.emit(HostConnected(outcome.host.name, outcome.host.address))
            raise_failures(outcomes, "reach the fleet")

    _until(connect, wait_s, ports)
    hosts = ready(spec, [reached[host.name] for host in hosts], directory.key, sink)
    told = bool(spec.packages or spec.options.gpus)
    if spec.options.remote and not told:  # else that was told with what they have
        for host in hosts:
            sink.emit(InstanceChanged(host.name, "ready", done=True))
    return hosts


def _with_address(host: Host, agent: AgentChannel) -> Host:
    """`host` with an address for the others: where its provider knows none, the one that the host tells."""
    return host if host.private_address else replace(host, private_address=agent.hello.address or host.address)


def _until(action: Callable[[], T], wait_s: float, ports: Ports) -> T:
    """What `action` returns, once nothing is unreachable any more.

    Raises:
        UnreachableError: something still is after `wait_s` seconds.
    """
    pause, deadline = _PAUSE_S, time.monotonic() + wait_s
    while True:
        try:
            return action()
        except UnreachableError as error:
            left = deadline - time.monotonic()
            if left <= 0 and wait_s:
                message = f"{error.message}; waited {wait_s / 60:g} min for it"
                raise UnreachableError(message, cause=error.cause, next_steps=[Step("up")]) from error
            if left <= 0:
                raise
        ports.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_PAUSE_S)
