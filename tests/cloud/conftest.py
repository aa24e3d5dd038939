from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import psutil
import pytest
import requests

from fleet.state import Store
from provision.gce.options import GceOptions
from provision.gce.provider import GceProvider
from provision.keys import KeyPair, generate_ed25519
from provision.local.options import LocalOptions
from provision.local.provider import LocalProvider
from provision.model import Finding, FleetSpec, Host, Instance
from provision.options import ProviderOptions
from provision.provider import Provider
from provision.static.options import StaticOptions
from provision.static.provider import StaticProvider
from tests.cloud.customer import QUICK, Customer, patched
from tests.emulator import Emulator, guests
from tests.emulator.client import Client, Gcloud
from tests.program import Program, has_ended, wait_for
from tests.wire.machines import Lab, lab

Make = Callable[..., tuple[GceProvider, FleetSpec]]
"""Makes a provider and a fleet; see the fixture `make`."""


class Case(Protocol):
    """A provider under test, and the operations of the suite that bypass it."""

    provider: Provider
    impossible: FleetSpec  # one that `check` refuses

    @property
    def options(self) -> ProviderOptions:
        """Options of every spec of the suite."""

    has_deadline: bool  # whether the provider deletes by itself

    def kill(self, instance: Instance) -> None:
        """End `instance` without the provider."""

    def traces(self) -> list[str]:
        """Return all processes and files of any instance, found without the provider."""

    def sweep(self) -> None:
        """End and delete what a failed test left."""


def arguments(process: psutil.Process) -> str:
    """Return the command line of `process`; empty if it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


class LocalCase:
    options: ProviderOptions = LocalOptions()
    has_deadline = False

    def __init__(self, directory: Path) -> None:
        self.root = directory / "local root"
        self.provider: Provider = LocalProvider(self.root)
        self.impossible = FleetSpec("demo", "local", workers=257)

    def kill(self, instance: Instance) -> None:
        mark = f"FLEET_INSTANCE={instance.id}"
        [listener] = [process for process in psutil.process_iter() if mark in arguments(process)]
        listener.kill()
        wait_for("the end of a listener", lambda: has_ended(listener))

    def traces(self) -> list[str]:
        files = [str(path) for path in self.root.glob("**/*")]
        return files + [
            f"{process.pid} {command}" for process in self._processes() if (command := arguments(process))
        ]

    def sweep(self) -> None:
        for process in self._processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def _processes(self) -> list[psutil.Process]:
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def _is_ours(self, process: psutil.Process) -> bool:
        """Return whether its command line or its standard error names this provider's directory, as for an sshd."""
        try:
            standard_error = str(Path(f"/proc/{process.pid}/fd/2").readlink())
            return str(self.root) in arguments(process) or str(self.root) in standard_error
        except OSError:
            return False


def await_operations(emulator: Emulator) -> None:
    """Wait for all operations: the provider waits only until what it deletes is gone, also if it asked twice."""
    wait_for("the end of all operations", lambda: not emulator.state()["operations"])


class GceCase:
    """Instances of the emulator, each a real sshd."""

    has_deadline = True

    def __init__(self, emulator: Emulator, root: Path) -> None:
        self.emulator = emulator
        self.root = root
        self.options = self._gce = GceOptions(project="proj-1", endpoint=emulator.url, zones=("us-central1-a",))
        store = Store(root)
        for fleet in ("a", "b", "b-worker-0", "demo", "other"):
            store.fleet(fleet).create()
        self._timing = replace(QUICK, boot_s=60.0, operation_s=60.0)  # real processes start and end
        self.provider: Provider = GceProvider(store.owner(), "tester", store, self._gce, self._timing)
        self.impossible = FleetSpec("demo", "gce", workers=2, options=replace(self._gce, zones=("nowhere",)))

    def kill(self, instance: Instance) -> None:
        emulated = self.emulator.cloud.instances.values()
        [name] = [each.body["name"] for each in emulated if each.body["id"] == instance.id]
        url = f"{self.emulator.url}/compute/v1/projects/proj-1/zones/{instance.zone}/instances/{name}"
        assert requests.post(f"{url}/stop", timeout=60).status_code == 200
        wait_for("the end of an instance", lambda: requests.get(url, timeout=60).json()["status"] == "TERMINATED")

    def traces(self) -> list[str]:
        await_operations(self.emulator)
        state = self.emulator.state()
        directories = [
            str(path) for path in self.emulator.cloud.directory.iterdir() if path.name not in guests.SHARED
        ]
        return [*state["instances"], *state["disks"], *state["operations"], *directories]

    def sweep(self) -> None:
        remaining = self.emulator.state()
        self.emulator.reset()
        assert not remaining["violations"]


class StaticCase:
    """Existing hosts, named by an inventory."""

    has_deadline = False

    def __init__(self, directory: Path, home: Lab) -> None:
        self.root = directory / "static root"
        self.provider: Provider = StaticProvider(self.root)
        self.options: ProviderOptions = StaticOptions(inventory=str(home.inventory(*home.machines)))
        self.impossible = FleetSpec("demo", "static", len(home.machines) + 1, options=self.options)

    def kill(self, instance: Instance) -> None:
        raise AssertionError(f"{instance.name} has no process to kill")

    def traces(self) -> list[str]:
        return [str(path) for path in self.root.glob("**/*")]

    def sweep(self) -> None:
        """Check that no process remains."""


TOY = Path(__file__).parent / "toy"
"""A provider in another package, with the metadata of an installed package."""


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory, key: KeyPair) -> Iterator[Lab]:
    """Start three machines of a user who logs in with the fleet's key of the suite."""
    with lab(tmp_path_factory.mktemp("machines") / "lab") as user:
        user.write("id", key.private)
        user.write("id.pub", key.public + "\n")
        user.add_known_hosts(*(user.machine(f"gpu{number}") for number in range(3)))
        yield user


@pytest.fixture(scope="session")
def running() -> Iterator[Emulator]:
    """Run an emulator whose instances are not computers."""
    with Emulator(operation_s=0.003) as emulator:
        yield emulator


@pytest.fixture
def emulator(running: Emulator) -> Iterator[Emulator]:
    """Reset the running emulator; afterwards, the test must have kept the rules of the API."""
    running.reset()
    yield running
    assert running.state()["violations"] == []


@pytest.fixture
def client(emulator: Emulator) -> Client:
    """Return a client of the emulator."""
    return Client(emulator)


@pytest.fixture
def make(emulator: Emulator, tmp_path: Path) -> Make:
    """Return a function that makes a provider, as a new program does, and the fleet `demo` with some options."""
    store = Store(tmp_path / "state")
    store.fleet("demo").create()

    def made(
        workers: int = 2,
        packages: tuple[str, ...] = (),
        public: str = "ssh-ed25519 AAAA me",
        clock: Callable[[], float] = emulator.clock.now,
        **options: Any,
    ) -> tuple[GceProvider, FleetSpec]:
        given = {"project": "proj-1", "endpoint": emulator.url, "zones": ("us-central1-a",), **options}
        cloud = GceProvider.change(GceOptions(), given)
        provider = GceProvider(store.owner(), "me", store, cloud, QUICK, clock)
        return provider, FleetSpec("demo", "gce", workers, public, packages=packages, options=cloud)

    return made


@pytest.fixture
def user(emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Customer:
    """Return a user with a fleet of two workers, whose commands connect to no host."""
    patched(monkeypatch, emulator)
    return Customer(emulator, tmp_path / "user", workers=2)


def finding_of(provider: Provider, subject: str) -> Finding:
    """Return the finding of `fleet doctor` about a subject."""
    [finding] = [each for each in provider.doctor() if each.subject == subject]
    return finding


@pytest.fixture
def gcloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gcloud:
    """Put the stand-in for gcloud first on PATH, with an account that is logged in."""
    gcloud = Gcloud(tmp_path / "gcloud")
    gcloud.log_in()
    monkeypatch.setenv("PATH", gcloud.path())
    return gcloud


@pytest.fixture
def caller(program: Program, emulator: Emulator) -> Program:
    """Return the program with the emulator as its cloud."""
    program.env.update(FLEET_GCE_ENDPOINT=emulator.url, FLEET_GCE_PROJECT="proj-1")
    return program


@pytest.fixture(scope="session")
def guest_emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    if reason := guests.obstacle():
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("guests")
    directory.chmod(0o755)
    with Emulator(operation_s=0.01, guests=guests.SshGuests(directory), directory=directory) as running:
        yield running


@pytest.fixture(params=["local", "gce", "static"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Case]:
    cases: dict[str, Callable[[], Case]] = {
        "local": lambda: LocalCase(tmp_path),
        "gce": lambda: GceCase(request.getfixturevalue("guest_emulator"), tmp_path / "state"),
        "static": lambda: StaticCase(tmp_path, request.getfixturevalue("home")),
    }
    case = cases[request.param]()
    try:
        yield case
        for fleet in {instance.fleet for instance in case.provider.list()}:
            assert case.provider.delete_fleet(fleet, lambda *_: None) == []
        assert case.traces() == []
    finally:
        case.sweep()


@pytest.fixture(scope="session")
def key() -> KeyPair:
    return generate_ed25519("the fleet's")


@pytest.fixture
def spec(case: Case, key: KeyPair) -> Callable[..., FleetSpec]:
    def make(workers: int = 2, name: str = "demo", python: str = "") -> FleetSpec:
        return FleetSpec(name, case.provider.name, workers, key.public, python, options=case.options)

    return make


@pytest.fixture
def own_hosts(case: Case) -> None:
    """Skip a test that applies only to hosts that the provider creates."""
    if case.options.existing:
        pytest.skip("its hosts exist without it: it neither starts nor ends them, and decides not who may log in")


@dataclass
class Ssh:
    """The OpenSSH client, which uses only what the provider reported for a host."""

    directory: Path
    private: str

    def command(self, host: Host, *words: str) -> list[str]:
        key = self.directory / "id"
        if not key.exists():
            key.touch(0o600)
            key.write_text(self.private)
        known_hosts = self.directory / f"known_hosts.{host.name}"
        known_hosts.write_text(f"{host.key_alias} {host.host_key}\n")
        options = {
            "BatchMode": "yes",
            "ConnectTimeout": "10",
            "HostKeyAlias": host.key_alias,
            "IdentitiesOnly": "yes",
            "IdentityAgent": "none",
            "IdentityFile": str(key),
            "StrictHostKeyChecking": "yes",
            "UserKnownHostsFile": str(known_hosts),
            "GlobalKnownHostsFile": "/dev/null",
        }
        flags = [word for name, value in options.items() for word in ("-o", f'{name}="{value.replace("%", "%%")}"')]
        return ["ssh", "-F", "none", *flags, "-p", str(host.port), f"{host.user}@{host.address}", *words]

    def wait(self, host: Host) -> None:
        """Wait until its sshd listens: the host key is published earlier."""

        def listens() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex((host.address, host.port)) == 0

        wait_for(f"the sshd of {host.name}", listens)

    def run(self, host: Host, *words: str) -> subprocess.CompletedProcess[str]:
        self.wait(host)
        return subprocess.run(
            self.command(host, *words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )


@pytest.fixture
def ssh(tmp_path: Path, key: KeyPair) -> Ssh:
    directory = tmp_path / "client"
    directory.mkdir()
    return Ssh(directory, key.private)
