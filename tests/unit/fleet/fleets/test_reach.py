"""Waiting for hosts that are still booting, up to a time limit."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from fleet.errors import UnreachableError, WrongHostError
from fleet.events import HostConnected, InstanceChanged
from fleet.fleets import connect as module
from fleet.fleets.connect import reach
from fleet.remote.fanout import Outcome
from fleet.services import wrap_provider
from provision.gce.options import GceOptions
from provision.model import FleetSpec, Host, Instance, InstanceState
from tests.next_steps import next_lines
from tests.unit.fleet.clouds import Cloud, CloudProvider, World

RENTED = FleetSpec("demo", "gce", 2, options=GceOptions())
INSTANCES = [Instance(f"worker-{index}", "demo", str(index), InstanceState.RUNNING, "z") for index in range(2)]


@dataclass
class Net:
    """A network in which each host answers after `tries` attempts, if its host key is that of `keys`."""

    tries: dict[str, int] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    asked: list[list[str]] = field(default_factory=list)

    @contextlib.contextmanager
    def opened(self, hosts: Sequence[Host], _key: Path, **_: object) -> Iterator[list[Outcome[Any]]]:
        self.asked.append([host.name for host in hosts])
        yield [self._try(host) for host in hosts]

    def _try(self, host: Host) -> Outcome[Any]:
        self.tries[host.name] = self.tries.get(host.name, 0) - 1
        if self.tries[host.name] >= 0:
            return Outcome(host, error=UnreachableError(f"{host.name} does not answer"))
        if self.keys.get(host.name, host.host_key) != host.host_key:
            return Outcome(host, error=WrongHostError(f"{host.name} has a different host key than before"))
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


def test_a_key_that_the_image_replaced_is_read_again(world: World, net: Net) -> None:
    class Replaced(CloudProvider):
        keys = "AAAA"

        def hosts(self, spec: FleetSpec, instances: Sequence[Instance]) -> list[Host]:
            return [replace(host, host_key=self.keys) for host in super().hosts(spec, instances)]

        def forget_host_keys(self) -> None:
            self.keys = "BBBB"

    net.keys = {"worker-1": "BBBB"}
    assert [host.host_key for host in reached(world, provider=Replaced(Cloud()))] == ["AAAA", "BBBB"]
    assert net.asked == [["worker-0", "worker-1"], ["worker-1"]]
