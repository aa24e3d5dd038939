from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil
import pytest

from provision.keys import KeyPair, generate_ed25519
from provision.local import LocalProvider
from provision.model import FleetSpec, Host, Instance
from provision.provider import Provider


class Case(Protocol):
    """A provider under test, and what the suite must be able to do behind its back."""

    provider: Provider
    impossible: FleetSpec  # one that `check` refuses

    def kill(self, instance: Instance) -> None:
        """Let `instance` die, without the provider."""

    def traces(self) -> list[str]:
        """Every process and file of any instance, found without the provider."""

    def script(self) -> str:
        """Python statements that bind `provider` to the same provider in another program."""


def arguments(process: psutil.Process) -> str:
    """What `process` was started with; empty once it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


class LocalCase:
    def __init__(self, folder: Path) -> None:
        self.root = folder / "local root"
        self.provider: Provider = LocalProvider(self.root)
        self.impossible = FleetSpec("demo", "local", workers=65)

    def kill(self, instance: Instance) -> None:
        mark = f"FLEET_INSTANCE={instance.id}"
        [listener] = [process for process in psutil.process_iter() if mark in arguments(process)]
        listener.kill()
        gone = time.monotonic() + 10
        while listener.is_running() and listener.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < gone
            time.sleep(0.005)

    def traces(self) -> list[str]:
        files = [str(path) for path in self.root.glob("**/*")]
        return files + [f"{process.pid} {process.name()}" for process in self._processes()]

    def sweep(self) -> None:
        for process in self._processes():
            process.kill()

    def script(self) -> str:
        return (
            "from pathlib import Path\n"
            "from provision.local import LocalProvider\n"
            f"provider = LocalProvider(Path({str(self.root)!r}))\n"
        )

    def _processes(self) -> list[psutil.Process]:
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def _is_ours(self, process: psutil.Process) -> bool:
        """By what it was started with, or what its standard error is: an sshd has nothing else to be known by."""
        try:
            standard_error = str(Path(f"/proc/{process.pid}/fd/2").readlink())
            return str(self.root) in arguments(process) or str(self.root) in standard_error
        except OSError:
            return False


@pytest.fixture(params=["local"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Case]:
    assert request.param == "local"
    case = LocalCase(tmp_path)
    try:
        yield case
        case.provider.delete(case.provider.list(), lambda *_: None)
        assert case.traces() == []
    finally:
        case.sweep()


@pytest.fixture(scope="session")
def key() -> KeyPair:
    return generate_ed25519("the fleet's")


@pytest.fixture
def spec(case: Case, key: KeyPair) -> Callable[..., FleetSpec]:
    def make(workers: int = 2, name: str = "demo", python: str = "") -> FleetSpec:
        return FleetSpec(name, case.provider.name, workers, key.public, python)

    return make


@dataclass
class Ssh:
    """The OpenSSH client, which trusts nothing but what the provider told of a host."""

    folder: Path
    private: str

    def command(self, host: Host, *words: str) -> list[str]:
        key = self.folder / "id"
        if not key.exists():
            key.touch(0o600)
            key.write_text(self.private)
        known_hosts = self.folder / f"known_hosts.{host.name}"
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

    def run(self, host: Host, *words: str) -> subprocess.CompletedProcess[str]:
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
    folder = tmp_path / "client"
    folder.mkdir()
    return Ssh(folder, key.private)
