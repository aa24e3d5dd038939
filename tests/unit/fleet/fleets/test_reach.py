"""Waiting for hosts that are still booting, up to a time limit."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fleet.errors import NotReadyError, UnreachableError, WrongHostError
from fleet.events import HostConnected, InstanceChanged, ZoneTried
from fleet.fleets import connect as module
from fleet.fleets.connect import progress_to, reach
from fleet.remote.fanout import Outcome
from fleet.services import wrap_provider
from provision.gce.options import GceOptions
from provision.model import FleetSpec, Host, Instance, InstanceState
from provision.provider import ErrorKind, ProviderError
from tests.next_steps import next_lines
from tests.unit.fleet.clouds import Cloud, CloudProvider, Kept, World
from train.agent.protocol.records import Hello

RENTED = FleetSpec("demo", "gce", 2, options=GceOptions())
INSTANCES = [Instance(f"worker-{index}", "demo", str(index), InstanceState.RUNNING, "z") for index in range(2)]


@dataclass
class Net:
    """A network in which each host answers after `tries` attempts, and fails with `error` until then."""

    tries: dict[str, int] = field(default_factory=dict)
    error: type[UnreachableError | NotReadyError] = UnreachableError
    asked: list[list[str]] = field(default_factory=list)

    @contextlib.contextmanager
    def opened(self, hosts: Sequence[Host], _key: Path, **_: object) -> Iterator[list[Outcome[Any]]]:
        self.asked.append([host.name for host in hosts])
        yield [self._try(host) for host in hosts]

    def _try(self, host: Host) -> Outcome[Any]:
        self.tries[host.name] = self.tries.get(host.name, 0) - 1
        if self.tries[host.name] >= 0:
            return Outcome(host, error=self.error(f"{host.name} does not answer"))
        return Outcome(host, value=object())


@pytest.fixture
def net(monkeypatch: pytest.MonkeyPatch) -> Net:
    net = Net()
    monkeypatch.setattr(module, "opened", net.opened)
    return net


def reached(world: World, spec: FleetSpec = RENTED, provider: CloudProvider | None = None) -> list[Host]:
    connected = wrap_provider(provider or CloudProvider(Cloud()))
    return reach(spec, INSTANCES, connected, world.store.fleet("demo"), world.services(), world.sink)


def test_only_those_that_did_not_answer_are_tried_again(world: World, net: Net) -> None:
    net.tries = {"worker-1": 2}
    assert [host.name for host in reached(world)] == ["worker-0", "worker-1"]
    assert net.asked == [["worker-0", "worker-1"], ["worker-1"], ["worker-1"]]
    assert world.slept == [0.25, 0.5]
    assert world.sink.events == [
        InstanceChanged("worker-0", "waiting for SSH"),
        InstanceChanged("worker-1", "waiting for SSH"),
        HostConnected("worker-0", "127.0.0.1"),
        HostConnected("worker-1", "127.0.0.1"),
        InstanceChanged("worker-0", "ready", done=True),
        InstanceChanged("worker-1", "ready", done=True),
    ]


def test_the_wait_ends_and_reports_its_duration(world: World, net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    net.tries = {"worker-1": 10**6}
    times = iter(range(0, 10_000, 50))
    monkeypatch.setattr("time.monotonic", lambda: next(times))
    with pytest.raises(UnreachableError, match=r"worker-1 does not answer; waited 5 min") as late:
        reached(world)
    assert next_lines(late.value) == "fleet up"


@pytest.mark.parametrize(("private_address", "address"), [("10.0.0.3", "10.0.0.3"), ("", "127.0.0.1")])
def test_a_host_without_a_known_private_address_reports_it(
    world: World, monkeypatch: pytest.MonkeyPatch, private_address: str, address: str
) -> None:
    class Without(CloudProvider):
        def hosts(self, spec: FleetSpec, instances: Sequence[Instance]) -> list[Host]:
            return [replace(host, private_address="") for host in super().hosts(spec, instances)]

    @contextlib.contextmanager
    def opened(hosts: Sequence[Host], _key: Path, **_: object) -> Iterator[list[Outcome[Any]]]:
        yield [Outcome(host, value=SimpleNamespace(hello=Hello("a", "3.11", 1, private_address))) for host in hosts]

    monkeypatch.setattr(module, "opened", opened)
    assert {host.private_address for host in reached(world, provider=Without(Cloud()))} == {address}


def test_a_local_host_is_not_waited_for(world: World, net: Net) -> None:
    net.tries = {"worker-1": 1}
    with pytest.raises(UnreachableError, match=r"worker-1 does not answer$"):
        reached(world, FleetSpec("demo", "local", 2))
    assert (world.slept, len(net.asked)) == ([], 1)


def test_an_error_that_waiting_does_not_fix_is_raised_immediately(world: World, net: Net) -> None:
    net.tries, net.error = {"worker-1": 1}, NotReadyError
    with pytest.raises(NotReadyError):
        reached(world)
    assert world.slept == []


def test_host_keys_are_waited_for_too(world: World, net: Net) -> None:
    class Late(CloudProvider):
        looked = 0

        def hosts(self, spec: FleetSpec, instances: Sequence[Instance]) -> Sequence[Host]:
            self.looked += 1
            if self.looked < 3:
                raise ProviderError(ErrorKind.UNREACHABLE, "no host key yet")
            return super().hosts(spec, instances)

    assert len(reached(world, provider=Late(Cloud()))) == 2
    assert world.slept == [0.25, 0.5]


def test_progress_of_instances_and_zones_is_distinguished() -> None:
    sink = Kept()
    progress = progress_to(sink, "ready")
    for step in (("us-central1-a", "no capacity"), ("worker-0", "starting"), ("worker-0", "ready")):
        progress(*step)
    assert sink.events == [
        ZoneTried("us-central1-a", "no capacity"),
        InstanceChanged("worker-0", "starting"),
        InstanceChanged("worker-0", "ready", done=True),
    ]
    progress_to(sink, "ready", "booted")("worker-0", "ready")
    assert sink.events[-1] == InstanceChanged("worker-0", "booted")


def test_a_key_that_the_image_replaced_is_read_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    class Replaced(CloudProvider):
        keys = "AAAA"

        def hosts(self, spec: FleetSpec, instances: Sequence[Instance]) -> list[Host]:
            return [replace(host, host_key=self.keys) for host in super().hosts(spec, instances)]

        def forget_host_keys(self) -> None:
            self.keys = "BBBB"

    tried: list[list[str]] = []

    @contextlib.contextmanager
    def opened(hosts: Sequence[Host], _key: Path, **_: object) -> Iterator[list[Outcome[Any]]]:
        tried.append([f"{host.name} {host.host_key}" for host in hosts])
        yield [
            Outcome(host, value=object())
            if host.name == "worker-0" or host.host_key == "BBBB"
            else Outcome(host, error=WrongHostError(f"{host.name} has a different host key than before"))
            for host in hosts
        ]

    monkeypatch.setattr(module, "opened", opened)
    assert [host.host_key for host in reached(world, provider=Replaced(Cloud()))] == ["AAAA", "BBBB"]
    assert tried == [["worker-0 AAAA", "worker-1 AAAA"], ["worker-1 BBBB"]]


def test_a_login_that_stays_rejected_is_reported_as_such(
    world: World, net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    net.tries, net.error = {"worker-1": 10**6}, WrongHostError
    times = iter(range(0, 10_000, 50))
    monkeypatch.setattr("time.monotonic", lambda: next(times))
    with pytest.raises(WrongHostError, match=r"worker-1 does not answer; waited 5 min"):
        reached(world)
