"""Prepare hosts for jobs: install packages, and check that TensorFlow can use the GPUs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from fleet.events import BootstrapProgress, Sink
from fleet.fleets.agents import call_all, open_agents
from fleet.remote.client import AgentClient
from provision.model import FleetSpec, Host
from train.agent.protocol.records import Bootstrap, Bootstrapped, BootstrapStep


def ready(spec: FleetSpec, hosts: Sequence[Host], key: Path, sink: Sink) -> list[Host]:
    """Install the packages of `spec` on all hosts, and check that their GPUs can be used; return fast if all is done.

    Args:
        spec: Packages, and GPUs of each host.
        hosts: The hosts from their provider, each with the interpreter that creates environments.
        key: The fleet's private key.
        sink: Takes BootstrapProgress.

    Returns:
        The hosts, in their order, with the interpreter that finds the packages.

    Raises:
        FleetError: a host cannot be reached or prepared; the error names all of these hosts.
    """
    gpus = spec.options.gpus
    if not spec.packages and not gpus:
        return list(hosts)
    with open_agents(hosts, key) as clients:
        answers = install(clients, "\n".join(spec.packages), sink, gpus=gpus)
    if not spec.packages:
        return list(hosts)
    return [dataclasses.replace(host, python=answer.python) for host, answer in zip(hosts, answers, strict=True)]


def install(
    clients: Sequence[AgentClient],
    requirements: str,
    sink: Sink,
    *,
    gpus: int = 0,
    constraints: str = "",
    on_top: bool = False,
) -> list[Bootstrapped]:
    """Install requirements on the hosts of `clients`, once per content, and check that their GPUs can be used.

    Args:
        clients: The agents.
        requirements: Text of a pip requirements file; empty: nothing is installed.
        sink: Takes BootstrapProgress.
        gpus: Number of GPUs that must be usable on each host; 0: GPUs are not checked.
        constraints: Text of a pip constraints file.
        on_top: Do not install packages again that each host's interpreter finds.

    Returns:
        The interpreter, versions, and GPUs of each host, in their order.

    Raises:
        FleetError: a host cannot be prepared; the error names all of these hosts.
    """

    def install_on(client: AgentClient) -> Bootstrapped:
        host = client.host

        def report(step: BootstrapStep) -> None:
            sink.emit(BootstrapProgress(host.name, step.step, step.detail, step.part, step.whole))

        request = Bootstrap(requirements, host.python, gpus, constraints, on_top)
        answer = client.bootstrap(request, report)
        sink.emit(BootstrapProgress(host.name, "ready", summary(answer), done=True))
        return answer

    return call_all(clients, install_on, "make the hosts ready")


def summary(answer: Bootstrapped) -> str:
    """Return a summary such as ``Python 3.12.3, tensorflow 2.21.0, 2 of Tesla T4``."""
    parts = [f"{name.replace('python', 'Python')} {version}" for name, version in answer.versions.items()]
    names = [gpu.name for gpu in answer.gpus]
    parts += [f"{names.count(name)} of {name}" for name in dict.fromkeys(names)]
    return ", ".join(parts)
