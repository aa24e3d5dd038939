"""Guests of the Compute Engine emulator: real OpenSSH on both sides, the metadata server, pip, and clean-up."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import itertools
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import paramiko
import psutil
import pytest
from packaging.requirements import Requirement

from fleet.errors import NotReadyError
from fleet.events import BootstrapProgress
from fleet.fleets.connect import ready
from provision.gce.options import GceOptions
from provision.keys import KeyPair, generate_ed25519
from provision.model import FleetSpec, Host
from tests.emulator import packages, python
from tests.emulator.accounts import granted
from tests.emulator.boot import BootDelays
from tests.emulator.catalog.images import IMAGES, Image, find_image
from tests.emulator.guests import Guest, GuestSpec, NoGuest, SshGuests, obstacle
from tests.emulator.metadata import RESTART
from tests.process.train.agent.index_server import serve
from tests.process.train.agent.wheels import wheel
from tests.program import wait_for
from tests.wire.test_bootstrap import StoringSink
from train.agent.host.facts import parse_gpus
from train.agent.host.usage import GPU_COMMAND, parse_gpu_use

pytestmark = pytest.mark.wire
_NUMBERS = itertools.count(1)
_NAP = itertools.count(100_000 + os.getpid() % 10_000 * 100)


def _no_address() -> str:
    """A loopback address that no other test uses."""
    pid = os.getpid()
    return f"127.{100 + pid // 250 % 100}.{pid % 250}.{next(_NUMBERS)}"


@dataclass
class Booted:
    """A guest with its published attributes, and the commands to log in on it."""

    spec: GuestSpec
    directory: Path
    guest: Guest = field(init=False)
    published: dict[str, str] = field(default_factory=dict)

    def publish(self, namespace: str, key: str, value: str) -> None:
        if (namespace, key, value) == RESTART:
            threading.Thread(target=self.guest.restart).start()
        self.published[f"{namespace}/{key}"] = value

    def wait(self) -> None:
        wait_for(
            f"sshd of {self.spec.name}\n{self.guest.serial()}", lambda: "Server listening" in self.guest.serial()
        )

    def ssh(
        self, command: str, key: Path, user: str = "fleet", host_key: str = ""
    ) -> subprocess.CompletedProcess[str]:
        known_hosts = self.directory / f"known_hosts-{next(_NUMBERS)}"
        blob = host_key or self.published["hostkeys/ssh-ed25519"]
        known_hosts.write_text(f"{self.spec.address} ssh-ed25519 {blob}\n")
        options = (
            "StrictHostKeyChecking=yes",
            "IdentitiesOnly=yes",
            "BatchMode=yes",
            f"UserKnownHostsFile={known_hosts}",
        )
        command_line = [
            "ssh",
            "-F",
            "none",
            "-i",
            str(key),
            *[f"-o{option}" for option in options],
            "-p",
            str(self.spec.ssh_port),
        ]
        return subprocess.run(
            [*command_line, f"{user}@{self.spec.address}", command],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def read(self, command: str, key: Path, user: str = "fleet") -> str:
        done = self.ssh(command, key, user)
        assert done.returncode == 0, f"{done.stderr}\n{self.guest.serial()}"
        return done.stdout


Boot = Callable[..., Booted]


@dataclass(frozen=True)
class Key:
    """A key pair in files."""

    pair: KeyPair
    path: Path


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Key:
    return _key(tmp_path_factory.mktemp("key"))


def _key(directory: Path) -> Key:
    pair = generate_ed25519("a-user")
    path = directory / f"key-{next(_NUMBERS)}"
    path.touch(0o600)
    path.write_text(pair.private)
    return Key(pair, path)


@pytest.fixture(scope="module")
def guests(tmp_path_factory: pytest.TempPathFactory) -> SshGuests:
    if reason := obstacle():
        pytest.skip(reason)
    return SshGuests(tmp_path_factory.mktemp("guests"))


@pytest.fixture
def boot(guests: SshGuests, key: Key, tmp_path: Path) -> Iterator[Boot]:
    """Boot guests, and remove them; fail if a part of them remains."""
    booted: list[Booted] = []

    def make(
        metadata: Mapping[str, str] | None = None,
        *,
        gpus: int = 0,
        made_by: SshGuests = guests,
        image: Image | None = IMAGES[0],
        wait: bool = True,
    ) -> Booted:
        items = {"ssh-keys": f"fleet:{key.pair.public}", "enable-guest-attributes": "TRUE", **(metadata or {})}
        name = f"demo-worker-{len(booted)}"
        gpu = "nvidia-tesla-t4" if gpus else ""
        spec = GuestSpec(
            name, "us-central1-a", "proj-1", str(1000 + len(booted)), _no_address(), 22, gpus, gpu, items,
            tmp_path / name, image,
        )  # fmt: skip
        booted_guest = Booted(spec, tmp_path)
        booted_guest.guest = made_by(spec, booted_guest.publish)
        booted.append(booted_guest)
        booted_guest.guest.boot()
        if wait:
            booted_guest.wait()
        return booted_guest

    yield make
    for booted_guest in booted:
        booted_guest.guest.remove()
    assert [booted_guest.spec.name for booted_guest in booted if booted_guest.spec.directory.exists()] == []
    assert str(tmp_path) not in Path("/proc/mounts").read_text()
    assert _processes(str(tmp_path)) == []
    names = {f"{booted_guest.spec.name} console" for booted_guest in booted} | {
        f"metadata {booted_guest.spec.address}" for booted_guest in booted
    }
    assert [thread.name for thread in threading.enumerate() if thread.name in names] == []


def _processes(words: str) -> list[psutil.Process]:
    """Return the processes of this machine with these words in their command line, in all namespaces."""
    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and words in " ".join(process.cmdline()):
                processes.append(process)
    return processes


def _get(place: str, path: str, *, flavor: bool = True, data: bytes | None = None) -> tuple[int, str, str]:
    """Return status, body, and ETag of a request to a metadata server."""
    request = urllib.request.Request(
        f"http://{place}{path}",
        data=data,
        headers={"Metadata-Flavor": "Google"} if flavor else {},
        method="GET" if data is None else "PUT",
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode(), answer.headers["ETag"]
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(), ""


INSTANCE = "/computeMetadata/v1/instance/"


# ---------------------------------------------------------------------------------------------------- logging in


def test_each_guest_has_its_own_host_name_users_and_processes(boot: Boot, key: Key, tmp_path: Path) -> None:
    first, second = boot(), boot()
    with tempfile.NamedTemporaryFile(dir="/tmp") as file:
        assert first.ssh(f"ls {file.name}", key.path).returncode == 2
    output = first.read("hostname; id -un; id -u; pwd; echo ~; ps -e -o comm=", key.path)
    name, user, uid, *rest = output.split()
    assert (name, user) == (first.spec.name, "fleet")
    assert int(uid) > 1000
    assert (rest[:2], set(rest[2:])) == (["/home/fleet", "/home/fleet"], {"ps", "sshd"})
    boots = {guest.read("cat /proc/sys/kernel/random/boot_id", key.path) for guest in (first, second)}
    assert len(boots) == 2
    first.read("mkdir -p .fleet && echo mine > .fleet/file && echo mine > /tmp/file", key.path)
    assert second.ssh("ls .fleet /tmp/file", key.path).returncode == 2
    assert (first.spec.directory / "covers/home/fleet/.fleet/file").read_text() == "mine\n"
    assert first.ssh("ls /root", key.path).returncode == 2


def test_only_the_published_host_key_is_offered(boot: Boot, key: Key) -> None:
    guest = boot()
    other = generate_ed25519("other").public.split()[1]
    refused = guest.ssh("true", key.path, host_key=other)
    assert refused.returncode == 255
    assert "HOST IDENTIFICATION HAS CHANGED" in refused.stderr
    lines = guest.guest.serial().splitlines()
    at = lines.index("-----BEGIN SSH HOST KEY KEYS-----")
    assert lines[at + 1].split()[:2] == ["ssh-ed25519", guest.published["hostkeys/ssh-ed25519"]]
    assert lines[at + 2] == "-----END SSH HOST KEY KEYS-----"


def test_only_keys_of_the_metadata_can_log_in(boot: Boot, key: Key, tmp_path: Path) -> None:
    guest = boot()
    other = _key(tmp_path)
    refused = guest.ssh("true", other.path)
    assert (refused.returncode, "Permission denied (publickey)" in refused.stderr) == (255, True)
    assert guest.ssh("true", key.path, "root").returncode == 255

    keys = f"fleet:{other.pair.public}\nroot:{other.pair.public}\nmore-2:{other.pair.public}"
    guest.guest.update_metadata({"ssh-keys": keys}, {})
    assert [guest.read("id -un", other.path, user) for user in ("fleet", "root", "more-2")] == [
        "fleet\n", "root\n", "more-2\n",
    ]  # fmt: skip
    assert guest.ssh("true", key.path).returncode == 255

    guest.read(f"echo '{key.pair.public}' >> .ssh/authorized_keys", other.path)
    guest.guest.update_metadata({"ssh-keys": f"more-2:{other.pair.public}"}, {})
    assert guest.ssh("true", other.path).returncode == 255
    assert guest.read("id -un", key.path) == "fleet\n"  # added by the user, not by the metadata


def test_no_account_gets_the_name_of_a_group_of_the_image(boot: Boot, key: Key) -> None:
    names = ("admin", "docker", "sudo", "ann")
    guest = boot({"ssh-keys": "\n".join(f"{name}:{key.pair.public}" for name in names)})
    assert [guest.ssh("true", key.path, name).returncode for name in names] == [255, 255, 255, 0]


def test_only_login_shells_of_deep_learning_images_print_a_banner_and_find_other_cuda_libraries(
    boot: Boot, key: Key
) -> None:
    guest = boot()
    show = "printf '[%s]' \"$LD_LIBRARY_PATH\""
    assert guest.read(show, key.path) == "[]"
    assert guest.read(f"sh -c {shlex.quote(show)}", key.path) == "[]"
    text = guest.read(f"bash -lc {shlex.quote(show)}", key.path)
    assert "Welcome to the Google Deep Learning VM" in text
    assert "[/usr/local/cuda/lib64:" in text
    plain = boot(image=find_image("projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-amd64"))
    assert plain.read(f"bash -lc {shlex.quote(show)}", key.path) == "[]"


def test_ssh_keys_of_the_metadata_are_read_as_by_the_guest_agent() -> None:
    text = "me:ssh-ed25519 AAAA one two\n\nbad line\nMe:ssh-rsa AAAA\nyou:ssh-rsa BBBB\nme:ssh-rsa CCCC\nx:nokey CCCC"
    keys = {"me": ["ssh-ed25519 AAAA one two", "ssh-rsa CCCC"], "you": ["ssh-rsa BBBB"]}
    assert granted({"ssh-keys": text}, {}) == keys
    assert granted({"ssh-keys": text, "enable-oslogin": "FALSE"}, {"me_b_c": ["k"]}) == keys
    assert granted({"ssh-keys": text, "enable-oslogin": "TRUE"}, {"me_b_c": ["k"]}) == {"me_b_c": ["k"]}


def test_scp_and_terminals_work(boot: Boot, key: Key, tmp_path: Path) -> None:
    guest = boot()
    client = paramiko.SSHClient()
    blob = guest.published["hostkeys/ssh-ed25519"]
    known_hosts = tmp_path / "known"
    known_hosts.write_text(f"{guest.spec.address} ssh-ed25519 {blob}\n")
    client.load_host_keys(str(known_hosts))
    with client:
        client.connect(
            guest.spec.address, username="fleet", pkey=paramiko.Ed25519Key.from_private_key_file(str(key.path)),
            look_for_keys=False, allow_agent=False,
        )  # fmt: skip
        with client.open_sftp() as sftp, sftp.open("file", "w") as file:
            file.write("text")
        _, out, _ = client.exec_command("cat file; tty", get_pty=True)
        assert out.read().decode().startswith("text/dev/pts/")


# ------------------------------------------------------------------------------------------------------ metadata


def test_the_metadata_server_describes_the_instance(boot: Boot, key: Key) -> None:
    guest = boot({"fleet-name": "demo"})
    place = guest.read("echo $GCE_METADATA_HOST", key.path).strip()
    assert _get(place, f"{INSTANCE}name", flavor=False)[0] == 403
    assert _get(place, f"{INSTANCE}no/such")[0] == 404
    values = {name: _get(place, INSTANCE + name)[1] for name in ("id", "name", "zone", "attributes/fleet-name")}
    assert values == {
        "id": "1000",
        "name": guest.spec.name,
        "zone": "projects/proj-1/zones/us-central1-a",
        "attributes/fleet-name": "demo",
    }
    inside = guest.read(
        'python3 -c "import urllib.request as u, os; print(u.urlopen(u.Request('
        "'http://' + os.environ['GCE_METADATA_HOST'] + '/computeMetadata/v1/instance/?recursive=true', "
        "headers={'Metadata-Flavor': 'Google'})).read().decode())\"",
        key.path,
    )
    assert '"maintenanceEvent": "NONE"' in inside
    assert _get(place, f"{INSTANCE}guest-attributes/fleet/state", data=b"ready")[0] == 200
    assert guest.published["fleet/state"] == "ready"
    guest.guest.update_metadata({"fleet-name": "other"}, {})
    assert _get(place, f"{INSTANCE}attributes/fleet-name")[1] == "other"
    assert _get(place, f"{INSTANCE}guest-attributes/fleet/state", data=b"x")[0] == 403


def test_a_preemption_answers_requests_that_wait_for_it(boot: Boot, key: Key) -> None:
    guest = boot()
    place = guest.read("echo $GCE_METADATA_HOST", key.path).strip()
    _, value, etag = _get(place, f"{INSTANCE}preempted")
    assert value == "FALSE"
    wait = f"{INSTANCE}preempted?wait_for_change=true&timeout_sec="
    started = time.monotonic()
    assert _get(place, f"{wait}0.3&last_etag={etag}")[1:] == ("FALSE", etag)
    assert time.monotonic() - started >= 0.3
    threading.Timer(0.2, guest.guest.warn_of_preemption).start()
    assert _get(place, f"{wait}15&last_etag={etag}")[1] == "TRUE"
    assert _get(place, f"{wait}15&last_etag={etag}")[1] == "TRUE"  # an earlier change is reported at once
    guest.guest.power_off()
    guest.guest.boot()
    wait_for("sshd again", lambda: guest.guest.serial().count("Server listening") == 2)
    place = guest.read("echo $GCE_METADATA_HOST", key.path).strip()
    started = time.monotonic()
    assert _get(place, f"{wait}0.3")[1] == "FALSE"
    assert time.monotonic() - started >= 0.3


def test_no_host_key_is_published_without_guest_attributes(boot: Boot) -> None:
    guest = boot({"enable-guest-attributes": "FALSE"})
    assert guest.published == {}


# --------------------------------------------------------------------------------------------------- power


def test_power_off_ends_all_processes_and_keeps_the_disk(boot: Boot, key: Key) -> None:
    guest = boot()
    nap = f"{next(_NAP)}.25"
    guest.read(
        f"echo kept > file; echo x > /tmp/x; setsid -f sh -c 'sleep {nap} & sleep {nap}' >/dev/null 2>&1", key.path
    )
    wait_for("the daemon", lambda: len(_processes(f"sleep {nap}")) >= 2)
    host_key = guest.published["hostkeys/ssh-ed25519"]
    boot_id = guest.read("cat /proc/sys/kernel/random/boot_id", key.path)
    guest.guest.power_off()
    assert _processes(f"sleep {nap}") == []
    assert guest.ssh("true", key.path).returncode == 255
    guest.guest.boot()
    wait_for("sshd again", lambda: guest.guest.serial().count("Server listening") == 2)
    assert guest.published["hostkeys/ssh-ed25519"] == host_key
    assert guest.read("cat file; ls /tmp/x || true", key.path) == "kept\n"
    assert guest.read("cat /proc/sys/kernel/random/boot_id", key.path) != boot_id


def test_a_guest_can_be_powered_off_at_any_time(boot: Boot) -> None:
    booted_guest = boot(wait=False)
    for pause in range(0, 60, 3):
        booted_guest.guest.boot()
        time.sleep(pause / 1000)
        booted_guest.guest.power_off()
        assert _processes(str(booted_guest.spec.directory)) == []
        assert _processes(booted_guest.spec.address) == []
    booted_guest.guest.boot()
    printed = booted_guest.guest.serial().count("Server listening")
    wait_for("sshd at last", lambda: booted_guest.guest.serial().count("Server listening") > printed)


def test_a_boot_takes_the_configured_time(boot: Boot, tmp_path_factory: pytest.TempPathFactory) -> None:
    started = time.monotonic()
    guest = boot(made_by=SshGuests(tmp_path_factory.mktemp("slow"), BootDelays(0.4)), wait=False)
    wait_for("the first words", lambda: "Linux version" in guest.guest.serial())
    assert (guest.published, "Server listening" in guest.guest.serial()) == ({}, False)
    wait_for("the host key", lambda: "hostkeys/ssh-ed25519" in guest.published)
    assert time.monotonic() - started >= 0.4
    guest.wait()


def test_eight_guests_boot_in_parallel(boot: Boot, tmp_path_factory: pytest.TempPathFactory) -> None:
    slow = SshGuests(tmp_path_factory.mktemp("slow"), BootDelays(4.0))
    booted = [boot(made_by=slow, wait=False) for _ in range(8)]

    def serials() -> list[str]:
        return [booted_guest.guest.serial() for booted_guest in booted]

    wait_for("eight kernels", lambda: all("Linux version" in serial for serial in serials()), 4.0 * len(booted))
    wait_for("eight sshds", lambda: all("Server listening" in serial for serial in serials()), 4.0 * len(booted))


def test_an_address_in_use_is_reported_on_the_console(boot: Boot, guests: SshGuests, tmp_path: Path) -> None:
    first = boot()
    spec = GuestSpec("second", "z", "p", "1", first.spec.address, 22, 0, "", {}, tmp_path / "second")
    second = guests(spec, first.publish)
    second.boot()
    wait_for("the complaint", lambda: "Address already in use" in second.serial())
    second.remove()


OUTLIVED = """
import sys, time
from pathlib import Path
from tests.emulator.guests import GuestSpec, SshGuests
directory, address, keys = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
items = {"ssh-keys": keys, "enable-guest-attributes": "TRUE"}
spec = GuestSpec("doomed", "z", "p", "1", address, 22, 0, "", items, directory / "doomed")
guest = SshGuests(directory / "shared")(spec, lambda space, key, value: print(value, flush=True))
guest.boot()
while "Server listening" not in guest.serial():
    time.sleep(0.01)
print("up", flush=True)
time.sleep(120)
"""


def test_guests_end_if_their_program_is_killed(guests: SshGuests, key: Key, tmp_path: Path) -> None:
    address = _no_address()
    words = [sys.executable, "-c", OUTLIVED, str(tmp_path), address, f"fleet:{key.pair.public}"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout
            host_key = program.stdout.readline().strip()
            assert program.stdout.readline() == "up\n"
            spec = GuestSpec("to_delete", "z", "p", "1", address, 22, 0, "", {}, tmp_path / "to_delete")
            nap = f"{next(_NAP)}.75"
            command = f"setsid -f sleep {nap} >/dev/null 2>&1"
            assert Booted(spec, tmp_path).ssh(command, key.path, host_key=host_key).returncode == 0
            assert len(_processes(f"sleep {nap}")) == 1
        finally:
            program.send_signal(signal.SIGKILL)
    wait_for("the end of the guest", lambda: not _processes(f"sleep {nap}") and not _processes(str(tmp_path)))


# ---------------------------------------------------------------------------------------------------------- GPUs


def test_gpus_are_listed_as_the_agent_reads_them(boot: Boot, key: Key) -> None:
    guest = boot(gpus=2)
    listed = parse_gpus(
        guest.read(
            "nvidia-smi --query-gpu=index,name,memory.total,driver_version --format=csv,noheader,nounits", key.path
        )
    )
    assert [(gpu.name, gpu.memory_mib) for gpu in listed] == [("Tesla T4", 15360)] * 2
    assert all(gpu.driver.startswith("580.") for gpu in listed)
    once = " ".join(word for word in GPU_COMMAND if word not in GPU_COMMAND[-2:])
    assert [use.number for use in parse_gpu_use(guest.read(once, key.path).splitlines())] == [0, 1]
    # The agent lets it continue.
    lasting = guest.ssh(f"timeout 0.5 {' '.join(GPU_COMMAND)}", key.path)
    assert (lasting.returncode, len(lasting.stdout.splitlines())) == (124, 2)
    table = guest.read("nvidia-smi", key.path).splitlines()
    assert "Driver Version: 580." in table[2]
    assert len({len(line) for line in table[1:] if line}) == 1
    assert sum("Tesla T4" in line for line in table) == 2
    assert guest.ssh("nvidia-smi --query-gpu=nonsense --format=csv", key.path).returncode != 0


# ------------------------------------------------------------------------------------------------------ packages


def test_the_packages_satisfy_their_requirements(tmp_path: Path) -> None:
    for _ in range(2):  # by a later program in the same directory
        packages.build(tmp_path / "packages")
    available = {package.name: package for package in packages.packages()}
    for package in available.values():
        for text in package.requires:
            requirement = Requirement(text)
            extra = "and-cuda" if package.name == "tensorflow" else ""
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                name = requirement.name.lower().replace("_", "-")
                assert requirement.specifier.contains(available[name].version, prereleases=True), text
    assert {"tensorflow", "tf-keras", "keras", "numpy", "nvidia-cudnn-cu12"} <= available.keys()
    assert len(list((tmp_path / "packages").glob("*.whl"))) == len(available)
    assert [place for place, _ in available["protobuf"].links] == ["google/_upb", "google/protobuf"]


def test_python_has_the_modules_of_ubuntu_images(boot: Boot, key: Key) -> None:
    guest = boot()
    assert guest.ssh("nvidia-smi", key.path).returncode == 127  # it has no GPU
    refused = guest.ssh("python3 -m venv env", key.path)
    assert refused.returncode == 1
    assert "ensurepip" in refused.stderr
    find = '[n for n in ("ensurepip", "pip", "setuptools") if importlib.util.find_spec(n)]'
    listing = f'import importlib.util, sysconfig as s; print({find}, s.get_path("stdlib"), s.get_path("include"))'
    modules, library, headers = guest.read(f"python3 -c '{listing}'", key.path).split()
    assert modules == "[]"
    assert guest.read(f"head -1 {library}/EXTERNALLY-MANAGED", key.path) == "[externally-managed]\n"
    assert guest.ssh(f"ls {headers}/Python.h", key.path).returncode == 2
    guest.read("python3 -m venv --without-pip env && env/bin/python -c 'import ssl, ctypes, sqlite3, venv'", key.path)


def test_the_python_of_an_image_has_its_version_if_this_computer_has_it(tmp_path: Path) -> None:
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\nprintf '/opt\\n3.10\\n'\n")
    other.chmod(0o755)
    available = python.sources({python.VARIABLE: str(other)})
    assert available == [python.THIS, python.Source(Path("/opt"), "3.10")]
    assert [python.select(image.python, available) for image in IMAGES if "2204" in image.name] == available[1:] * 4
    assert python.select("3.0", available) == python.THIS
    with pytest.raises(ValueError, match="is not an interpreter"):
        python.sources({python.VARIABLE: "/bin/false"})


def test_python_is_managed_by_apt_only_in_images_that_began_with_it(boot: Boot, key: Key) -> None:
    image = find_image("projects/ubuntu-os-cloud/global/images/family/ubuntu-2204-lts")
    assert [each.family for each in IMAGES if each.cloud_init and not each.is_managed][-1] == "ubuntu-2204-lts"
    library = "import sysconfig; print(sysconfig.get_path('stdlib'))"
    guest = boot(image=image)
    path = guest.read(f'/usr/bin/python3 -c "{library}"', key.path).strip()
    assert guest.ssh(f"test -e {path}/EXTERNALLY-MANAGED", key.path).returncode == 1
    assert path == guest.read(f'python3 -c "{library}"', key.path).strip()


# ---------------------------------------------------------------------------------------------- root and sessions


def test_only_users_of_the_metadata_become_root_by_sudo(boot: Boot, key: Key) -> None:
    guest = boot()
    assert guest.read("sudo -n id -un", key.path) == "root\n"
    assert guest.ssh("shutdown -r now", key.path).returncode == 1
    keys = {"me_example_com": [key.pair.public]}
    guest.guest.update_metadata({"enable-oslogin": "TRUE"}, keys)
    refused = guest.ssh("sudo -n id -un", key.path, "me_example_com")
    assert (refused.returncode, refused.stderr) == (1, "sudo: a password is required\n")


def test_shared_memory_ends_with_the_last_session_unless_logind_keeps_it(boot: Boot, key: Key) -> None:
    guest = boot()
    guest.read("touch /dev/shm/mine", key.path)
    wait_for("the end of the file", lambda: guest.read("ls /dev/shm", key.path) == "")
    setting = (
        "mkdir -p /etc/systemd/logind.conf.d; printf '[Login]\\nRemoveIPC=no\\n' >/etc/systemd/logind.conf.d/a.conf"
    )
    guest.read(f'sudo sh -c "{setting}; systemctl kill -s HUP systemd-logind"; touch /dev/shm/mine', key.path)
    for _ in range(3):
        assert guest.read("ls /dev/shm", key.path) == "mine\n"


def test_libraries_of_an_upgraded_driver_match_it_after_a_restart(boot: Boot, key: Key) -> None:
    guest = boot(gpus=1)
    guest.read("sudo apt-get install -y tree && nvidia-smi", key.path)
    refused = guest.ssh("sudo apt-get upgrade -y && nvidia-smi", key.path)
    assert (refused.returncode, "Driver/library version mismatch" in refused.stdout) == (18, True)
    guest.ssh("sudo reboot", key.path)
    wait_for("sshd again", lambda: guest.guest.serial().count("Server listening") == 2)
    guest.read("nvidia-smi", key.path)


LOOK = """
import importlib, importlib.metadata as metadata, os, sys, tensorflow as tf
print([metadata.version(name) for name in ("tensorflow", "keras", "tf-keras")], tf.__version__)
gpus = tf.config.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
tf.config.set_visible_devices(gpus[1], "GPU")
print([gpu.name for gpu in gpus], [gpu.name for gpu in tf.config.get_visible_devices("GPU")])
print(tf.config.experimental.get_device_details(gpus[0])["compute_capability"])
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(3,))])
    model.compile("sgd", "mse")
model.fit(tf.ones((8, 3)), tf.ones((8, 1)), batch_size=8, verbose=0)
print(strategy.num_replicas_in_sync, tf.keras.__name__.split(".")[0], int(model.optimizer.iterations.numpy()))
try:
    import pytest
except ImportError:
    print("only what was installed")
config = sys.modules["tensorflow.python.framework.config"]
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
print([device.device_type for device in importlib.reload(config).list_physical_devices()])
"""


@pytest.mark.e2e
def test_a_guest_with_gpus_gets_a_tensorflow_that_computes(boot: Boot, key: Key) -> None:
    guest = boot(gpus=2)
    address = guest.spec.address
    host_key = f"ssh-ed25519 {guest.published['hostkeys/ssh-ed25519']}"
    host = Host("worker-0", address, 22, "fleet", host_key, guest.spec.name, address)
    requirements = ("tensorflow[and-cuda]~=2.21.0", "tf-keras~=2.21.0")
    fleet_spec = FleetSpec("tests", "gce", 1, packages=requirements, options=GceOptions(gpus=2))
    sink = StoringSink()
    (made,) = ready(fleet_spec, [host], key.path, sink)
    assert made.python.startswith("/home/fleet/.fleet/venvs/")
    assert sink.steps("worker-0")[-3:] == ["checking the GPUs", "checking the GPUs of TensorFlow", "ready"]
    assert isinstance(sink.events[-1], BootstrapProgress)
    assert sink.events[-1].detail.endswith(", 2 of Tesla T4")
    again = StoringSink()
    assert ready(fleet_spec, [host], key.path, again) == [made]
    assert again.steps("worker-0") == ["checking Python", "checking the GPUs", "ready"]
    more = dataclasses.replace(fleet_spec, options=GceOptions(gpus=4))
    with pytest.raises(NotReadyError, match=r"this host has 2 of 4 GPUs$"):
        ready(more, [host], key.path, StoringSink())

    pip = f"{made.python} -m pip"
    refused = guest.ssh(f"{pip} install -q no-such-package", key.path)
    assert (refused.returncode, "No matching distribution found" in refused.stderr) == (1, True)
    assert guest.read(f"{pip} check", key.path) == "No broken requirements found.\n"
    cluster = {"cluster": {"worker": [f"127.0.0.1:{20000 + os.getpid() % 9000}"]}}
    config = json.dumps({**cluster, "task": {"type": "worker", "index": 0}})
    (guest.spec.directory / "covers/home/fleet/look.py").write_text(LOOK)
    output = guest.read(f"TF_CONFIG='{config}' TF_USE_LEGACY_KERAS=1 {made.python} look.py 2>/dev/null", key.path)
    installed = {package.name: package.version for package in packages.packages()}
    versions = [installed[name] for name in ("tensorflow", "keras", "tf-keras")]
    assert output.splitlines() == [
        f"{versions} {versions[0]}",
        "['/physical_device:GPU:0', '/physical_device:GPU:1'] ['/physical_device:GPU:1']",
        "(7, 5)",
        "1 tf_keras 1",
        "only what was installed",
        "['CPU']",
    ]


def test_each_guest_installs_the_packages_from_the_index(boot: Boot, key: Key, tmp_path: Path) -> None:
    wheel(tmp_path / "index", "adds", "1.0", "VALUE = 41\n", requires=["more"])
    wheel(tmp_path / "index", "more", "1.0")
    hosts = []
    for number in range(2):
        guest = boot()
        host_key = f"ssh-ed25519 {guest.published['hostkeys/ssh-ed25519']}"
        address = guest.spec.address
        hosts.append(Host(f"worker-{number}", address, 22, "fleet", host_key, guest.spec.name, address))
    with serve(tmp_path / "index") as index:
        index_url = f"http://{index.location}/simple"
        fleet_spec = FleetSpec("tests", "gce", 2, packages=("adds",), index_url=index_url, options=GceOptions())
        sink = StoringSink()
        made = ready(fleet_spec, hosts, key.path, sink)
        assert len({host.python for host in made}) == 1
        for host in hosts:
            assert "installing packages" in sink.steps(host.name)
        requests = sorted(index.paths)
        assert ready(fleet_spec, hosts, key.path, StoringSink()) == made
        assert sorted(index.paths) == requests
    guest.read(f"{made[0].python} -B -c 'import adds, more; assert adds.VALUE == 41'", key.path)  # on the last one


# ------------------------------------------------------------------------------------------------------ no guest


def test_an_instance_without_a_guest_publishes_a_key_at_once(tmp_path: Path) -> None:
    spec = GuestSpec("w", "z", "p", "1", "127.0.0.9", 22, 0, "", {"enable-guest-attributes": "TRUE"}, tmp_path / "w")
    published: dict[tuple[str, str], str] = {}
    guest = NoGuest(spec, lambda space, name, value: published.update({(space, name): value}))
    guest.boot()
    ((place, value),) = published.items()
    assert place == ("hostkeys", "ssh-ed25519")
    assert paramiko.PKey.from_type_string("ssh-ed25519", base64.b64decode(value)).get_name() == "ssh-ed25519"
    guest.power_off()
    guest.remove()
    assert f"ssh-ed25519 {value}" in guest.serial()
    assert not spec.directory.exists()
