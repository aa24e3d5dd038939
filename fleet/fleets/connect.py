"""Connect to new instances and prepare their hosts: host keys, SSH, packages, and GPUs."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from fleet.errors import UnreachableError, WrongHostError
from fleet.events import BootstrapProgress, HostConnected, InstanceChanged, Sink, ZoneTried
from fleet.fleets.agents import call_all, open_agents, opened
from fleet.remote.client import AgentClient
from fleet.remote.fanout import raise_failures
from fleet.services import Services
from fleet.settings import read_pip_source
from fleet.state import FleetDirectory
from fleet.steps import Step
from provision.model import FleetSpec, Host, Instance
from provision.names import is_instance_name
from provision.provider import Progress, Provider
from train.agent.protocol.records import RESTARTING, Bootstrap, Bootstrapped, BootstrapStep

_VERB = "make the hosts ready"


def ready(
    spec: FleetSpec, hosts: Sequence[Host], key: Path, sink: Sink, *, created: Collection[str] = ()
) -> list[Host]:
    """Wait for root's scripts, install the packages of `spec` on all hosts, and check that their GPUs can be used.

    It returns fast if all is done.

    Args:
        spec: Scripts, packages, and GPUs of each host.
        hosts: The hosts from their provider, each with the interpreter that creates environments.
        key: The fleet's private key.
        sink: Takes the progress.
        created: Hosts that this command created; on others, scripts that failed run again.

    Returns:
        The hosts, in their order, with the interpreter that finds the packages; empty if one of them restarts.

    Raises:
        FleetError: a host cannot be reached or prepared; the error names all of these hosts.
    """
    if not (spec.packages or spec.options.gpus or spec.options.root_scripts):
        for host in hosts if spec.options.remote else ():
            sink.emit(InstanceChanged(host.name, "ready", done=True))
        return list(hosts)
    restarting: list[str] = []
    with open_agents(hosts, key) as clients:
        request = Bootstrap(
            "\n".join(spec.packages),
            gpus=spec.options.gpus,
            scripts=dict(spec.options.root_scripts),
            source=read_pip_source(spec),
        )
        try:
            answers = install(clients, request, sink, created=created, restarting=restarting)
        except UnreachableError:
            if not restarting:
                raise
            return []
    if not spec.packages:
        return list(hosts)
    return [dataclasses.replace(host, python=answer.python) for host, answer in zip(hosts, answers, strict=True)]


def job_packages(requirements: str, constraints: str, spec: FleetSpec) -> Bootstrap:
    """Return the request for the packages of a job, on top of those that each host's interpreter finds.

    Args:
        requirements: Text of a pip requirements file.
        constraints: Text of a pip constraints file.
        spec: Index and proxy of the fleet.

    Raises:
        UsageError: a variable for a login is not set.
    """
    return Bootstrap(requirements, constraints=constraints, on_top=True, source=read_pip_source(spec))


def install(
    clients: Sequence[AgentClient],
    request: Bootstrap,
    sink: Sink,
    *,
    created: Collection[str] = (),
    restarting: list[str] | None = None,
) -> list[Bootstrapped]:
    """Install requirements on the hosts of `clients`, once per content, and check that their GPUs can be used.

    Args:
        clients: The agents.
        request: The requirements; the interpreter is that of each host.
        sink: Takes BootstrapProgress.
        created: Hosts on which scripts of root that failed do not run again.
        restarting: Takes the hosts that restart for another driver.

    Returns:
        The interpreter, versions, and GPUs of each host of `clients`, in their order.

    Raises:
        FleetError: a host cannot be prepared; the error names all of these hosts.
    """

    def prepare(client: AgentClient) -> Bootstrapped:
        host = client.host

        def report(step: BootstrapStep) -> None:
            if step.step == RESTARTING and restarting is not None:
                restarting.append(host.name)
            sink.emit(BootstrapProgress(host.name, step.step, step.detail, step.part, step.whole))

        again = bool(request.scripts) and host.name not in created
        answer = client.bootstrap(request._replace(python=host.python, again=again), report)
        sink.emit(BootstrapProgress(host.name, "ready", summary(answer), done=True))
        return answer

    machines = {
        (client.host.key_alias, client.host.shared or client.host.root): client for client in reversed(clients)
    }
    first = [client for client in clients if client in machines.values()]  # slots of a machine share its environments
    answers: dict[str, Bootstrapped] = {}
    for some in (first, [client for client in clients if client not in first]):
        answers |= {c.host.name: answer for c, answer in zip(some, call_all(some, prepare, _VERB), strict=True)}
    return [answers[client.host.name] for client in clients]


def summary(answer: Bootstrapped) -> str:
    """Return a summary such as ``Python 3.12.3, tensorflow 2.21.0, 2 of Tesla T4``."""
    parts = [f"{name.replace('python', 'Python')} {version}" for name, version in answer.versions.items()]
    names = [gpu.name for gpu in answer.gpus]
    parts += [f"{names.count(name)} of {name}" for name in dict.fromkeys(names)]
    return ", ".join(parts)


T = TypeVar("T")

SSH_WAIT_S = 300.0
"""Longest time that instances take to boot."""
SSH_WAIT_BOOTED_S = 60.0
"""Longest time that instances take to answer if they were running before."""
BOOTED = "booted"
"""Step of a rented instance when its provider has finished."""
CHOSEN = "chosen"
"""Step of an existing host when its provider has finished."""

_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 5.0


def progress_to(sink: Sink, last: str, label: str = "") -> Progress:
    """Return the callback to which a provider reports its progress.

    Args:
        sink: Takes the events.
        last: The provider's last step for an instance.
        label: Text for that step if further steps follow for the user; empty: it is the last step for the user, too.
    """

    def progress(subject: str, step: str) -> None:
        if is_instance_name(subject) and step == last:
            sink.emit(InstanceChanged(subject, label or step, done=not label))
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
    services: Services,
    sink: Sink,
    *,
    wait_s: float = SSH_WAIT_S,
    created: Collection[str] = (),
) -> list[Host]:
    """Return the hosts when they answer and have everything that tasks need, in the order of `instances`.

    Rented hosts can still be booting: they are awaited for up to `wait_s` seconds. Until the end of the boot, a host
    may reject the login, because its account is created late. It may also present another key than the provider
    reported, because its image replaces the key; then the provider reads the keys again. Of the hosts of a local
    fleet that this command `created`, only the first is asked: they are the same computer, and their sshds listen.
    Hosts that restart for another driver are awaited again.

    Raises:
        UnreachableError: a host does not answer; the message contains the time waited.
        FleetError: a host cannot be prepared.
    """
    wait_s = wait_s if spec.options.rents else 0.0

    def list_hosts() -> list[Host]:
        return list(provider.hosts(spec, instances))

    if spec.options.rents:
        for instance in instances:
            sink.emit(InstanceChanged(instance.name, "waiting for SSH"))
    hosts = _retry_until(list_hosts, wait_s, services)
    waiting = {host.name: host for host in hosts}
    reached: dict[str, Host] = {}

    def record(host: Host) -> None:
        del waiting[host.name]
        reached[host.name] = host
        sink.emit(HostConnected(host.name, host.address))

    alike = () if spec.options.remote else [host.name for host in hosts if host.name in created][1:]

    def connect() -> None:
        asked = [host for name, host in waiting.items() if name not in alike]
        with opened(asked, directory.key, sink=None if spec.options.rents else sink) as outcomes:
            for host, agent in ((outcome.host, outcome.value) for outcome in outcomes):
                if agent is not None:  # the provider names the address for the other hosts, otherwise its agent
                    record(replace(host, private_address=host.private_address or agent.hello.address or host.address))
            if wait_s and any(isinstance(outcome.error, WrongHostError) for outcome in outcomes):
                provider.forget_host_keys()
                waiting.update({host.name: host for host in list_hosts() if host.name in waiting})
            raise_failures(outcomes, "reach the fleet")
        for host in list(waiting.values()):
            record(host)

    _retry_until(connect, wait_s, services)
    listed = [reached[host.name] for host in hosts]
    return ready(spec, listed, directory.key, sink, created=created) or reach(
        spec, instances, provider, directory, services, sink, created=created
    )


def _retry_until(action: Callable[[], T], wait_s: float, services: Services) -> T:
    """Return the result of `action`, repeated until all hosts can be reached.

    Raises:
        UnreachableError: a host cannot be reached within `wait_s` seconds.
    """
    pause, deadline = _PAUSE_S, time.monotonic() + wait_s
    while True:
        try:
            return action()
        except UnreachableError as error:
            left = deadline - time.monotonic()
            if left <= 0 and wait_s:
                message = f"{error.message}; waited {wait_s / 60:g} min for it"
                raise error.replaced(message=message, hint="", next_steps=[Step("up")]) from error
            if left <= 0:
                raise
        services.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_PAUSE_S)
