"""Routes of the user's SSH configuration on real servers: `ssh` and this program reach the same host."""

from __future__ import annotations

import dataclasses
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.errors import UnreachableError, WrongHostError
from fleet.remote.ssh.authentication import public_blob
from fleet.remote.ssh.connection import connect, fetch_host_key
from provision.keys import generate_ed25519
from provision.model import FleetSpec, Host
from provision.provider import ErrorKind, ProviderError
from provision.ssh_config.programs import AcceptedPrograms
from provision.static.options import StaticOptions
from provision.static.provider import StaticProvider
from tests.next_steps import next_lines
from tests.wire.machines import USER, Lab, Machine, agent, host_pair, lab

pytestmark = pytest.mark.wire


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Lab]:
    """Create a user without machines."""
    with lab(tmp_path / "lab") as user:
        yield user


def hosts_of(home: Lab, inventory: Path) -> list[Host]:
    """Return the hosts of an inventory, as the provider reports them."""
    provider = StaticProvider(Path(tempfile.mkdtemp(dir=home.directory)))
    count = sum(line.startswith(("gpu", "alpha")) for line in inventory.read_text().splitlines())
    spec = FleetSpec("demo", "static", count, options=StaticOptions(inventory=str(inventory)))
    AcceptedPrograms(home.directory / "programs").add(provider.programs(spec))
    provider.create(spec, [f"worker-{index}" for index in range(count)], lambda *_: None)
    return provider.hosts(spec, provider.list("demo"))


def home_through_fleet(host: Host) -> str:
    """Return the home directory of a host, read through this program's connection."""
    connection = connect(host, Path("/no/key"))
    try:
        session = connection.execute("echo $HOME", 10, "reading")
        return bytes(session.recv(1000)).decode()
    finally:
        connection.close()


def home_through_ssh(config: Path, name: str) -> str:
    """Return the home directory of a host, read through the OpenSSH client."""
    command = ["ssh", "-F", str(config), "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", name, "echo $HOME"]
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True, text=True, timeout=120
    ).stdout


def assert_same_host(home: Lab, config: Path, machine: Machine) -> None:
    """Both clients reach `machine`."""
    [host] = hosts_of(home, home.inventory(machine.name, config=config))
    assert home_through_fleet(host) == home_through_ssh(config, machine.name) == f"{machine.home}\n"


def login_count(machine: Machine) -> int:
    """Return the number of logins on a machine."""
    return machine.log.count("Accepted publickey")


# --- proxies ----------------------------------------------------------------------------------------------------


def test_each_route_of_the_configuration_is_used(home: Lab) -> None:
    first, second, gpu = home.machine("first"), home.machine("second"), home.machine("gpu1")
    home.add_known_hosts(first, second, gpu)
    for number, (block, used) in enumerate(
        (
            ("", ()),
            ("ProxyJump first", (first,)),
            (f"ProxyJump first,{USER}@{second.address}:{second.port}", (first, second)),
            ("ProxyJump second\nHost second\n  ProxyJump first", (first, second)),
            (f"ProxyCommand ssh -F {home.directory}/config4 -W %h:%p first", (first,)),
        )
    ):
        before = {each.name: login_count(each) for each in (first, second)}
        assert_same_host(home, home.config(f"Host gpu1\n  {block}\n", name=f"config{number}"), gpu)
        logins = {each.name: login_count(each) - before[each.name] for each in (first, second)}
        assert logins == {each.name: 2 * (each in used) for each in (first, second)}, block
    config = home.config("Host gpu1\n  ProxyJump first\n")
    [host] = hosts_of(home, home.inventory("gpu1", config=config))
    assert host.proxy
    assert fetch_host_key(host) == gpu.key
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(home.known_hosts)], check=True, capture_output=True)
    assert gpu.address not in home.known_hosts.read_text()  # hashed names are matched
    arguments = f"ansible_ssh_common_args='-F {home.config()} -o ProxyJump=first'"
    [host] = hosts_of(home, home.write("hosts.ini", f"gpu1 {arguments}\n"))
    before_it = login_count(first)
    assert home_through_fleet(host) == f"{gpu.home}\n"
    assert login_count(first) == before_it + 1
    assert fetch_host_key(dataclasses.replace(host, proxy=(), agreed="")) == gpu.key


def test_a_route_that_fails_is_reported_with_its_output(home: Lab) -> None:
    gpu = home.machine("gpu1")
    home.machine("bastion")
    home.add_known_hosts(gpu)
    [host] = hosts_of(home, home.inventory("gpu1", config=home.config("Host gpu1\n  ProxyJump bastion\n")))
    with pytest.raises(UnreachableError, match="ssh does not connect to worker-0") as error:
        home_through_fleet(host)
    assert "Host key verification failed" in error.value.cause
    assert next_lines(error.value).endswith("-- bastion")
    assert "BatchMode" not in next_lines(error.value)
    config = home.config("Host gpu1\n  ProxyCommand sh -c 'echo no way to %h >&2; exit 1'\n")
    [host] = hosts_of(home, home.inventory("gpu1", config=config))
    with pytest.raises(UnreachableError) as error:
        home_through_fleet(host)
    assert error.value.cause == f"no way to {gpu.address}"
    assert not next_lines(error.value)


# --- keys -------------------------------------------------------------------------------------------------------


def encrypted_key(home: Lab, name: str = "sealed") -> Path:
    """Return a private key with a passphrase; its public key is in the file next to it."""
    path = home.directory / name
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "open sesame", "-f", str(path)], check=True)
    return path


def decrypted(key: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "open sesame", "-N", "", "-f", str(key)], check=True)


def public(key: Path) -> str:
    return key.with_name(f"{key.name}.pub").read_text()


def test_a_key_with_a_passphrase_is_taken_from_the_agent(home: Lab) -> None:
    key = encrypted_key(home)
    gpu = home.machine("gpu1", authorized=public(key))
    home.add_known_hosts(gpu)
    socket = home.directory / "agent.sock"
    config = home.config(f"Host gpu1\n  IdentityFile {key}\n  IdentityAgent {socket}\n")
    [host] = hosts_of(home, home.inventory("gpu1", config=config))
    with pytest.raises(WrongHostError, match=f"rejects the login of {USER}") as error:
        home_through_fleet(host)
    assert "has a passphrase" in error.value.cause
    assert next_lines(error.value) == f"ssh-add {key}"
    copy = home.write("copy", key.read_text())
    decrypted(copy)
    with agent(home.directory, [copy]):
        assert_same_host(home, config, gpu)


def test_the_configured_key_is_tried_before_the_other_keys_of_the_agent(home: Lab) -> None:
    pairs = [generate_ed25519(str(number)) for number in range(8)]  # sshd allows six attempts
    files = [home.write(f"key-{number}", pair.private) for number, pair in enumerate(pairs)]
    home.write("named.pub", pairs[7].public + "\n")
    named, other = (home.machine(f"gpu{at}", authorized=pairs[at].public + "\n") for at in (7, 0))
    home.add_known_hosts(named, other)
    block = (
        f"Host gpu7\n  IdentityFile {home.directory}/named\nHost gpu*\n  IdentityAgent {home.directory}/agent.sock\n"
    )
    with agent(home.directory, files):
        assert_same_host(home, home.config(block), named)
        assert_same_host(home, home.config(block), other)
        config = home.config(f"{block}  IdentitiesOnly yes\n")
        assert_same_host(home, config, named)
        [host] = hosts_of(home, home.inventory("gpu0", config=config))
        with pytest.raises(WrongHostError, match="rejects the login") as error:
            home_through_fleet(host)
        assert error.value.cause == "it accepts none of your keys (1 tried)"


@pytest.mark.parametrize("kind", ["rsa", "ecdsa", "ed25519"])
def test_keys_of_every_type_log_in(home: Lab, kind: str) -> None:
    pair = host_pair(kind, home.directory)
    gpu = home.machine("gpu1", authorized=pair.public + "\n", pair=host_pair(kind, home.directory))
    home.add_known_hosts(gpu)
    key = home.write("typed", pair.private)
    assert_same_host(home, home.config(f"Host gpu1\n  IdentityFile {key}\n"), gpu)


def test_files_without_a_usable_key_are_skipped(home: Lab) -> None:
    gpu = home.machine("gpu1")
    home.add_known_hosts(gpu)
    legacy = home.directory / "legacy"
    command = ["ssh-keygen", "-q", "-t", "rsa", "-b", "2048", "-m", "PEM", "-N", "open sesame", "-f", str(legacy)]
    subprocess.run(command, check=True)
    files = [home.write("dsa", host_pair("dsa", home.directory).private), home.write("text", "no key\n"), legacy]
    lines = "".join(f"  IdentityFile {path}\n" for path in files)
    assert_same_host(home, home.config(f"Host gpu1\n{lines}"), gpu)


def test_the_public_key_is_read_without_the_passphrase(home: Lab) -> None:
    key = encrypted_key(home)
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
    home.add_known_hosts(gpu)
    adjacent, moved = (home.write(name, generate_ed25519(name).private) for name in ("adjacent", "moved"))
    for key in (adjacent, moved):
        done = subprocess.run(["ssh-keygen", "-y", "-f", str(key)], check=True, capture_output=True, text=True)
        home.write(f"{key.name}.pub", done.stdout)
        sign = ["ssh-keygen", "-q", "-s", str(ca), "-I", "me", "-n", USER, str(key)]
        subprocess.run(sign, check=True)
    certificate = (home.directory / "moved-cert.pub").rename(home.directory / "elsewhere")
    assert_same_host(home, home.config(f"Host gpu1\n  IdentityFile {adjacent}\n"), gpu)
    assert_same_host(home, home.config(f"Host gpu1\n  IdentityFile {moved}\n  CertificateFile {certificate}\n"), gpu)
    plain = home.machine("gpu2", authorized=public(adjacent))  # it trusts no authority: the key is used alone
    home.add_known_hosts(plain)
    assert_same_host(home, home.config(f"Host gpu2\n  IdentityFile {adjacent}\n"), plain)


def test_a_host_that_requires_a_second_method_is_refused(home: Lab) -> None:
    gpu = home.machine("gpu1", more="AuthenticationMethods publickey,publickey\n")
    home.add_known_hosts(gpu)
    [host] = hosts_of(home, home.inventory("gpu1"))
    with pytest.raises(WrongHostError, match="rejects the login with a key alone") as raised:
        home_through_fleet(host)
    assert "asks for: publickey" in raised.value.cause
    assert next_lines(raised.value) == f"ssh -i {home.key} -p {gpu.port} {USER}@{gpu.address}"
    of_a_provider = dataclasses.replace(host, identities=())
    with pytest.raises(WrongHostError, match="rejects the login with a key alone"):
        connect(of_a_provider, home.key)


# --- host keys --------------------------------------------------------------------------------------------------


def test_a_changed_host_key_is_refused_with_the_command_that_fixes_it(home: Lab) -> None:
    gpu = home.machine("gpu1")
    other = generate_ed25519("other").public.split()
    home.known_hosts.write_text(f"[{gpu.address}]:{gpu.port} {other[0]} {other[1]}\n")
    [host] = hosts_of(home, home.inventory("gpu1"))
    with pytest.raises(WrongHostError, match="has a different host key than before") as error:
        home_through_fleet(host)
    assert f"ssh-keygen -R '[{gpu.address}]:{gpu.port}'" in next_lines(error.value)


def test_two_names_of_the_same_machine_are_refused(home: Lab) -> None:
    pair = generate_ed25519("one")
    first, second = home.machine("gpu1", pair=pair), home.machine("gpu2", pair=pair)
    home.add_known_hosts(first, second)
    with pytest.raises(ProviderError, match="gpu1 and gpu2 have the same host key, SHA256:") as error:
        hosts_of(home, home.inventory("gpu1", "gpu2"))
    assert error.value.kind is ErrorKind.USAGE
