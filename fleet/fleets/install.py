"""Prepare hosts for jobs: wait for root's scripts, install packages, and check that TensorFlow can use the GPUs."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from fleet.errors import FleetError
from fleet.events import BootstrapProgress, Note, Sink
from fleet.fleets.agents import call_all, call_each, open_agents
from fleet.remote.client import AgentClient, RefusedError
from fleet.remote.fanout import Outcome, raise_failures
from fleet.remote.upload.environments import COPIES_AT_ONCE, CopyPlan, UselessError
from fleet.settings import read_pip_source
from provision.model import FleetSpec, Host
from train.agent.protocol.records import (
    Bootstrap,
    Bootstrapped,
    BootstrapStep,
    NeedEnvironment,
    ShareEnvironment,
)

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
    clients: Sequence[AgentClient],
    request: Bootstrap,
    sink: Sink,
    *,
    created: Collection[str] = (),
    sources: Sequence[AgentClient] = (),
) -> list[Bootstrapped]:
    """Install requirements on the hosts of `clients`, once per content, and check that their GPUs can be used.

    Args:
        clients: The agents.
        request: The requirements; the interpreter is that of each host.
        sink: Takes BootstrapProgress.
        created: Hosts on which scripts of root that failed do not run again.
        sources: Agents of other hosts, from which these hosts may copy the environment.

    Returns:
        The interpreter, versions, and GPUs of each host of `clients`, in their order.

    Raises:
        FleetError: a host cannot be prepared; the error names all of these hosts.
    """
    return _Installation(request, sink, created).run(clients, sources)


class _Installation:
    """Install packages on hosts: if possible, one host downloads them, and the others copy its environment.

    Args:
        request: The requirements; the interpreter is that of each host.
        sink: Takes BootstrapProgress.
        created: Hosts on which scripts of root that failed do not run again.
    """

    def __init__(self, request: Bootstrap, sink: Sink, created: Collection[str]) -> None:
        self._request = request
        self._sink = sink
        self._created = created
        self._secret = secrets.token_hex(32)
        self._plans: dict[str, CopyPlan] = {}  # by the keys of environments

    def run(self, clients: Sequence[AgentClient], sources: Sequence[AgentClient]) -> list[Bootstrapped]:
        """Return the answer of each host of `clients`, in their order.

        Raises:
            FleetError: a host cannot be prepared.
        """
        waits = bool(self._request.requirements) and len(clients) + len(sources) > 1
        answers = call_all(clients, lambda client: self._ask(client, self._request._replace(waits=waits)), _VERB)
        complete: dict[str, Bootstrapped] = {}
        lacking: list[tuple[AgentClient, str]] = []
        for client, answer in zip(clients, answers, strict=True):
            if isinstance(answer, Bootstrapped):
                complete[client.host.name] = answer
            else:
                lacking.append((client, answer.key))
        if lacking:
            complete |= self._find_sources(sources)
            complete |= self._complete([*clients, *sources], complete, lacking)
        return [complete[client.host.name] for client in clients]

    def _find_sources(self, sources: Sequence[AgentClient]) -> dict[str, Bootstrapped]:
        """Return the answers of the hosts of `sources` that have the environment; change nothing on them."""
        request = self._request._replace(gpus=0, scripts={}, waits=True)
        answers = call_each(
            sources, lambda client: client.bootstrap(request._replace(python=client.host.python), lambda _: None)
        )
        return {item.host.name: item.value for item in answers if isinstance(item.value, Bootstrapped)}

    def _complete(
        self,
        clients: Sequence[AgentClient],
        complete: Mapping[str, Bootstrapped],
        lacking: Sequence[tuple[AgentClient, str]],
    ) -> dict[str, Bootstrapped]:
        """Create the missing environments; return the answers of these hosts by their names.

        Args:
            clients: All agents.
            complete: The answers of the hosts that have their environments.
            lacking: The other agents, with the keys of their environments.
        """
        makers: dict[_Machine, tuple[AgentClient, str]] = {}  # slots of one machine share its environments
        for client, key in lacking:
            makers.setdefault(_machine(client.host), (client, key))
        keys = {client.host.name: key for client, key in makers.values()}
        holders = [
            client for key in dict.fromkeys(keys.values()) for client in self._plan(key, keys, clients, complete)
        ]

        def work(client: AgentClient) -> Bootstrapped | None:
            name = client.host.name
            if name in keys:
                return self._obtain(client, self._plans[keys[name]])
            self._share(client, complete[name], self._plans[complete[name].environment])
            return complete[name]

        installers = {plan.installer for plan in self._plans.values()}
        ordered = sorted((client for client, _ in makers.values()), key=lambda item: item.host.name not in installers)
        outcomes = call_each([*holders, *ordered], work)  # no host waits for a host that comes after it
        failed = [client for client, key in makers.values() if self._plans[key].can_repair(client.host.name)]
        done = _by_name([*outcomes, *call_each(failed, work)])
        # GPUs are checked when all copies have ended: a host that sends its environment must not get a request.
        rest = [client for client, _ in lacking if self._request.gpus or client.host.name not in done]
        return done | _by_name(call_each(rest, lambda client: self._install(client, gpus=self._request.gpus)))

    def _plan(
        self, key: str, keys: Mapping[str, str], clients: Sequence[AgentClient], complete: Mapping[str, Bootstrapped]
    ) -> list[AgentClient]:
        """Plan the copies of an environment; return the hosts that have it and send it to others first."""
        missing = [name for name in keys if keys[name] == key]
        holders = {_machine(client.host): client for client in clients if _has(complete.get(client.host.name), key)}
        self._plans[key] = CopyPlan(missing, "" if holders else missing[0])
        return list(holders.values())[: -(-len(missing) // COPIES_AT_ONCE)]

    def _obtain(self, client: AgentClient, plan: CopyPlan) -> Bootstrapped | None:
        """Copy an environment to a host, or install it there; then offer it to other hosts that wait.

        Returns:
            The answer; None if other hosts have failed so that this one was not tried.
        """
        name = client.host.name
        if name != plan.installer:
            self._sink.emit(BootstrapProgress(name, "waiting for packages", "another host prepares them"))
        try:
            answer = self._copy(client, plan)
        except UselessError:
            return None
        if answer is None:
            try:
                answer = self._install(client, gpus=0)
            except Exception as error:
                if plan.fail(name, error.refused if isinstance(error, RefusedError) else None):
                    self._sink.emit(Note(f"{error}; another host installs the packages"))
                raise
        if plan.needs_source:
            self._share(client, answer, plan)
        return answer

    def _copy(self, client: AgentClient, plan: CopyPlan) -> Bootstrapped | None:
        """Copy an environment from another host when one has it; return None if the host must install it."""
        source = plan.assign(client.host.name)
        if source is None:
            return None
        try:
            answer = self._ask(client, self._request._replace(gpus=0, copy_from=source))
        except BaseException:
            plan.release(source)
            raise
        if isinstance(answer, Bootstrapped):
            plan.release(source)
            return answer
        plan.drop(source)
        text = f"{client.host.name} could not copy the packages of {source.host}, and installs them: {answer.reason}"
        self._sink.emit(Note(text))
        return None

    def _share(self, client: AgentClient, answer: Bootstrapped, plan: CopyPlan) -> None:
        """Let a host send its environment to others; if it cannot, they install it by themselves."""
        request = ShareEnvironment(answer.python, self._secret, client.host.private_address)
        try:
            plan.offer(client.share_environment(request, lambda _: None))
        except FleetError as error:
            plan.separate()
            text = f"{client.host.name} cannot send its packages to other hosts, which install them: {error.message}"
            self._sink.emit(Note(text))
        except BaseException:
            plan.separate()
            raise

    def _install(self, client: AgentClient, *, gpus: int) -> Bootstrapped:
        answer = self._ask(client, self._request._replace(gpus=gpus))
        assert isinstance(answer, Bootstrapped)  # noqa: S101 - it did not wait for another host
        return answer

    def _ask(self, client: AgentClient, request: Bootstrap) -> Bootstrapped | NeedEnvironment:
        host = client.host

        def report(step: BootstrapStep) -> None:
            self._sink.emit(BootstrapProgress(host.name, step.step, step.detail, step.part, step.whole))

        again = bool(self._request.scripts) and host.name not in self._created
        answer = client.bootstrap(request._replace(python=host.python, again=again), report)
        if isinstance(answer, Bootstrapped) and request.gpus == self._request.gpus:
            self._sink.emit(BootstrapProgress(host.name, "ready", summary(answer), done=True))
        return answer


def _by_name(outcomes: Sequence[Outcome[Bootstrapped | None]]) -> dict[str, Bootstrapped]:
    """Return the answers by the names of the hosts; of two outcomes of a host, the second one is valid.

    Raises:
        FleetError: a host could not be prepared.
    """
    last = {outcome.host.name: outcome for outcome in outcomes}
    raise_failures([*last.values()], _VERB)
    return {name: outcome.value for name, outcome in last.items() if outcome.value is not None}


def _machine(host: Host) -> _Machine:
    """Return a value that is equal for the slots of a machine."""
    return host.key_alias, host.shared or host.root


def _has(answer: Bootstrapped | None, key: str) -> bool:
    return answer is not None and answer.environment == key


def summary(answer: Bootstrapped) -> str:
    """Return a summary such as ``Python 3.12.3, tensorflow 2.21.0, 2 of Tesla T4``."""
    parts = [f"{name.replace('python', 'Python')} {version}" for name, version in answer.versions.items()]
    names = [gpu.name for gpu in answer.gpus]
    parts += [f"{names.count(name)} of {name}" for name in dict.fromkeys(names)]
    return ", ".join(parts)
