"""Prepare hosts for jobs: wait for root's scripts, install packages, and check that TensorFlow can use the GPUs."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from fleet.events import BootstrapProgress, Sink
from fleet.fleets.agents import call_all, open_agents
from fleet.remote.client import AgentClient
from provision.model import FleetSpec, Host
from train.agent.protocol.records import Bootstrap, Bootstrapped, BootstrapStep


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
        answers = install(
            clients,
            "\n".join(spec.packages),
            sink,
            gpus=spec.options.gpus,
            scripts=spec.options.root_scripts,
            created=created,
        )
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
    scripts: Mapping[str, str] | None = None,
    created: Collection[str] = (),
) -> list[Bootstrapped]:
    """Install requirements on the hosts of `clients`, once per content, and check that their GPUs can be used.

    Args:
        clients: The agents.
        requirements: Text of a pip requirements file; empty: nothing is installed.
        sink: Takes BootstrapProgress.
        gpus: Number of GPUs that must be usable on each host; 0: GPUs are not checked.
        constraints: Text of a pip constraints file.
        on_top: Do not install packages again that each host's interpreter finds.
        scripts: SHA-256 of root's scripts that must have succeeded before, by option.
        created: Hosts on which scripts that failed do not run again.

    Returns:
        The interpreter, versions, and GPUs of each host, in their order.

    Raises:
        FleetError: a host cannot be prepared; the error names all of these hosts.
    """

    def install_on(client: AgentClient) -> Bootstrapped:
        host = client.host

        def report(step: BootstrapStep) -> None:
            sink.emit(BootstrapProgress(host.name, step.step, step.detail, step.part, step.whole))

        again = bool(scripts) and host.name not in created
        request = Bootstrap(requirements, host.python, gpus, constraints, on_top, dict(scripts or {}), again)
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
