"""Test which host downloads packages, and which hosts copy them, with agents that only report."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection
from typing import cast

import pytest

from fleet.errors import FleetError, NotReadyError, UnreachableError
from fleet.events import BootstrapProgress, Event, Note
from fleet.fleets.install import install
from fleet.remote.client import AgentClient, refusal
from fleet.remote.upload.environments import COPIES_AT_ONCE
from fleet.state import slots
from provision.model import Host
from tests.unit.fleet.clouds import host
from train.agent.protocol.records import (
    Bootstrap,
    Bootstrapped,
    BootstrapStep,
    EnvironmentSource,
    NeedEnvironment,
    Refusal,
    Refused,
    ShareEnvironment,
)


class Network:
    """Hosts that install and copy environments.

    Args:
        complete: Hosts that have the environment.

    Attributes:
        actions: Each installation, copy, and offer, as ``install worker-0`` or ``copy worker-1 worker-0``.
    """

    def __init__(self, complete: Collection[str] = ()) -> None:
        self.actions: list[str] = []
        self.complete = {f"compute.{name}" for name in complete}
        self.keys: dict[str, str] = {}
        self.lost: set[str] = set()
        self.pip_fails: list[Refused] = []  # on whichever hosts install next
        self.silent_sources: set[str] = set()
        self.are_apart = False
        self.lock = threading.Lock()
        self.copying: Counter[str] = Counter()
        self.most_copies = 0
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        with self.lock:
            self.events.append(event)

    def close(self) -> None:
        return

    @property
    def notes(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Note)]

    def count(self, action: str) -> int:
        return sum(text.startswith(action) for text in self.actions)

    def client(self, place: Host) -> AgentClient:
        return cast(AgentClient, _Client(self, place))

    def install(self, hosts: Collection[Host], requirements: str = "adds", gpus: int = 0) -> list[Bootstrapped]:
        return install([self.client(place) for place in hosts], Bootstrap(requirements, gpus=gpus), self)


class _Transport:
    def sever(self) -> None:
        return


class _Client:
    def __init__(self, network: Network, place: Host) -> None:
        self.host = place
        self.transport = _Transport()
        self._network = network

    def bootstrap(
        self, request: Bootstrap, _on_step: Callable[[BootstrapStep], None]
    ) -> Bootstrapped | NeedEnvironment:
        network, name, machine = self._network, self.host.name, self.host.key_alias
        key = network.keys.get(name, "key")
        with network.lock:
            is_complete = machine in network.complete or not request.requirements
        if not is_complete and request.waits:
            return NeedEnvironment(key)
        if not is_complete and request.copy_from is not None:
            return self._copy(request.copy_from, key)
        if is_complete and request.gpus:
            self._act(f"check {name}")
        if not is_complete:
            assert not request.gpus
            self._act(f"install {name}")
            with network.lock:
                refused = network.pip_fails.pop() if network.pip_fails else None
            if refused is not None:
                raise refusal(self.host, refused)
        return self._done(key)

    def _copy(self, source: EnvironmentSource, key: str) -> Bootstrapped | NeedEnvironment:
        network = self._network
        with network.lock:
            network.copying[source.host] += 1
            network.most_copies = max(network.most_copies, network.copying[source.host])
        self._act(f"copy {self.host.name} {source.host}")
        with network.lock:
            network.copying[source.host] -= 1
        if self.host.name in network.lost:
            raise UnreachableError(f"{self.host.name} did not answer")
        if source.host in network.silent_sources:
            return NeedEnvironment(key, "no route")
        return self._done(key)

    def _done(self, key: str) -> Bootstrapped:
        with self._network.lock:
            self._network.complete.add(self.host.key_alias)
        return Bootstrapped("/p", {"python": "3.12.3"}, [], 0, True, 1.0, key)

    def _act(self, text: str) -> None:
        with self._network.lock:
            self._network.actions.append(text)

    def share_environment(
        self, request: ShareEnvironment, _on_step: Callable[[BootstrapStep], None]
    ) -> EnvironmentSource:
        self._act(f"share {self.host.name}")
        assert request.python == "/p"
        if self.host.name in self._network.silent_sources and self._network.are_apart:
            raise NotReadyError("this host cannot listen on 10.0.0.2")
        return EnvironmentSource(self.host.name, request.secret, request.address, "0" * 64, 1, 1, 2)


def hosts(count: int) -> list[Host]:
    return [host(f"worker-{number}") for number in range(count)]


def test_the_first_host_installs_and_the_others_copy() -> None:
    network = Network()
    assert len(network.install(hosts(4))) == 4
    assert [text for text in network.actions if text.startswith("install")] == ["install worker-0"]
    assert network.count("copy") == 3
    assert network.most_copies <= COPIES_AT_ONCE
    assert network.notes == []


def test_more_hosts_than_threads_get_everything_once() -> None:
    network = Network()
    network.install(hosts(300))
    assert (network.count("install"), network.count("copy")) == (1, 299)
    assert network.most_copies <= COPIES_AT_ONCE


def test_a_host_that_has_the_environment_is_the_source() -> None:
    network = Network(complete=["worker-2"])
    network.install(hosts(4))
    assert network.count("install") == 0
    assert network.count("copy") == 3
    assert network.actions[0] == "share worker-2"


def test_environments_that_are_complete_cost_one_request() -> None:
    network = Network(complete=[f"worker-{number}" for number in range(3)])
    network.install(hosts(3))
    assert network.actions == []
    network.install(hosts(3), requirements="")
    assert network.actions == []


def test_hosts_that_differ_do_not_copy_from_each_other() -> None:
    network = Network()
    network.keys = {"worker-0": "old", "worker-1": "new", "worker-2": "new"}
    network.install(hosts(3))
    assert sorted(text for text in network.actions if "install" in text) == ["install worker-0", "install worker-1"]
    assert network.count("copy worker-2 worker-1") == 1
    assert network.count("share") == 1


def test_one_host_installs_as_before() -> None:
    network = Network()
    network.install(hosts(1))
    assert network.actions == ["install worker-0"]


def test_slots_of_a_machine_share_one_copy() -> None:
    network = Network()
    assert len(network.install(slots(hosts(2), 2))) == 4
    assert network.count("install") == 1
    assert network.count("copy") == 1


def test_hosts_that_cannot_reach_each_other_install_by_themselves() -> None:
    network = Network()
    network.silent_sources = {f"worker-{number}" for number in range(6)}
    network.install(hosts(6))
    assert network.count("install") == 6
    assert 1 <= network.count("copy") <= COPIES_AT_ONCE
    assert len(network.notes) == network.count("copy")
    assert all(
        "could not copy the packages of worker-0, and installs them: no route" in note for note in network.notes
    )


NO_INDEX = Refused(Refusal.INSTALLATION, "pip cannot reach the package index")
FULL = Refused(Refusal.DISK, "no space left")
KILLED = Refused(Refusal.INSTALLATION, "pip was killed by signal 9")
WRONG = Refused(Refusal.PACKAGES, "pip finds no adds")


@pytest.mark.parametrize(
    ("failures", "installations", "copies", "message"),
    [
        ([WRONG], 1, 0, "worker-0 (127.0.0.1:1): pip finds no adds"),
        ([NO_INDEX, NO_INDEX], 2, 0, "pip cannot reach the package index"),
        ([NO_INDEX, WRONG], 2, 0, "pip finds no adds"),
        ([FULL], 2, 2, "worker-0 (127.0.0.1:1): no space left"),
        ([FULL] * 4, 4, 0, "worker-[0-3]: no space left"),
        ([NO_INDEX, KILLED], 4, 0, "pip was killed by signal 9"),
    ],
)
def test_a_host_that_cannot_install_does_not_delay_the_others(
    failures: list[Refused], installations: int, copies: int, message: str
) -> None:
    network = Network()
    network.pip_fails = failures[::-1]
    with pytest.raises(FleetError) as raised:
        network.install(hosts(4))
    assert message in raised.value.message
    assert (network.count("install"), network.count("copy")) == (installations, copies)


def test_a_host_whose_pip_fails_copies_from_a_host_whose_pip_does_not() -> None:
    for count in (2, 6):
        network = Network()
        network.pip_fails = [NO_INDEX]
        assert len(network.install(hosts(count))) == count
        assert (network.count("install"), network.count("copy")) == (2, count - 1)
        assert network.actions[-1].startswith("copy worker-0 ")
        (note,) = network.notes
        assert note.endswith("pip cannot reach the package index; another host installs the packages")


def test_a_host_that_is_lost_while_it_copies_leaves_its_source_to_the_others() -> None:
    network = Network()
    network.lost = {"worker-1"}
    with pytest.raises(FleetError, match="worker-1 did not answer"):
        network.install(hosts(6))
    assert (network.count("install"), network.count("copy")) == (1, 5)


def test_another_host_may_be_the_source_and_never_installs() -> None:
    for complete, kind in ((["worker-9"], "copy worker-0 worker-9"), ([], "install worker-0")):
        network = Network(complete)
        places = hosts(10)
        request = Bootstrap("adds")
        (answer,) = install([network.client(places[0])], request, network, sources=[network.client(places[9])])
        assert answer.environment == "key"
        assert network.actions[-1] == kind
        assert network.count("install worker-9") == 0
        assert not [
            item for item in network.events if isinstance(item, BootstrapProgress) and item.host == "worker-9"
        ]


def test_gpus_are_checked_after_all_copies() -> None:
    network = Network()
    network.install(hosts(4), gpus=2)
    kinds = [text.split()[0] for text in network.actions]
    assert kinds[-4:] == ["check"] * 4
    assert (kinds.count("install"), kinds.count("copy")) == (1, 3)
    ready = [event.host for event in network.events if isinstance(event, BootstrapProgress) and event.done]
    assert sorted(ready) == [f"worker-{number}" for number in range(4)]


def test_a_host_that_cannot_send_its_environment_is_reported() -> None:
    network = Network()
    network.silent_sources, network.are_apart = {"worker-0"}, True
    network.install(hosts(3))
    assert (network.count("install"), network.count("copy")) == (3, 0)
    assert network.notes == [
        "worker-0 cannot send its packages to other hosts, which install them: this host cannot listen on 10.0.0.2"
    ]
