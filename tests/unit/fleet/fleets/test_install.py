"""Test on which hosts packages are installed, with agents that only report."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import cast

import pytest

from fleet.errors import FleetError
from fleet.events import BootstrapProgress, Event
from fleet.fleets.connect import install
from fleet.remote.client import AgentClient, refusal
from fleet.state import slots
from provision.model import Host
from tests.unit.fleet.clouds import host
from train.agent.protocol.records import Bootstrap, Bootstrapped, BootstrapStep, Refusal, Refused


class Network:
    """Hosts that install environments.

    Attributes:
        actions: Each installation.
        refused: Answers of hosts that cannot install.
    """

    def __init__(self) -> None:
        self.actions: list[str] = []
        self.refused: dict[str, Refused] = {}
        self.complete: set[str] = set()
        self.events: list[Event] = []
        self.lock = threading.Lock()

    def emit(self, event: Event) -> None:
        with self.lock:
            self.events.append(event)

    def close(self) -> None:
        return

    def install(self, hosts: Collection[Host], gpus: int = 0) -> list[Bootstrapped]:
        clients = [cast(AgentClient, _Client(self, place)) for place in hosts]
        return install(clients, Bootstrap("adds", gpus=gpus), self)


class _Transport:
    def sever(self) -> None:
        return


class _Client:
    def __init__(self, network: Network, place: Host) -> None:
        self.host = place
        self.transport = _Transport()
        self._network = network

    def bootstrap(self, request: Bootstrap, _on_step: Callable[[BootstrapStep], None]) -> Bootstrapped:
        network, name = self._network, self.host.name
        with network.lock:
            made = self.host.key_alias not in network.complete
            if made:
                network.actions.append(name)
            if name in network.refused:
                raise refusal(self.host, network.refused[name])
            network.complete.add(self.host.key_alias)
        return Bootstrapped(f"/{name}", {"python": "3.12.3"}, [], request.gpus, made, 1.0)


def hosts(count: int) -> list[Host]:
    return [host(f"worker-{number}") for number in range(count)]


def test_each_host_installs_and_answers_in_order() -> None:
    network = Network()
    answers = network.install(hosts(12), gpus=2)
    assert [answer.python for answer in answers] == [f"/worker-{number}" for number in range(12)]
    assert {answer.seen for answer in answers} == {2}
    assert sorted(network.actions) == sorted(f"worker-{number}" for number in range(12))
    ready = [event.host for event in network.events if isinstance(event, BootstrapProgress) and event.done]
    assert sorted(ready) == sorted(network.actions)


def test_slots_of_a_machine_install_once() -> None:
    network = Network()
    answers = network.install(slots(hosts(2), 2))
    assert [answer.python for answer in answers] == [f"/worker-{number}" for number in range(4)]
    assert sorted(network.actions) == ["worker-0", "worker-2"]


def test_hosts_that_cannot_install_are_named_and_do_not_stop_the_others() -> None:
    network = Network()
    network.refused = dict.fromkeys(["worker-1", "worker-2"], Refused(Refusal.DISK, "no space left"))
    with pytest.raises(FleetError, match=r"worker-\[1-2\]: no space left"):
        network.install(hosts(4))
    assert len(network.actions) == 4
