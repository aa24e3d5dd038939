"""Packages are installed on hosts by a real pip over a real sshd; failures are shown as the user reads them."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from fleet.errors import NotReadyError, UnreachableError
from fleet.events import BootstrapProgress, Event, InstanceChanged
from fleet.fleets.connect import install, ready
from fleet.remote import client as client_module
from fleet.remote.client import RefusedError
from fleet.remote.ssh import transport as transport_module
from fleet.remote.ssh.transport import open_agent
from fleet.state import slots
from provision.model import FleetSpec, Host
from tests.interpreter import shared_interpreter
from tests.process.train.agent.index_server import serve
from tests.process.train.agent.packages.test_packages import without
from tests.process.train.agent.wheels import uv_wheels, wheel
from tests.wire.hosts import Hosts
from tests.wire.scripted import Scripted
from train.agent.protocol.records import Bootstrap, BootstrapStep, Prepare

pytestmark = pytest.mark.wire


class StoringSink:
    """A sink that stores the events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def close(self) -> None:
        return

    def steps(self, host: str) -> list[str]:
        events = [event for event in self.events if isinstance(event, BootstrapProgress) and event.host == host]
        return list(dict.fromkeys(event.step for event in events))


def spec(*packages: str) -> FleetSpec:
    return FleetSpec("tests", "local", 2, packages=packages)


@pytest.fixture
def places(hosts: Hosts, tmp_path_factory: pytest.TempPathFactory) -> list[Host]:
    """Return two hosts whose interpreter has the ensurepip of guests."""
    interpreter = shared_interpreter(tmp_path_factory)
    return [dataclasses.replace(host, python=interpreter) for host in hosts.hosts[:2]]


@pytest.fixture
def wheels(tmp_path: Path) -> tuple[str, str]:
    """Build a package index that has only the package ``tensorflow``; return the requirements that select it."""
    wheel(tmp_path / "wheels", "tensorflow", "2.21.0")
    return "--no-index", f"--find-links {tmp_path / 'wheels'}"


def test_packages_are_installed_once_on_each_host_for_all_its_slots(
    hosts: Hosts, places: list[Host], wheels: tuple[str, str]
) -> None:
    sink = StoringSink()
    fleet_spec = spec(*wheels, "tensorflow==2.21.0")
    expected = [*slots(places[:1], 2), dataclasses.replace(places[1], name="worker-2")]
    made = ready(fleet_spec, expected, hosts.key, sink)
    for before, host in zip(expected, made, strict=True):
        assert host.python.startswith(f"{host.shared or host.root}/venvs/")
        assert (host.name, host.address, host.host_key) == (before.name, before.address, before.host_key)
    assert made[0].python == made[1].python
    assert not list(Path(places[0].root).glob("slot-*/venvs"))
    for host in made[1:]:
        subprocess.run([host.python, "-c", "import tensorflow"], check=True)
    creators = [host.name for host in made if "creating the environment" in sink.steps(host.name)]
    assert (len(creators), creators[1]) == (2, "worker-2")
    assert all("installing packages" in sink.steps(name) for name in creators)
    ends = [event for event in sink.events if isinstance(event, BootstrapProgress) and event.done]
    assert sorted(event.host for event in ends) == ["worker-0", "worker-1", "worker-2"]
    assert ends[0].detail == f"Python {'.'.join(map(str, sys.version_info[:3]))}, tensorflow 2.21.0"

    again = StoringSink()
    assert ready(fleet_spec, expected, hosts.key, again) == made
    assert again.steps("worker-0") == ["checking Python", "ready"]
    # From now on the agent runs in the environment, and a task is prepared for it.
    with open_agent(made[0], hosts.key) as client:
        request = Prepare("job-1", "tests", "worker-0", [], "127.0.0.1", python=made[0].python, dry_run=True)
        answer = client.prepare(request)
        assert answer.versions["tensorflow"] == "2.21.0"
        (repeated,) = install([client], Bootstrap("\n".join(fleet_spec.packages)), StoringSink())
        assert (repeated.python, repeated.made) == (made[0].python, False)


def test_packages_are_installed_on_a_host_without_venv_ensurepip_and_pip(hosts: Hosts, tmp_path: Path) -> None:
    directory = tmp_path / "wheels"
    wheel(directory, "tensorflow", "2.21.0")
    uv_wheels(directory)
    bare = without(tmp_path / "bare", "venv", "ensurepip")
    sink = StoringSink()
    before = [dataclasses.replace(hosts.hosts[0], python=bare)]
    with serve(directory) as index:
        requested = dataclasses.replace(spec("tensorflow==2.21.0"), index_url=f"http://{index.location}/simple")
        (host,) = ready(requested, before, hosts.key, sink)
    subprocess.run([host.python, "-c", "import tensorflow, pip"], check=True)
    assert "receiving uv" in sink.steps(host.name)


def test_installed_packages_need_no_connection(hosts: Hosts) -> None:
    sink = StoringSink()
    assert ready(spec(), hosts.hosts, Path("/nowhere"), sink) == hosts.hosts
    assert {type(event) for event in sink.events} == {InstanceChanged}  # each host is ready


def test_hosts_with_the_same_failure_are_reported_together(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {
        "kind": "packages",
        "reason": "pip finds no tensorflow==9",
        "hint": "request a version that exists",
        "cause": "there are 2.21.0",
    }
    monkeypatch.setattr(
        transport_module, "pack", Scripted(f"hello()\nreceive()\nsend('refused', **{fields})\nreceive()")
    )
    with pytest.raises(NotReadyError) as raised:
        ready(spec("tensorflow==9"), hosts.hosts[:2], hosts.key, StoringSink())
    assert raised.value.message == "cannot make the hosts ready: worker-[0-1]: pip finds no tensorflow==9"
    assert raised.value.cause == "there are 2.21.0"
    assert raised.value.hint == "worker-0 suggests: request a version that exists"


def test_a_refusal_shows_its_cause(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    body = """
hello()
request = receive()
send("bootstrap_step", step="waiting for the NVIDIA driver", detail="no devices")
send("refused", kind="gpu", reason=f"no driver for {request['gpus']}", hint="take another image", cause="its words")
receive()
"""
    monkeypatch.setattr(transport_module, "pack", Scripted(body))
    steps: list[BootstrapStep] = []
    with open_agent(hosts.hosts[0], hosts.key) as client, pytest.raises(RefusedError) as raised:
        client.bootstrap(Bootstrap(gpus=2), steps.append)
    assert steps == [BootstrapStep("waiting for the NVIDIA driver", "no devices")]
    assert raised.value.message.endswith(": no driver for 2")
    assert (raised.value.cause, raised.value.hint) == ("its words", "worker-0 suggests: take another image")


@pytest.mark.parametrize(
    ("step", "doing"),
    [
        ("", "getting ready"),
        ("send('bootstrap_step', step='downloading packages', detail='a.whl')", r"downloading packages \(a.whl\)"),
        ("send('bootstrap_step', step='creating the environment')", "creating the environment"),
    ],
)
def test_a_host_that_stops_answering_is_reported_with_its_step(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch, step: str, doing: str
) -> None:
    monkeypatch.setattr(transport_module, "pack", Scripted(f"hello()\nreceive()\n{step}\nreceive()"))
    monkeypatch.setattr(client_module, "STEP_S", 2.0)
    with (
        open_agent(hosts.hosts[0], hosts.key) as client,
        pytest.raises(UnreachableError, match=f"did not answer within 2 s while {doing}$"),
    ):
        client.bootstrap(Bootstrap("six"), lambda _: None)
