"""The local provider on a computer with missing programs, failing servers, or damaged files."""

from __future__ import annotations

import dataclasses
import os
import pwd
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from provision.keys import generate_ed25519
from provision.local import login, processes, sshd
from provision.local.instances import Records
from provision.local.provider import WORKERS_MAX, LocalProvider
from provision.model import FleetSpec, InstanceState
from provision.provider import ErrorKind, ProviderError
from tests.next_steps import command_lines

KEY = generate_ed25519("the fleet's").public
SPEC = FleetSpec("demo", "local", 1, KEY)


def quiet(name: str, step: str) -> None:
    pass


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[LocalProvider]:
    provider = LocalProvider(tmp_path / "local")
    yield provider
    provider.delete(provider.list(), quiet)
    assert list(tmp_path.glob("local/*")) == []


@pytest.fixture
def fake_sshd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Replaces sshd by a shell script."""

    def put(script: str) -> None:
        directory = tmp_path / "bin"
        directory.mkdir()
        program = directory / "sshd"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{directory}{os.pathsep}{os.environ['PATH']}")

    return put


# --- what is missing --------------------------------------------------------------------------------------------


@pytest.fixture
def without_sshd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set PATH to one directory, and search no other directory for sshd."""
    directory = tmp_path / "programs"
    directory.mkdir()
    monkeypatch.setattr(sshd, "SYSTEM_DIRECTORIES", ())
    monkeypatch.setenv("PATH", str(directory))
    return directory


@pytest.mark.parametrize(
    ("tool", "step"),
    [
        ("apt-get", "apt-get install openssh-server"),
        ("none", ""),
    ],
)
def test_without_sshd_the_error_says_how_to_install_it(
    provider: LocalProvider, without_sshd: Path, tool: str, step: str
) -> None:
    (without_sshd / tool).touch(0o755)
    with pytest.raises(ProviderError, match=r"sshd.* is not installed on this computer") as error:
        provider.check(SPEC)
    assert error.value.kind is ErrorKind.MISSING
    assert command_lines(error.value) in (step, f"sudo {step}")


def test_an_interpreter_that_does_not_exist_is_refused(provider: LocalProvider) -> None:
    with pytest.raises(ProviderError, match="--python /nope is not a program on this computer") as error:
        provider.check(dataclasses.replace(SPEC, python="/nope"))
    assert (error.value.kind.value, error.value.again) == ("usage", {"--python": None})
    provider.check(dataclasses.replace(SPEC, python=sys.executable))
    provider.check(dataclasses.replace(SPEC, python="python3"))


def test_sshd_is_found_where_the_path_does_not_lead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "sshd"
    program.touch(0o755)
    monkeypatch.setattr(sshd, "SYSTEM_DIRECTORIES", (str(tmp_path),))
    monkeypatch.setenv("PATH", "/nowhere")
    assert sshd.find() == str(program)


@pytest.mark.parametrize(
    ("shell", "entry", "reason"),
    [
        ("/bin/false", "*", "alice cannot log in.*/bin/false"),
        ("/no/such/shell", "*", "alice cannot log in.*/no/such/shell"),
        ("/bin/sh", "!", "the account is locked"),
        ("/bin/sh", "!$6$x", "the account is locked"),
        ("/bin/sh", "*", ""),
    ],
)
def test_an_account_that_cannot_log_in_cannot_have_a_fleet(
    provider: LocalProvider, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shell: str, entry: str, reason: str
) -> None:
    account = pwd.struct_passwd(("alice", "x", 1000, 1000, "", "/home/alice", shell))
    shadow = tmp_path / "shadow"
    shadow.write_text(f"some:!:1::::::\nalice:{entry}:1::::::\n")
    monkeypatch.setattr(login, "SHADOW", shadow)
    monkeypatch.setattr(login, "current_user", lambda: account)
    if not reason:
        provider.check(SPEC)
        return
    with pytest.raises(ProviderError, match=reason) as error:
        provider.check(SPEC)
    assert error.value.kind is ErrorKind.MISSING
    assert command_lines(error.value)


def test_a_user_without_an_account_entry_is_refused(provider: LocalProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(number: int) -> pwd.struct_passwd:
        raise KeyError(number)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(ProviderError, match="user ID 0 has no entry in the user database of this system"):
        provider.check(SPEC)


def test_a_root_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    provider = LocalProvider(tmp_path / "file" / "local")
    with pytest.raises(
        ProviderError,
        match="cannot create the directory",
    ) as error:
        provider.create(SPEC, ["worker-0"], quiet)
    assert error.value.cause
    assert error.value.hint


# --- starting ---------------------------------------------------------------------------------------------------


def test_an_sshd_that_dies_at_once_is_reported_with_its_last_words(
    provider: LocalProvider, fake_sshd: Callable[[str], None]
) -> None:
    fake_sshd('echo "no hostkeys available -- exiting." >&2; exit 1')
    with pytest.raises(ProviderError, match="could not start worker-0, worker-1") as error:
        provider.create(dataclasses.replace(SPEC, workers=2), ["worker-0", "worker-1"], quiet)
    assert "exited immediately after its start: no hostkeys available -- exiting." in error.value.cause
    assert Path(error.value.hint.removeprefix("see ")).read_text().startswith("no hostkeys")
    assert [instance.state for instance in provider.list("demo")] == [InstanceState.STARTING] * 2


def test_an_sshd_that_says_nothing_is_given_up_and_ended_by_delete(
    provider: LocalProvider, fake_sshd: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_sshd(f'echo $$ > "{tmp_path}/pid"; exec sleep 600')
    monkeypatch.setattr(sshd, "READY_TIMEOUT_S", 2.0)
    with pytest.raises(ProviderError, match="could not start worker-0") as error:
        provider.create(SPEC, ["worker-0"], quiet)
    assert "no SSH response from 127." in error.value.cause
    silent = psutil.Process(int((tmp_path / "pid").read_text()))
    assert silent.is_running()
    provider.delete(provider.list(), quiet)
    assert not silent.is_running()


def test_a_failed_start_does_not_stop_the_other_starts(
    provider: LocalProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = sshd.loopback_address
    monkeypatch.setattr(
        sshd, "loopback_address", lambda fleet, index: real(fleet, index) if index != 1 else "192.0.2.1"
    )
    with pytest.raises(ProviderError, match="could not start worker-1") as error:
        provider.create(dataclasses.replace(SPEC, workers=3), ["worker-0", "worker-1", "worker-2"], quiet)
    assert "Cannot assign requested address" in error.value.cause
    assert {each.name: each.state.value for each in provider.list("demo")} == {
        "worker-0": "running",
        "worker-1": "starting",
        "worker-2": "running",
    }


def test_a_port_that_was_taken_meanwhile_is_left_to_its_owner(
    provider: LocalProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = sshd.free_port
    with socket.create_server((sshd.loopback_address("demo", 0), 0)) as owner:
        taken = owner.getsockname()[1]
        ports = iter([taken])
        monkeypatch.setattr(
            sshd, "free_port", lambda address, preferred: next(ports, None) or real(address, preferred=preferred)
        )
        provider.create(SPEC, ["worker-0"], quiet)
        [instance] = provider.list("demo")
        assert provider.hosts(SPEC, [instance])[0].port != taken
        assert next(ports, None) is None


def test_the_only_loopback_address_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    class Narrow(socket.socket):
        def bind(self, address: object) -> None:
            raise OSError(99, "Cannot assign requested address")

    monkeypatch.setattr(socket, "socket", Narrow)
    assert sshd.loopback_address("demo", 3) == "127.0.0.1"


def test_addresses_are_the_same_every_time_and_differ_between_workers() -> None:
    addresses = [sshd.loopback_address("demo", index) for index in range(WORKERS_MAX)]
    assert addresses == [sshd.loopback_address("demo", index) for index in range(WORKERS_MAX)]
    assert len(set(addresses)) == WORKERS_MAX == 256
    assert all(address.startswith("127.") and not address.startswith("127.0.") for address in addresses)
    assert sshd.loopback_address("other", 0) != addresses[0]
    assert all(sshd.free_port("127.0.0.1", preferred=0) >= 10_000 for _ in range(20))  # not those of tasks


def test_the_configuration_accepts_only_one_user_with_a_key() -> None:
    text = sshd.configuration(Path('/a "b" 100%/c'), "127.1.2.3", 40000, "DOM\\me@x")
    lines = dict(line.split(" ", 1) for line in text.splitlines())
    assert lines["ListenAddress"] == "127.1.2.3:40000"
    assert lines["HostKey"] == '"/a \\"b\\" 100%/c/host_key"'
    assert lines["AuthorizedKeysFile"] == '"/a \\"b\\" 100%%/c/authorized_keys"'
    assert lines["AllowUsers"] == "DOM?me?x"
    assert lines["PermitRootLogin"] == "prohibit-password"
    assert {lines[name] for name in ("PasswordAuthentication", "KbdInteractiveAuthentication", "UsePAM")} == {"no"}
    assert "AcceptEnv" not in lines


# --- on disk ----------------------------------------------------------------------------------------------------


def test_a_host_has_private_files_a_session_of_its_own_and_a_key(provider: LocalProvider, tmp_path: Path) -> None:
    provider.create(SPEC, ["worker-0"], quiet)
    directory, records = tmp_path / "local" / "demo-worker-0", Records(tmp_path / "local")
    assert stat.S_IMODE(directory.parent.stat().st_mode) == stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((directory / "host_key").stat().st_mode) == 0o600
    assert (directory / "authorized_keys").read_text() == KEY + "\n"
    [instance] = provider.list()
    host = provider.hosts(SPEC, [instance])[0]
    assert (host.python, host.root) == (sys.executable, str(directory / "fleet"))
    assert (host.private_address, host.key_alias) == (host.address, f"local.{instance.id}")
    assert (instance.zone, instance.price_usd_h) == ("localhost", 0.0)
    record = records.read("demo", "worker-0")
    assert record is not None
    assert os.getsid(record.pid) == record.pid  # Ctrl-C on a terminal does not reach it
    (directory / "host_key.pub").unlink()
    with pytest.raises(ProviderError, match="the host key of worker-0 in fleet demo is missing"):
        provider.hosts(SPEC, provider.list())
    records.write(dataclasses.replace(record, pid=os.getpid()))  # the number of another process
    assert provider.list("demo")[0].state is InstanceState.STOPPED
    provider.delete(provider.list("demo"), quiet)
    assert not processes.listens(record.pid, record.id)


@pytest.mark.parametrize("text", ["", "[]", "null", '{"id": "x"}', "\udcff"])
def test_a_record_that_cannot_be_read_is_listed_and_can_be_deleted(
    provider: LocalProvider, tmp_path: Path, text: str
) -> None:
    directory = tmp_path / "local" / "demo-worker-0"
    directory.mkdir(parents=True)
    record = tmp_path / "local" / "demo-worker-0.json"
    record.write_bytes(text.encode("utf-8", "surrogateescape"))
    [instance] = provider.list("demo")
    assert (instance.name, instance.state) == ("worker-0", InstanceState.STOPPED)
    provider.delete([instance], quiet)
    assert not directory.exists()
    assert not record.exists()


# --- deleting ---------------------------------------------------------------------------------------------------


def test_a_host_does_not_delete_itself(provider: LocalProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    provider.create(SPEC, ["worker-0"], quiet)
    [instance] = provider.list()
    with monkeypatch.context() as patch:
        patch.setenv("FLEET_INSTANCE", instance.id)
        with pytest.raises(ProviderError, match="this program runs on one of the hosts to delete") as error:
            provider.delete([instance], quiet)
    assert error.value.kind is ErrorKind.USAGE
    assert provider.list() == [instance]


def test_an_interrupted_deletion_leaves_no_data_and_is_made_again(
    provider: LocalProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider.create(SPEC, ["worker-0"], quiet)
    (instance,) = provider.list()

    def interrupt(directory: Path) -> None:
        (directory / "host_key").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("provision.local.provider.remove_directory", interrupt)
        with pytest.raises(KeyboardInterrupt):
            provider.delete([instance], quiet)
    (left,) = provider.list()
    assert not left.has_data
    provider.create(SPEC, ["worker-0"], quiet)
    (again,) = provider.list()
    assert again.has_data
    assert again.state is InstanceState.RUNNING
    assert again.id != instance.id


def test_a_directory_that_cannot_be_deleted_stays_listed(
    provider: LocalProvider, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(directory: Path) -> None:
        raise PermissionError(1, "Operation not permitted", str(directory))

    provider.create(SPEC, ["worker-0"], quiet)
    with monkeypatch.context() as patch:
        patch.setattr("provision.directories.REMOVE_TIMEOUT_S", 0.1)
        patch.setattr("shutil.rmtree", refuse)
        with pytest.raises(ProviderError, match="demo-worker-0 could not be deleted") as error:
            provider.delete(provider.list(), quiet)
    assert "not permitted" in error.value.cause
    assert [instance.state for instance in provider.list()] == [InstanceState.STOPPED]
