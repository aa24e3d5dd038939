"""The user's own SSH, on real servers: each way is gone by `ssh` and by this program, and leads to the same place."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.errors import UnreachableError
from fleet.remote.ssh.authentication import public_blob
from fleet.remote.ssh.connection import connect
from fleet.remote.ssh.errors import WrongHostError
from fleet.remote.ssh.host_key import fetch_host_key
from provision.keys import generate_ed25519
from provision.model import FleetSpec, Host
from provision.provider import ErrorKind, ProviderError
from provision.static.provider import StaticProvider
from tests.next_steps import next_lines
from tests.wire.machines import USER, Lab, Machine, agent, host_pair, lab

pytestmark = pytest.mark.wire


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Lab]:
    """A user without machines."""
    with lab(tmp_path / "lab") as one:
        yield one


def hosts_of(home: Lab, inventory: Path) -> list[Host]:
    """The hosts of an inventory, as the provider tells them."""
    provider = StaticProvider(home.directory / "static")
    count = sum(line.startswith(("gpu", "alpha")) for line in inventory.read_text().splitlines())
    spec = FleetSpec("demo", "static", count, inventory=str(inventory))
    provider.create(spec, [f"worker-{index}" for index in range(count)], lambda *_: None)
    return provider.hosts(spec, provider.list("demo"))


def by_us(host: Host) -> str:
    """What a host says of itself to this program."""
    connection = connect(host, Path("/no/key"))
    try:
        session = connection.open_session(10)
        session.exec_command("echo $HOME")
        return bytes(session.recv(1000)).decode()
    finally:
        connection.close()


def by_ssh(config: Path, name: str) -> str:
    """What it says to the OpenSSH client."""
    command = ["ssh", "-F", str(config), "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", name, "echo $HOME"]
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True, text=True, timeout=30
    ).stdout


def same_place(home: Lab, config: Path, machine: Machine) -> None:
    """Both come to `machine`."""
    [host] = hosts_of(home, home.inventory(machine.name, config=config))
    assert by_us(host) == by_ssh(config, machine.name) == f"{machine.home}\n"


def jumped(machine: Machine) -> int:
    """How many logins a machine has seen."""
    return machine.log.count("Accepted publickey")


# --- proxies ----------------------------------------------------------------------------------------------------


def test_without_a_proxy(home: Lab) -> None:
    gpu = home.machine("gpu1")
    home.knows(gpu)
    same_place(home, home.config(), gpu)


def test_a_jump_host_is_jumped_over(home: Lab) -> None:
    bastion, gpu = home.machine("bastion"), home.machine("gpu1")
    home.knows(bastion, gpu)
    same_place(home, home.config("Host gpu1\n  ProxyJump bastion\n"), gpu)
    assert jumped(bastion) == 2


def test_a_chain_of_jump_hosts(home: Lab) -> None:
    first, second, gpu = home.machine("first"), home.machine("second"), home.machine("gpu1")
    home.knows(first, second, gpu)
    same_place(home, home.config(f"Host gpu1\n  ProxyJump first,{USER}@{second.address}:{second.port}\n"), gpu)
    assert (jumped(first), jumped(second)) == (2, 2)


def test_a_jump_host_that_is_reached_by_another(home: Lab) -> None:
    first, second, gpu = home.machine("first"), home.machine("second"), home.machine("gpu1")
    home.knows(first, second, gpu)
    same_place(home, home.config("Host gpu1\n  ProxyJump second\nHost second\n  ProxyJump first\n"), gpu)
    assert (jumped(first), jumped(second)) == (2, 2)


def test_a_proxy_command(home: Lab) -> None:
    bastion, gpu = home.machine("bastion"), home.machine("gpu1")
    home.knows(bastion, gpu)
    command = f"ssh -F {home.directory}/config -W %h:%p bastion"
    same_place(home, home.config(f"Host gpu1\n  ProxyCommand {command}\n"), gpu)
    assert jumped(bastion) == 2


def test_the_jump_host_of_an_inventory(home: Lab) -> None:
    bastion, gpu = home.machine("bastion"), home.machine("gpu1")
    home.knows(bastion, gpu)
    inventory = home.write("hosts.ini", f"gpu1 ansible_ssh_common_args='-F {home.config()} -o ProxyJump=bastion'\n")
    [host] = hosts_of(home, inventory)
    assert by_us(host) == f"{gpu.home}\n"
    assert jumped(bastion) == 1


def test_a_jump_host_that_is_not_known_is_named(home: Lab) -> None:
    gpu = home.machine("gpu1")
    home.machine("bastion")
    home.knows(gpu)
    [host] = hosts_of(home, home.inventory("gpu1", config=home.config("Host gpu1\n  ProxyJump bastion\n")))
    with pytest.raises(UnreachableError, match="ssh does not connect to worker-0") as error:
        by_us(host)
    assert "Host key verification failed" in error.value.cause
    assert next_lines(error.value).endswith("-- bastion")
    assert "BatchMode" not in next_lines(error.value)


def test_a_proxy_command_that_fails_is_told_in_its_own_words(home: Lab) -> None:
    gpu = home.machine("gpu1")
    home.knows(gpu)
    config = home.config("Host gpu1\n  ProxyCommand sh -c 'echo no way to %h >&2; exit 1'\n")
    [host] = hosts_of(home, home.inventory("gpu1", config=config))
    with pytest.raises(UnreachableError) as error:
        by_us(host)
    assert error.value.cause == f"no way to {gpu.address}"


# --- keys -------------------------------------------------------------------------------------------------------


def sealed_key(home: Lab, name: str = "sealed") -> Path:
    """A private key with a passphrase, its public half beside it."""
    path = home.directory / name
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "open sesame", "-f", str(path)], check=True)
    return path


def unsealed(key: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "open sesame", "-N", "", "-f", str(key)], check=True)


def public(key: Path) -> str:
    return key.with_name(f"{key.name}.pub").read_text()


def test_a_key_with_a_passphrase_is_taken_from_the_agent(home: Lab) -> None:
    key = sealed_key(home)
    gpu = home.machine("gpu1", authorized=public(key))
    home.knows(gpu)
    socket = home.directory / "agent.sock"
    config = home.config(f"Host gpu1\n  IdentityFile {key}\n  IdentityAgent {socket}\n")
    [host] = hosts_of(home, home.inventory("gpu1", config=config))
    with pytest.raises(WrongHostError, match=f"does not let {USER} in") as error:
        by_us(host)
    assert "is locked by a passphrase" in error.value.cause
    assert next_lines(error.value) == f"ssh-add {key}"
    copy = home.write("copy", key.read_text())
    unsealed(copy)
    with agent(home.directory, [copy]):
        same_place(home, config, gpu)


def test_of_many_keys_in_the_agent_the_one_that_is_named_comes_first(home: Lab) -> None:
    pairs = [generate_ed25519(str(number)) for number in range(8)]  # sshd allows six attempts
    files = [home.write(f"key-{number}", pair.private) for number, pair in enumerate(pairs)]
    home.write("named.pub", pairs[7].public + "\n")
    gpu = home.machine("gpu1", authorized=pairs[7].public + "\n")
    home.knows(gpu)
    socket = home.directory / "agent.sock"
    block = f"Host gpu1\n  IdentityFile {home.directory}/named\n  IdentityAgent {socket}\n"
    with agent(home.directory, files):
        same_place(home, home.config(block), gpu)
        same_place(home, home.config(f"{block}  IdentitiesOnly yes\n"), gpu)


def test_the_agent_s_other_keys_stay_there_where_the_user_says_so(home: Lab) -> None:
    pair = generate_ed25519("other")
    gpu = home.machine("gpu1", authorized=pair.public + "\n")
    home.knows(gpu)
    socket = home.directory / "agent.sock"
    config = home.config(f"Host gpu1\n  IdentityAgent {socket}\n  IdentitiesOnly yes\n")
    with agent(home.directory, [home.write("other", pair.private)]):
        [host] = hosts_of(home, home.inventory("gpu1", config=config))
        with pytest.raises(WrongHostError, match="does not let") as error:
            by_us(host)
        assert error.value.cause == "it takes none of your 1 keys"
        same_place(home, home.config(f"Host gpu1\n  IdentityAgent {socket}\n"), gpu)


@pytest.mark.parametrize("kind", ["rsa", "ecdsa", "ed25519"])
def test_keys_of_every_type_log_in(home: Lab, kind: str) -> None:
    pair = host_pair(kind, home.directory)
    gpu = home.machine("gpu1", authorized=pair.public + "\n", pair=host_pair(kind, home.directory))
    home.knows(gpu)
    key = home.write("typed", pair.private)
    same_place(home, home.config(f"Host gpu1\n  IdentityFile {key}\n"), gpu)


def test_files_that_hold_no_usable_key_are_passed_over(home: Lab) -> None:
    gpu = home.machine("gpu1")
    home.knows(gpu)
    legacy = home.directory / "legacy"
    command = ["ssh-keygen", "-q", "-t", "rsa", "-m", "PEM", "-N", "open sesame", "-f", str(legacy)]
    subprocess.run(command, check=True)
    files = [home.write("dsa", host_pair("dsa", home.directory).private), home.write("text", "no key\n"), legacy]
    lines = "".join(f"  IdentityFile {path}\n" for path in files)
    same_place(home, home.config(f"Host gpu1\n{lines}"), gpu)


def test_the_public_half_is_told_without_the_passphrase(home: Lab) -> None:
    key = sealed_key(home)
    blob = public_blob(key)
    key.with_name("sealed.pub").unlink()
    assert public_blob(key) == blob
    assert len(blob) == 51
    assert public_blob(home.directory / "none") == public_blob(home.known_hosts) == b""


def test_the_user_s_certificate_logs_in(home: Lab) -> None:
    authority = generate_ed25519("authority")
    ca = home.write("ca", authority.private)
    home.write("ca.pub", authority.public + "\n")
    trusted = f"TrustedUserCAKeys {home.directory}/ca.pub\n"
    gpu = home.machine("gpu1", authorized="", more=trusted)
    home.knows(gpu)
    beside, apart = (home.write(name, generate_ed25519(name).private) for name in ("beside", "apart"))
    for key in (beside, apart):
        done = subprocess.run(["ssh-keygen", "-y", "-f", str(key)], check=True, capture_output=True, text=True)
        home.write(f"{key.name}.pub", done.stdout)
        sign = ["ssh-keygen", "-q", "-s", str(ca), "-I", "me", "-n", USER, str(key)]
        subprocess.run(sign, check=True)
    certificate = (home.directory / "apart-cert.pub").rename(home.directory / "elsewhere")
    same_place(home, home.config(f"Host gpu1\n  IdentityFile {beside}\n"), gpu)
    same_place(home, home.config(f"Host gpu1\n  IdentityFile {apart}\n  CertificateFile {certificate}\n"), gpu)


def test_a_certificate_that_counts_for_nothing_does_not_hide_its_key(home: Lab) -> None:
    key = home.write("mine", generate_ed25519("mine").private)
    done = subprocess.run(["ssh-keygen", "-y", "-f", str(key)], check=True, capture_output=True, text=True)
    home.write("mine.pub", done.stdout)
    subprocess.run(["ssh-keygen", "-q", "-s", str(key), "-I", "me", "-n", USER, str(key)], check=True)
    gpu = home.machine("gpu1", authorized=public(key))
    home.knows(gpu)
    same_place(home, home.config(f"Host gpu1\n  IdentityFile {key}\n"), gpu)


def test_a_key_is_not_enough_for_a_host_that_wants_more(home: Lab) -> None:
    gpu = home.machine("gpu1", more="AuthenticationMethods publickey,publickey\n")
    home.knows(gpu)
    [host] = hosts_of(home, home.inventory("gpu1"))
    with pytest.raises(WrongHostError, match="does not let"):
        by_us(host)


# --- host keys --------------------------------------------------------------------------------------------------


def test_the_key_of_a_host_is_asked_for_on_the_way_to_it(home: Lab) -> None:
    bastion, gpu = home.machine("bastion"), home.machine("gpu1")
    home.knows(bastion, gpu)
    inventory = home.inventory("gpu1")
    for block in ("", "Host gpu1\n  ProxyJump bastion\n"):
        home.config(block)
        [host] = hosts_of(home, inventory)
        assert bool(host.proxy) == bool(block)
        assert fetch_host_key(host) == gpu.key


def test_hashed_names_are_known(home: Lab) -> None:
    gpu = home.machine("gpu1")
    home.knows(gpu)
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(home.known_hosts)], check=True, capture_output=True)
    assert gpu.address not in home.known_hosts.read_text()
    same_place(home, home.config(), gpu)


def test_a_key_that_changed_is_refused_with_the_way_out(home: Lab) -> None:
    gpu = home.machine("gpu1")
    other = generate_ed25519("other").public.split()
    home.known_hosts.write_text(f"[{gpu.address}]:{gpu.port} {other[0]} {other[1]}\n")
    [host] = hosts_of(home, home.inventory("gpu1"))
    with pytest.raises(WrongHostError, match="its host key has changed") as error:
        by_us(host)
    assert f"ssh-keygen -R '[{gpu.address}]:{gpu.port}'" in next_lines(error.value)


def test_two_names_for_one_machine_are_refused(home: Lab) -> None:
    pair = generate_ed25519("one")
    first, second = home.machine("gpu1", pair=pair), home.machine("gpu2", pair=pair)
    home.knows(first, second)
    with pytest.raises(ProviderError, match="gpu1 and gpu2 are one machine: both have the host key SHA256:") as error:
        hosts_of(home, home.inventory("gpu1", "gpu2"))
    assert error.value.kind is ErrorKind.USAGE
