"""Guests of the Compute Engine emulator: real OpenSSH on both sides, the metadata server, pip, and clean-up."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from provision.keys import KeyPair, generate_ed25519
from provision.model import Host
from tests.cloud.conftest import Ssh
from tests.emulator import Emulator
from tests.emulator.client import COMMON, Client, t4
from tests.emulator.cloud import Instance
from tests.emulator.guests import SHARED
from tests.program import wait_for

pytestmark = pytest.mark.wire
ZONE = "us-central1-a"
OPEN = {"name": "open", "allowed": [{"I_p_protocol": "tcp"}], "source_ranges": ["127.0.0.0/8"]}


@dataclass
class Machine:
    """An instance, and how to log in on it."""

    emulated: Instance
    client: Ssh
    files: Path

    def host(self, user: str = "fleet") -> Host:
        """Return it as a provider reports it."""
        key = f"ssh-ed25519 {self.emulated.attributes['hostkeys', 'ssh-ed25519']}"
        name, address = self.emulated.blueprint.name, self.emulated.address
        return Host(name, address, 22, user, key, name, address)

    def run(self, command: str, user: str = "fleet", client: Ssh | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command on it."""
        wait_for("the host key", lambda: bool(self.emulated.attributes))
        return (client or self.client).run(self.host(user), command)

    def read(self, command: str, user: str = "fleet", client: Ssh | None = None) -> str:
        """Return the output of a command, which must succeed."""
        done = self.run(command, user, client)
        assert done.returncode == 0, f"{done.stderr}\n{self.guest.serial()}"
        return done.stdout

    @property
    def guest(self) -> Any:
        """Return the guest on it."""
        return self.emulated.guest


Boot = Callable[..., Machine]


@pytest.fixture
def boot(guest_emulator: Emulator, key: KeyPair, ssh: Ssh) -> Iterator[Boot]:
    """Return a function that boots instances; afterwards, nothing of them may be left."""
    guest_emulator.reset()
    client, numbers = Client(guest_emulator.url), itertools.count()
    client.change("Firewalls", "insert", firewall_resource=OPEN)

    def make(gpus: int = 0, keys: str = f"fleet:{key.public}") -> Machine:
        items = [*COMMON["metadata"]["items"][:1], {"key": "ssh-keys", "value": keys}]
        name = f"demo-{next(numbers)}"
        client.create(name, metadata={"items": items}, **(t4(gpus) if gpus else {}))
        instance = guest_emulator.cloud.instances[ZONE, name]
        return Machine(instance, ssh, guest_emulator.cloud.directory / str(instance.body["id"]))

    yield make
    directory = guest_emulator.cloud.directory
    ids = [str(instance.body["id"]) for instance in guest_emulator.cloud.instances.values()]
    guest_emulator.reset()
    assert {path.name for path in directory.iterdir()} <= SHARED
    assert not [number for number in ids if f"{directory}/{number}" in Path("/proc/mounts").read_text()]
    assert not [number for number in ids if processes(f"{directory}/{number}")]


def processes(words: str) -> list[psutil.Process]:
    """Return the processes of this computer with these words in their command line, in all namespaces."""
    matches = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and words in " ".join(process.cmdline()):
                matches.append(process)
    return matches


def test_each_guest_has_its_own_host_name_users_and_processes(boot: Boot) -> None:
    first, second = boot(), boot()
    with tempfile.NamedTemporaryFile(dir="/tmp") as file:
        assert first.run(f"ls {file.name}").returncode == 2
    name, user, uid, *rest = first.read("hostname; id -un; id -u; pwd; ps -e -o comm=").split()
    assert (name, user, rest[0], set(rest[1:])) == ("demo-0", "fleet", "/home/fleet", {"ps", "sshd"})
    assert int(uid) > 1000
    assert len({guest.read("cat /proc/sys/kernel/random/boot_id") for guest in (first, second)}) == 2
    first.read("mkdir .fleet && echo mine > .fleet/file && echo mine > /tmp/file")
    assert second.run("ls .fleet /tmp/file").returncode == 2
    assert (first.files / "covers/home/fleet/.fleet/file").read_text() == "mine\n"
    assert first.run("ls /root").returncode == 2


def test_only_keys_of_the_metadata_log_in_and_only_their_users_become_root(
    boot: Boot, key: KeyPair, tmp_path: Path
) -> None:
    guest, other = boot(), generate_ed25519("other")
    stranger = Ssh(tmp_path, other.private)
    assert "Permission denied (publickey)" in guest.run("true", client=stranger).stderr
    assert guest.run("true", "root").returncode == 255
    assert guest.read("sudo -n id -un") == "root\n"
    guest.guest.update_metadata({"ssh-keys": f"fleet:{other.public}\nroot:{other.public}\nadmin:{key.public}"}, {})
    assert [guest.read("id -un", user, stranger) for user in ("fleet", "root")] == ["fleet\n", "root\n"]
    assert guest.run("true").returncode == 255
    assert guest.run("true", "admin").returncode == 255  # the images have a group of this name
    guest.read(f"echo '{' '.join(key.public.split()[:2])}' >> .ssh/authorized_keys", client=stranger)
    guest.guest.update_metadata({"enable-oslogin": "TRUE"}, {"me_example_com": [key.public]})
    assert guest.run("true", client=stranger).returncode == 255
    assert guest.read("id -un") == "fleet\n"  # added by the user, not by the metadata
    refused = guest.run("sudo -n id -un", "me_example_com")
    assert (refused.returncode, refused.stderr) == (1, "sudo: a password is required\n")


def test_guests_end_if_their_program_is_killed(guest_emulator: Emulator, tmp_path: Path) -> None:
    assert guest_emulator  # guests can run here
    tmp_path.chmod(0o755)
    words = [sys.executable, "-m", "tests.emulator", "--operation-s", "0", "--directory", str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as program:
        try:
            assert program.stdout
            client = Client(program.stdout.readline().split()[1])
            client.change("Firewalls", "insert", firewall_resource=OPEN)
            client.create("demo")
            query = {"zone": ZONE, "instance": "demo"}
            wait_for(
                "sshd",
                lambda: "Server listening" in client.call("Instances", "get_serial_port_output", **query).contents,
            )
            guest = psutil.Process(program.pid).children(recursive=True)
            assert guest
        finally:
            program.kill()
    wait_for("the end of the guest", lambda: not any(process.is_running() for process in guest))


def test_python_has_the_modules_of_ubuntu_images(boot: Boot) -> None:
    guest = boot()
    refused = guest.run("python3 -m venv env")
    assert (refused.returncode, "ensurepip" in refused.stderr + refused.stdout) == (1, True)
    find = '[n for n in ("ensurepip", "pip", "setuptools") if importlib.util.find_spec(n)]'
    listing = f'import importlib.util, sysconfig as s; print({find}, s.get_path("stdlib"), s.get_path("include"))'
    modules, library, headers = guest.read(f"python3 -c '{listing}'").split()
    assert modules == "[]"
    assert guest.read(f"head -1 {library}/EXTERNALLY-MANAGED") == "[externally-managed]\n"
    assert guest.run(f"ls {headers}/Python.h").returncode == 2
    guest.read("python3 -m venv --without-pip env && env/bin/python -c 'import ssl, ctypes, sqlite3, venv'")


def test_shared_memory_ends_with_the_last_session_unless_logind_keeps_it(boot: Boot) -> None:
    guest = boot()
    guest.read("touch /dev/shm/mine")
    wait_for("the end of the file", lambda: guest.read("ls /dev/shm") == "")
