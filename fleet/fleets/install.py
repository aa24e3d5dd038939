"""Prepare hosts for jobs: wait for root's scripts, install packages, and check that TensorFlow can use the GPUs."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from pathlib import Path

from fleet.events import BootstrapProgress, Sink
from fleet.fleets.agents import call_all, open_agents
from fleet.remote.client import AgentClient
from fleet.settings import read_pip_source
from provision.model import FleetSpec, Host
from train.agent.protocol.records import Bootstrap, Bootstrapped, BootstrapStep

_VERB = "make the hosts ready"

_Machine = tuple[str, str]


def needs_preparation(spec: FleetSpec) -> bool:
    """Return whether agents prepare the hosts: they wait for root's scripts, install packages, or check GPUs."""
    return bool(spec.packages or spec.options.gpus or spec.options.root_scripts)


def ready(
    spec: FleetSpec, hosts: Sequence[Host], key: Path, sink: Sink, *, created: Collection[str] = ()
) -> list[Host]:
    """Wait for root's scripts, install the packages of `spec` on all hosts, and check that their GPUs can be used.

    It returns fast if all is done.

    Args:
        spec: Scripts, packages, and GPUs of each host.
        hosts: The hosts from their provider, each with the interpreter that creates environments.
        key: The fleet's private key.
        sink: Takes BootstrapProgress.
        created: Hosts that this command created; on others, scripts that failed run again.

    Returns:
        The hosts, in their order, with the interpreter that finds the packages.

    Raises:
        FleetError: a host cannot be reached or prepared; the error names all of these hosts.
    """
    if not needs_preparation(spec):
        return list(hosts)
    with open_agents(hosts, key) as clients:
        request = Bootstrap(
            "\n".join(spec.packages),
            gpus=spec.options.gpus,
            scripts=dict(spec.options.root_scripts),
            source=read_pip_source(spec),
        )
        answers = install(clients, request, sink, created=created)
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
    clients: Sequence[AgentClient], request: Bootstrap, sink: Sink, *, created: Collection[str] = ()
) -> list[Bootstrapped]:
    """Install requirements on the hosts of `clients`, once per content, and check that their GPUs can be used.

    Args:
        clients: The agents.
        request: The requirements; the interpreter is that of each host.
        sink: Takes BootstrapProgress.
        created: Hosts on which scripts of root that failed do not run again.

    Returns:
        The interpreter, versions, and GPUs of each host of `clients`, in their order.

    Raises:
        FleetError: a host cannot be prepared; the error names all of these hosts.
    """

    def prepare(client: AgentClient) -> Bootstrapped:
        host = client.host

        def report(step: BootstrapStep) -> None:
            sink.emit(BootstrapProgress(host.name, step.step, step.detail, step.part, step.whole))

        again = bool(request.scripts) and host.name not in created
        answer = client.bootstrap(request._replace(python=host.python, again=again), report)
        sink.emit(BootstrapProgress(host.name, "ready", summary(answer), done=True))
        return answer

    first: dict[_Machine, AgentClient] = {}
    for client in clients:
        first.setdefault(_machine(client.host), client)  # slots of a machine share its environments
    others = [client for client in clients if client not in first.values()]
    answers: dict[str, Bootstrapped] = {}
    for some in filter(None, ([*first.values()], others)):
        answers |= {c.host.name: answer for c, answer in zip(some, call_all(some, prepare, _VERB), strict=True)}
    return [answers[client.host.name] for client in clients]


def _machine(host: Host) -> _Machine:
    """Return a value that is equal for the slots of a machine."""
    return host.key_alias, host.shared or host.root


def summary(answer: Bootstrapped) -> str:
    """Return a summary such as ``Python 3.12.3, tensorflow 2.21.0, 2 of Tesla T4``."""
    parts = [f"{name.replace('python', 'Python')} {version}" for name, version in answer.versions.items()]
    names = [gpu.name for gpu in answer.gpus]
    parts += [f"{names.count(name)} of {name}" for name in dict.fromkeys(names)]
    return ", ".join(parts)
