"""Packages are installed on hosts by a real pip over a real sshd; failures are shown as the user reads them."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fleet.errors import NotReadyError, UnreachableError
from fleet.events import BootstrapProgress, Event
from fleet.fleets.install import install, ready
from fleet.remote import client as client_module
from fleet.remote.client import RefusedError
from fleet.remote.ssh import transport as transport_module
from fleet.remote.ssh.transport import open_agent
from fleet.state import slots
from provision.gce.options import GceOptions
from provision.keys import generate_ed25519
from provision.model import FleetSpec, Host
from tests.emulator import python as bare_python
from tests.emulator.guests import GuestSpec, SshGuests, obstacle
from tests.interpreter import shared_interpreter
from tests.process.train.agent.wheels import wheel
from tests.program import wait_for
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
    """Return two hosts whose interpreter has pip with its bytecode."""
    interpreter = shared_interpreter(tmp_path_factory)
    return [dataclasses.replace(host, python=interpreter) for host in hosts.hosts[:2]]


@pytest.fixture
def wheels(tmp_path: Path) -> tuple[str, str]:
    """Build a package index that has only the package ``tensorflow``; return the requirements that select it."""
    wheel(tmp_path / "wheels", "tensorflow", "2.21.0")
    return "--no-index", f"--find-links {tmp_path / 'wheels'}"


def test_packages_are_installed_once_on_each_host(hosts: Hosts, places: list[Host], wheels: tuple[str, str]) -> None:
    sink = StoringSink()
    fleet_spec = spec(*wheels, "tensorflow==2.21.0")
    made = ready(fleet_spec, places, hosts.key, sink)
    for before, host in zip(places, made, strict=True):
        assert host.python.startswith(f"{host.root}/venvs/")
        assert (host.name, host.address, host.host_key) == (before.name, before.address, before.host_key)
        subprocess.run([host.python, "-c", "import tensorflow"], check=True)
        assert sink.steps(host.name)[0] == "making the environment"
        assert "installing packages" in sink.steps(host.name)
    ends = [event for event in sink.events if isinstance(event, BootstrapProgress) and event.done]
    assert sorted(event.host for event in ends) == ["worker-0", "worker-1"]
    assert ends[0].detail == f"Python {'.'.join(map(str, sys.version_info[:3]))}, tensorflow 2.21.0"

    again = StoringSink()
    assert ready(fleet_spec, places, hosts.key, again) == made
    assert again.steps("worker-0") == ["looking at Python", "ready"]
    # From now on the agent runs in the environment, and a task is prepared for it.
    with open_agent(made[0], hosts.key) as client:
        request = Prepare("job-1", "tests", "worker-0", [], "127.0.0.1", python=made[0].python, dry_run=True)
        answer = client.prepare(request)
        assert answer.versions["tensorflow"] == "2.21.0"
        (repeated,) = install([client], "\n".join(fleet_spec.packages), StoringSink())
        assert (repeated.python, repeated.made) == (made[0].python, False)


def test_packages_are_installed_once_for_all_slots_of_a_host(
    hosts: Hosts, places: list[Host], wheels: tuple[str, str]
) -> None:
    host = places[0]
    sink = StoringSink()
    made = ready(spec(*wheels, "tensorflow==2.21.0"), slots([host], 2), hosts.key, sink)
    assert [place.name for place in made] == ["worker-0", "worker-1"]
    assert len({place.python for place in made}) == 1
    assert made[0].python.startswith(f"{host.root}/venvs/")
    assert not list(Path(host.root).glob("slot-*/venvs"))
    waited = [name for name in ("worker-0", "worker-1") if "making the environment" not in sink.steps(name)]
    assert len(waited) == 1


def test_packages_are_installed_on_hosts_without_ensurepip_and_pip(
    hosts: Hosts, wheels: tuple[str, str], tmp_path: Path
) -> None:
    bare = str(bare_python.build(tmp_path / "bare"))
    before = [dataclasses.replace(host, python=bare) for host in hosts.hosts[:2]]
    sink = StoringSink()
    for host in ready(spec(*wheels, "tensorflow==2.21.0"), before, hosts.key, sink):
        subprocess.run([host.python, "-c", "import tensorflow, pip"], check=True)
        assert "receiving pip" in sink.steps(host.name)


def test_a_python_that_pip_does_not_support_is_reported(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "hello()\nreceive()\nsend('need_pip', python='3.8')\nreceive()"
    monkeypatch.setattr(transport_module, "pack", Scripted(body))
    with (
        open_agent(hosts.hosts[0], hosts.key) as client,
        pytest.raises(NotReadyError, match=r"has Python 3.8 without pip, and none can be sent to it$") as raised,
    ):
        client.bootstrap(Bootstrap("six"), lambda _: None)
    assert raised.value.cause.endswith("does not have one")
    assert raised.value.hint == "use an image or an interpreter with a newer Python"


def test_installed_packages_need_no_connection(hosts: Hosts) -> None:
    sink = StoringSink()
    assert ready(spec(), hosts.hosts, Path("/nowhere"), sink) == hosts.hosts
    assert sink.events == []


def test_hosts_with_the_same_failure_are_reported_together(
    hosts: Hosts, places: list[Host], wheels: tuple[str, str]
) -> None:
    with pytest.raises(NotReadyError) as raised:
        ready(spec(*wheels, "tensorflow==9"), places, hosts.key, StoringSink())
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
        ("send('bootstrap_step', step='making the environment')", "making the environment"),
    ],
)
def test_a_host_that_stops_answering_is_reported_with_its_step(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch, step: str, doing: str
) -> None:
    monkeypatch.setattr(transport_module, "pack", Scripted(f"hello()\nreceive()\n{step}\nreceive()"))
    monkeypatch.setattr(client_module, "STEP_S", 0.3)
    with (
        open_agent(hosts.hosts[0], hosts.key) as client,
        pytest.raises(UnreachableError, match=f"did not answer within 0.3 s while {doing}$"),
    ):
        client.bootstrap(Bootstrap("six"), lambda _: None)


@pytest.mark.e2e
def test_a_guest_with_gpus_gets_a_tensorflow_that_detects_them(tmp_path: Path) -> None:
    if reason := obstacle():
        pytest.skip(reason)
    pair = generate_ed25519("tests")
    key = tmp_path / "key"
    key.touch(0o600)
    key.write_text(pair.private)
    published: dict[str, str] = {}
    address = f"127.77.{os.getpid() // 250 % 250}.{os.getpid() % 250 + 1}"
    metadata = {"ssh-keys": f"fleet:{pair.public}", "enable-guest-attributes": "TRUE"}
    guest = SshGuests(tmp_path / "guests")(
        GuestSpec("g", "us-central1-a", "p", "1", address, 22, 2, "nvidia-tesla-t4", metadata, tmp_path / "guest"),
        lambda namespace, name, value: published.update({f"{namespace}/{name}": value}),
    )
    fleet_spec = FleetSpec(
        "tests", "gce", 1, packages=("tensorflow[and-cuda]", "tf-keras"), options=GceOptions(gpus=2)
    )
    try:
        guest.boot()
        wait_for("sshd of the guest", lambda: "Server listening" in guest.serial())
        host_key = f"ssh-ed25519 {published['hostkeys/ssh-ed25519']}"
        host = Host("worker-0", address, 22, "fleet", host_key, "g", address)
        sink = StoringSink()
        (made,) = ready(fleet_spec, [host], key, sink)
        assert made.python.startswith("/home/fleet/.fleet/venvs/")
        assert sink.steps("worker-0")[-3:] == ["looking at the GPUs", "asking TensorFlow for its GPUs", "ready"]
        assert isinstance(sink.events[-1], BootstrapProgress)
        assert sink.events[-1].detail.endswith(", 2 of Tesla T4")
        again = StoringSink()
        assert ready(fleet_spec, [host], key, again) == [made]
        assert again.steps("worker-0") == ["looking at Python", "looking at the GPUs", "ready"]
        more = dataclasses.replace(fleet_spec, options=GceOptions(gpus=4))
        with pytest.raises(NotReadyError, match=r"this host has 2 of 4 GPUs$"):
            ready(more, [host], key, StoringSink())
    finally:
        guest.remove()
