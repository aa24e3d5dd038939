"""Existing hosts: the fleets made from an inventory, and the errors found before anything changes."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provision.keys import generate_ed25519
from provision.model import FleetSpec, Host, Instance, InstanceState
from provision.names import instance_name
from provision.provider import ErrorKind, ProviderError
from provision.ssh_config.routes import KnownKeys, known_keys
from provision.static.options import StaticOptions
from provision.static.provider import StaticProvider

NAMES = {"gpu1": "10.0.0.1", "gpu2": "10.0.0.2", "gpu3": "10.0.0.3", "gpu3.lab.example": "10.0.0.3"}


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resolve only the names of NAMES; addresses resolve to themselves."""

    def resolve(name: str, port: int, **_: Any) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        if name not in NAMES and not name[0].isdigit():
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (NAMES.get(name, name), port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


class Files:
    """The files of a user, and the provider."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.provider = StaticProvider(directory / "static")
        for name in ("key", "other"):
            (directory / name).write_text(generate_ed25519(name).private)
        self.known = directory / "known_hosts"
        self.known.write_text("")
        self.config = directory / "config"
        self.config.write_text(
            f"IdentityFile {directory}/key\nUserKnownHostsFile {self.known}\nGlobalKnownHostsFile none\nUser me\n"
        )

    def spec(self, *lines: str, workers: int = 0, limit: str = "") -> FleetSpec:
        """Return a fleet of the hosts of an inventory, given as its lines."""
        path = self.directory / "hosts.ini"
        path.write_text("\n".join(("[all:vars]", f"ansible_ssh_common_args='-F {self.config}'", "[lab]", *lines)))
        return FleetSpec(
            "demo", "static", workers or len(lines), options=StaticOptions(inventory=str(path), limit=limit)
        )

    def hosts(self, spec: FleetSpec) -> list[Host]:
        """Return the hosts of a fleet."""
        self.create(spec)
        return self.provider.hosts(spec, self.provider.list("demo"))

    def create(self, spec: FleetSpec) -> None:
        self.provider.create(spec, [instance_name(index) for index in range(spec.workers)], lambda *_: None)

    def knows(self, *names: str) -> None:
        """Write a different key for each host to known_hosts."""
        self.known.write_text("".join(f"{name} {key(name)}\n" for name in names))


def key(name: str) -> str:
    """Return the public key of a name, always the same."""
    if name not in KEYS:
        kind, text, *_ = generate_ed25519(name).public.split()
        KEYS[name] = f"{kind} {text}"
    return KEYS[name]


KEYS: dict[str, str] = {}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    monkeypatch.chdir(tmp_path)
    return Files(tmp_path)


# --- hosts ------------------------------------------------------------------------------------------------------


def test_the_order_of_the_file_is_that_of_the_indices(files: Files) -> None:
    files.knows("gpu1", "gpu3", "[gpu2]:2222")
    spec = files.spec(
        "gpu3 ansible_python_interpreter=/opt/python", "gpu1 fleet_private_address=192.168.0.1", "gpu2:2222"
    )
    assert files.provider.list() == []
    first, second, third = files.hosts(spec)
    assert [host.address for host in (first, second, third)] == ["gpu3", "gpu1", "gpu2"]
    assert [host.port for host in (first, second, third)] == [22, 22, 2222]
    assert [host.python for host in (first, second, third)] == ["/opt/python", "", ""]
    assert [host.private_address for host in (first, second, third)] == ["", "192.168.0.1", ""]
    assert {host.user for host in (first, second, third)} == {"me"}
    assert third.host_key == key("[gpu2]:2222")
    assert first.identities == (str(files.directory / "key"),)
    assert [instance.zone for instance in files.provider.list("demo")] == ["gpu3", "gpu1", "gpu2"]


def test_a_fleet_keeps_its_hosts_and_their_ids(files: Files) -> None:
    files.knows("gpu1")
    spec = files.spec("gpu1 ansible_python_interpreter=/opt/python", "gpu2", "gpu3", workers=2)
    files.create(spec)
    first = files.provider.list("demo")
    assert [instance.zone for instance in first] == ["gpu1", "gpu2"]
    assert files.provider.hosts(replace(spec, python="/my/python"), first[:1])[0].python == "/my/python"
    Path(StaticOptions.of(spec.options).inventory).unlink()
    files.provider.check(spec)
    files.create(spec)
    with pytest.raises(ProviderError, match="cannot be read"):
        files.provider.check(replace(spec, name="other"))
    files.provider.delete_fleet("demo", lambda *_: None)
    files.create(files.spec("gpu2", "gpu1"))
    assert [instance.id for instance in files.provider.list("demo")] == [instance.id for instance in first[::-1]]


def test_the_same_address_behind_two_bastions_is_two_hosts(files: Files) -> None:
    lines = [f"{name} ansible_host=10.0.0.9 ansible_ssh_extra_args='-o ProxyJump={name}'" for name in ("a", "b")]
    files.create(files.spec(*lines))
    assert len({instance.id for instance in files.provider.list("demo")}) == 2


def test_relative_paths_of_an_inventory_hold_in_every_directory(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.knows("gpu1")
    spec = files.spec("gpu1 ansible_ssh_private_key_file=other")
    files.create(spec)
    monkeypatch.chdir("/")
    [host] = files.provider.hosts(spec, files.provider.list("demo"))
    assert host.identities == (str(files.directory / "other"), str(files.directory / "key"))


def test_a_damaged_record_is_listed_and_can_be_forgotten(files: Files) -> None:
    spec = files.spec("gpu1")
    files.create(spec)
    (files.directory / "static/demo.json").write_text('{"hosts": [')
    assert files.provider.list() == [Instance("worker-0", "demo", "", InstanceState.STARTING, "")]
    assert files.provider.delete_fleet("demo", lambda *_: None) == []
    assert files.provider.list() == []


# --- host keys --------------------------------------------------------------------------------------------------


def test_hosts_are_unknown_until_their_keys_are_confirmed(files: Files) -> None:
    files.knows("gpu2")
    spec = files.spec("gpu1", "gpu2")
    files.create(spec)
    [unknown] = files.provider.unknown_hosts(spec)
    assert (unknown.inventory_name, unknown.host.name, unknown.host.host_key) == ("gpu1", "worker-0", "")
    with pytest.raises(
        ProviderError, match=r"the host key of worker-0 in fleet demo \(gpu1\) is not confirmed"
    ) as error:
        files.provider.hosts(spec, files.provider.list("demo"))
    assert error.value.kind is ErrorKind.UNREACHABLE
    files.provider.pin("demo", {"worker-0": key("pinned")})
    assert files.provider.unknown_hosts(spec) == []
    assert files.provider.hosts(spec, files.provider.list("demo"))[0].host_key == key("pinned")
    files.knows("gpu1", "gpu2")  # known_hosts overrides the keys that the user confirmed
    assert files.provider.hosts(spec, files.provider.list("demo"))[0].host_key == key("gpu1")
    files.known.write_text(f"@revoked gpu1 {key('pinned')}\ngpu2 {key('gpu2')}\n")
    assert [host.revoked for host in files.provider.unknown_hosts(spec)] == [(key("pinned"),)]


def test_known_hosts_files_are_asked_in_their_order(tmp_path: Path) -> None:
    ecdsa = "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBA=="
    texts = [
        f"*.lab {key('ca')}\n".replace("*.lab", "@cert-authority *.lab"),
        f"gpu.lab {ecdsa}\ngpu.lab {key('one')}\n",
        f"gpu.lab {key('two')}\n",
    ]
    paths = [tmp_path / str(number) for number in range(3)]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    names = [str(path) for path in (tmp_path / "none", *paths)]
    assert known_keys("gpu.lab", names) == KnownKeys((key("one"), ecdsa), authority=str(paths[0]))
    assert known_keys("cpu.lab", names) == KnownKeys(authority=str(paths[0]))
    assert known_keys("other", names) == KnownKeys()


# --- what can be wrong ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["gpu1", "unknown.name"], "hosts.ini:5: cannot resolve host 'unknown.name': unknown.name has no address"),
        (
            ["gpu3", "gpu3.lab.example"],
            "hosts.ini:5: hosts 'gpu3' and 'gpu3.lab.example' are the same: both are 10.0.0.3",
        ),
        (
            ["gpu1 ansible_ssh_private_key_file=none"],
            "hosts.ini:4: the private key of host 'gpu1' does not exist: none",
        ),
        (["gpu1 fleet_private_address='a b'"], "hosts.ini:4: fleet_private_address of host 'gpu1' is not an address"),
        (
            ["gpu1 ansible_ssh_extra_args='-F /none'"],
            "hosts.ini:4: host 'gpu1': your SSH configuration cannot be",
        ),
        (["gpu1 ansible_ssh_extra_args='-o StrictHostKeyChecking=perhaps'"], "hosts.ini:4: host 'gpu1': "),
    ],
)
def test_the_error_for_a_host_has_its_line(files: Files, lines: list[str], message: str) -> None:
    spec = files.spec(*lines)
    if "-F /none" in lines[0]:
        Path(StaticOptions.of(spec.options).inventory).write_text("\n\n\ngpu1 ansible_ssh_extra_args='-F /none'\n")
    with pytest.raises(ProviderError) as error:
        files.provider.check(spec)
    assert error.value.kind is ErrorKind.USAGE
    assert error.value.message.startswith(message)
    assert files.provider.list() == []


def test_a_user_without_any_key(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    files.config.write_text(f"IdentityFile {files.directory}/none\n")
    with pytest.raises(ProviderError, match="no key to log in to host 'gpu1'") as error:
        files.provider.check(files.spec("gpu1"))
    assert "must log in without a password" in error.value.hint
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    files.provider.check(files.spec("gpu1"))


def test_doctor_reports_that_openssh_is_missing(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(finding.ok for finding in files.provider.doctor())
    monkeypatch.setenv("PATH", "/nowhere")
    assert [finding.subject for finding in files.provider.doctor() if not finding.ok] == ["ssh", "ssh-keygen"]
