"""Tests of connections that one thread drives, against real servers and damaged connections."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import random
import re
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paramiko
import psutil
import pytest
from paramiko.common import MSG_CHANNEL_OPEN_SUCCESS, MSG_EXT_INFO, MSG_USERAUTH_SUCCESS

from fleet.errors import FleetError, NotReadyError, UnreachableError, WrongHostError
from fleet.remote.fanout import fan_out
from fleet.remote.ssh import connection as connection_module
from fleet.remote.ssh import driven, internals
from fleet.remote.ssh.command import run_remote
from fleet.remote.ssh.connection import HostConnection, NoSocketError, Start, connect
from fleet.remote.ssh.driven import DrivenTransport
from fleet.remote.ssh.loop import LOOP
from fleet.remote.ssh.packets import Packets
from fleet.remote.ssh.transport import SSHTransport
from provision.keys import generate_ed25519
from provision.model import Host
from tests.program import wait_for
from tests.wire.hosts import Hosts, Wire
from tests.wire.machines import USER, lab

pytestmark = pytest.mark.wire
_ServerTransport: Any = paramiko.Transport  # the type stubs do not describe its internals


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Fail if a test leaves a thread or a socket."""

    def state() -> tuple[set[threading.Thread], int]:
        return set(threading.enumerate()), len(psutil.Process().net_connections())

    threads, sockets = state()
    yield
    wait_for("the end of all threads and sockets", lambda: not state()[0] - threads and state()[1] <= sockets)


@contextlib.contextmanager
def relay(host: Host, change: Callable[[int, bytes], bytes]) -> Iterator[Host]:
    """Yield a host that is reached through a relay.

    `change` gets the number of bytes that came from the host before, and the next ones, and returns what is passed
    on; if that is less, the connection breaks.
    """
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        threads: list[threading.Thread] = []

        def forward(source: socket.socket, target: socket.socket, change: Callable[[int, bytes], bytes]) -> None:
            passed = 0
            with contextlib.suppress(OSError):
                while data := source.recv(1 << 16):
                    changed = change(passed, data)
                    passed += len(data)
                    target.sendall(changed)
                    if len(changed) < len(data):
                        break
            for each in (source, target):
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    near = stack.enter_context(listener.accept()[0])
                    far = stack.enter_context(socket.create_connection((host.address, host.port)))
                    for task in ((near, far, lambda _, data: data), (far, near, change)):
                        threads.append(threading.Thread(target=forward, args=task))
                        threads[-1].start()

        threads.append(threading.Thread(target=accept))
        threads[-1].start()
        try:
            yield dataclasses.replace(host, address="127.0.0.1", port=listener.getsockname()[1])
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            for thread in list(threads):
                thread.join(90)


def run(connection: HostConnection, command: str, data: bytes = b"") -> bytes:
    """Return the output of a command with this input."""
    session = connection.open_session(60)
    session.exec_command(command)
    sender = threading.Thread(target=send, args=(session, data))
    sender.start()
    output = b"".join(iter(lambda: session.recv(1 << 16), b""))
    sender.join()
    return output


def send(session: paramiko.Channel, data: bytes) -> None:
    """Send all data to a command, or as much as the connection takes before it breaks."""
    with contextlib.suppress(OSError, EOFError):
        for start in range(0, len(data), 1 << 18):
            session.sendall(data[start : start + (1 << 18)])
        session.shutdown_write()


@contextlib.contextmanager
def connected(host: Host, hosts: Hosts) -> Iterator[HostConnection]:
    """Connect to a host."""
    connection = connect(host, hosts.key)
    try:
        assert isinstance(connection.transport, DrivenTransport)
        yield connection
    finally:
        connection.close()


def test_one_thread_serves_all_connections(hosts: Hosts) -> None:
    before = set(threading.enumerate())  # perhaps with the thread of closed connections, which ends
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            for host in hosts.hosts:
                stack.enter_context(connected(host, hosts))
        assert len(set(threading.enumerate()) - before) <= 1


def test_a_connection_that_breaks_during_the_login_is_an_error_of_the_host(hosts: Hosts) -> None:
    total = 0

    def count(passed: int, data: bytes) -> bytes:
        nonlocal total
        total = passed + len(data)
        return data

    with relay(hosts.hosts[0], count) as host:
        connect(host, hosts.key).close()
    for limit in [*range(0, total, 211), total - 1]:

        def cut(passed: int, data: bytes, limit: int = limit) -> bytes:
            return data[: limit - passed]

        with relay(hosts.hosts[0], cut) as host, contextlib.suppress(UnreachableError):
            connect(host, hosts.key, connect_timeout_s=1).close()  # what follows the login is not needed for it


@pytest.mark.parametrize("seed", range(12))
def test_damaged_bytes_end_the_connection_with_an_error(hosts: Hosts, seed: int) -> None:
    chance = random.Random(seed)
    at = chance.randrange(3000)
    noise = chance.randbytes(chance.choice([1, 20]))

    def damage(passed: int, data: bytes) -> bytes:
        start = at - passed
        return data[:start] + noise + data[start + len(noise) :] if 0 <= start < len(data) else data

    with relay(hosts.hosts[0], damage) as host, contextlib.suppress(FleetError):
        connection = connect(host, hosts.key, connect_timeout_s=2)
        try:
            session = connection.open_session(2)
            session.settimeout(2)
            with contextlib.suppress(paramiko.SSHException, EOFError, OSError):
                session.exec_command("echo right")
                assert session.recv(100) in (b"right\n", b"")
        finally:
            connection.close()


def random_server(seed: int) -> Callable[[socket.socket], None]:
    """Return a server that sends random bytes, after a version or without one."""
    chance = random.Random(seed)
    version = chance.choice([b"", b"SSH-2.0-x\r\n", b"SSH-1.0-x\r\n", b"hello\r\nSSH-2.0-x\r\n"])
    size = chance.choice([0, 10, 5000])

    def serve(near: socket.socket) -> None:
        with contextlib.suppress(OSError), near:
            near.sendall(version + chance.randbytes(size))

    return serve


@pytest.mark.parametrize("seed", range(8))
def test_a_server_that_sends_random_bytes_is_an_error_of_the_host(hosts: Hosts, seed: int) -> None:
    serve = random_server(seed)
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=lambda: serve(server.accept()[0]))
        thread.start()
        host = dataclasses.replace(hosts.hosts[0], address="127.0.0.1", port=server.getsockname()[1])
        with pytest.raises(UnreachableError, match="worker-0"):
            connect(host, hosts.key, connect_timeout_s=2)
        thread.join()


@pytest.mark.parametrize("cipher", ["aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes256-ctr"])
@pytest.mark.parametrize("mac", ["hmac-sha2-256", "hmac-sha2-512-etm@openssh.com", "hmac-sha1"])
def test_all_ciphers_and_macs_carry_data_while_the_keys_change(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch, cipher: str, mac: str
) -> None:
    monkeypatch.setattr(connection_module, "_CIPHERS", (cipher,))
    monkeypatch.setattr(DrivenTransport, "_preferred_macs", (mac,))
    monkeypatch.setattr(Packets, "REKEY_BYTES", 1 << 20)
    data = os.urandom(5 << 20)
    with connected(hosts.hosts[0], hosts) as connection:
        transport: Any = connection.transport
        assert transport.local_cipher == cipher
        first = transport.H
        assert run(connection, "cat", data) == data
        assert transport.H != transport.session_id == first, "the keys have changed"


def test_large_data_in_both_directions_arrives_while_other_connections_work(hosts: Hosts) -> None:
    data = random.Random(1).randbytes(1 << 20) * 60
    digest = hashlib.sha256(data).digest()

    def copy(host: Host) -> bytes:
        with connected(host, hosts) as connection:
            return hashlib.sha256(run(connection, "cat", data)).digest()

    assert [outcome.value for outcome in fan_out(hosts.hosts, copy)] == [digest] * 3


@contextlib.contextmanager
def blocked(connection: HostConnection, hosts: Hosts) -> Iterator[Any]:
    """Stop the first host, send to it until its socket takes nothing more, and yield the transport; sever it then."""
    transport: Any = connection.transport
    session = connection.open_session(60)
    session.exec_command("cat > /dev/null")
    transport.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    with hosts.hung(0):
        sender = threading.Thread(target=send, args=(session, b"x" * (64 << 20)))
        sender.start()
        while not transport.packetizer.unsent:
            time.sleep(0.01)
        yield transport
        assert sender.is_alive()
        connection.sever()
        sender.join(90)
        assert not sender.is_alive()


def test_a_stopped_host_delays_only_those_who_wait_for_it(hosts: Hosts) -> None:
    with (
        connected(hosts.hosts[0], hosts) as stopped,
        connected(hosts.hosts[1], hosts) as other,
        blocked(stopped, hosts),
    ):
        assert run(other, "cat", b"x" * 100_000) == b"x" * 100_000


def test_a_loop_that_waits_for_a_stopped_host_is_not_busy(hosts: Hosts) -> None:
    calls: list[int] = []
    with connected(hosts.hosts[0], hosts) as stopped, blocked(stopped, hosts) as transport:
        flush = transport.packetizer.flush

        def observe() -> None:
            calls.append(1)
            flush()

        transport.packetizer.flush = observe
        time.sleep(0.3)
        assert len(calls) < 10


def test_an_idle_connection_sends_keepalives(hosts: Hosts) -> None:
    with connected(hosts.hosts[0], hosts) as connection:
        transport: Any = connection.transport
        sent = threading.Event()
        send_message = transport.packetizer.send_message

        def observe(message: paramiko.Message) -> None:
            send_message(message)
            if b"keepalive@lag.net" in message.asbytes():
                sent.set()

        transport.packetizer.send_message = observe
        transport.set_keepalive(0.05)
        assert sent.wait(90)
        assert run(connection, "echo x") == b"x\n"


def test_a_session_whose_host_is_killed_ends(hosts: Hosts) -> None:
    with connected(hosts.hosts[2], hosts) as connection:
        session = connection.open_session(60)
        session.exec_command("echo first; sleep 100")
        assert session.recv(100) == b"first\n"
        hosts.kill_sessions(2)
        assert session.recv(100) == b""
        assert not connection.transport.is_active()
        with pytest.raises(UnreachableError):
            connection.open_session(10)


def test_connections_that_end_at_random_times_leave_nothing(hosts: Hosts) -> None:
    chance = random.Random(7)
    work = [
        (host, chance.choice(["close", "sever", "kill", "finish"]), chance.random() / 20) for host in hosts.hosts * 6
    ]

    def work_on(number: int) -> None:
        host, how, delay_s = work[number]
        with contextlib.suppress(FleetError, paramiko.SSHException, EOFError, OSError):
            connection = connect(host, hosts.key)
            timer = threading.Timer(delay_s, {"close": connection.close, "sever": connection.sever}.get(how, int))
            timer.start()
            try:
                pids = "kill -9 $PPID; " if how == "kill" else ""
                output = run(connection, f"{pids}cat", b"y" * 300_000)
                if how == "finish":
                    assert output == b"y" * 300_000
            finally:
                timer.join()
                connection.close()

    numbered = [dataclasses.replace(host, name=str(number)) for number, (host, *_) in enumerate(work)]
    outcomes = fan_out(numbered, lambda host: work_on(int(host.name)))
    assert [outcome.error for outcome in outcomes] == [None] * len(work)


def test_a_broken_wire_ends_waiting_calls(hosts: Hosts, wire: Wire) -> None:
    with connected(wire.host, hosts) as connection:
        session = connection.open_session(60)
        session.exec_command("sleep 100")
        timer = threading.Timer(0.05, wire.cut)
        timer.start()
        assert session.recv(1) == b""
        timer.join()


@contextlib.contextmanager
def served(host: Host, on_keys: Callable[[Any], object]) -> Iterator[tuple[Host, list[Any]]]:
    """Yield a host with a server of paramiko, and a list of the server, which calls `on_keys` after its new keys."""
    servers: list[Any] = []

    class Server(_ServerTransport):  # type: ignore[misc]
        def _activate_outbound(self) -> None:
            super()._activate_outbound()
            on_keys(self)

    def serve() -> None:
        servers.append(Server(listener.accept()[0]))
        servers[0].add_server_key(paramiko.ECDSAKey.generate())
        with contextlib.suppress(paramiko.SSHException, EOFError):
            servers[0].start_server(server=paramiko.ServerInterface())

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield dataclasses.replace(host, address="127.0.0.1", port=listener.getsockname()[1]), servers
        finally:
            thread.join(90)
            for server in servers:
                server.close()
                server.sock.close()


def message(kind: int, *numbers: int) -> paramiko.Message:
    """Return a message with these numbers."""
    result = paramiko.Message()
    result.add_byte(bytes([kind]))
    for number in numbers:
        result.add_int(number)
    return result


def test_a_server_that_announces_many_extensions_does_not_hold_up_other_connections(hosts: Hosts) -> None:
    def announce(server: Any) -> None:
        server._send_message(message(MSG_EXT_INFO, (1 << 32) - 1))

    with served(hosts.hosts[0], announce) as (host, _), connected(hosts.hosts[1], hosts) as other:
        with pytest.raises((UnreachableError, WrongHostError), match="worker-0"):
            connect(host, hosts.key, connect_timeout_s=5)
        assert run(other, "echo x") == b"x\n"


def test_a_key_that_signs_late_does_not_hold_up_other_connections(hosts: Hosts) -> None:
    with (
        served(hosts.hosts[0], lambda _: None) as (host, servers),
        socket.create_connection((host.address, host.port)) as near,
    ):
        transport: Any = DrivenTransport(near, LOOP)
        opened = transport.prepare("true", "", None, lambda: None)
        transport.start_client()

        class LateKey(paramiko.Ed25519Key):
            def sign_ssh_data(self, *_: object, **__: object) -> paramiko.Message:
                servers[0]._send_message(message(MSG_USERAUTH_SUCCESS))
                servers[0]._send_message(message(MSG_CHANNEL_OPEN_SUCCESS, opened.chanid, 0, 1 << 16, 1 << 15))
                assert transport.early.is_answered.wait(90), "the loop waits for the signature"
                raise paramiko.SSHException("the agent refuses")

        with pytest.raises(paramiko.SSHException, match="the agent refuses"):
            transport.auth_publickey("user", LateKey(filename=str(hosts.key)))
        transport.close()


def test_a_socket_of_a_host_is_not_awaited_on_a_connection_that_has_ended(hosts: Hosts) -> None:
    with connected(hosts.hosts[0], hosts) as connection:
        transport: Any = connection.transport
        transport.close()
        waiting = threading.Thread(target=lambda: errors.append(error_of_socket(connection)), daemon=True)
        errors: list[UnreachableError] = []
        waiting.start()
        waiting.join(90)
        assert not waiting.is_alive()
        assert "worker-0" in str(errors[0])


def error_of_socket(connection: HostConnection) -> UnreachableError:
    """Return the error of a connection to a socket of the host."""
    with pytest.raises(UnreachableError) as raised:
        connection.open_socket("/none", 10)
    return raised.value


def test_keys_that_are_used_up_when_a_connection_closes_are_not_reported(
    hosts: Hosts, caplog: pytest.LogCaptureFixture
) -> None:
    with connected(hosts.hosts[0], hosts) as connection:
        transport: Any = connection.transport
        transport.packetizer._needs_rekey = True
        with transport.packetizer._lock:
            transport.packetizer.closed = True  # as another thread begins to close it
            transport.packetizer.on_rekey()
            done = threading.Event()
            LOOP.call_soon(done.set)
        assert done.wait(90)
        assert not transport.active
    assert not caplog.records


def test_other_transports_do_not_use_the_loop(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internals, "PROVEN", ())
    connection = connect(hosts.hosts[0], hosts.key)
    try:
        assert type(connection.transport) is paramiko.Transport
        assert run(connection, "cat", b"z" * 1_000_000) == b"z" * 1_000_000
    finally:
        connection.close()


def test_a_program_that_is_stopped_and_continued_keeps_its_connections(hosts: Hosts) -> None:
    with connected(hosts.hosts[1], hosts) as connection, contextlib.ExitStack() as stopped:
        stopped.enter_context(hosts.hung(1))
        waiting = threading.Timer(0.2, stopped.close)
        waiting.start()
        assert run(connection, "echo x") == b"x\n"
        waiting.join()


# --- a command that is sent together with the login ---------------------------------------------------------------


def run_early(host: Host, key: Path, command: str) -> tuple[int, bytes, list[str]]:
    """Return the exit code and the output of the command of a login, and what happened until it was sent."""
    sent: list[str] = []
    start = Start(command, 1 << 18, lambda: sent.append("sent"))
    connection = connect(host, key, start=start)
    sent.append("connected")
    received: list[bytes] = []
    try:
        return run_remote(connection, start, lambda _, data: received.append(data)), b"".join(received), sent
    finally:
        connection.close()


@pytest.fixture
def unknown_server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the servers appear as OpenSSH, as other servers, or to a version of paramiko that is not proven."""
    if request.param == "other":
        monkeypatch.setattr(driven, "_PIPELINES", re.compile("never"))
    elif request.param == "stock":
        monkeypatch.setattr(internals, "PROVEN", ())


SERVERS = pytest.mark.parametrize("unknown_server", ["OpenSSH", "other", "stock"], indirect=True)


@SERVERS
@pytest.mark.usefixtures("unknown_server")
def test_a_command_is_run_once_with_the_login(hosts: Hosts, tmp_path: Path) -> None:
    command = f"echo run >> {tmp_path}/runs; cat {tmp_path}/runs; exit 7"
    code, output, _ = run_early(hosts.hosts[0], hosts.key, command)
    assert (code, output) == (7, b"run\n")


def test_a_command_is_sent_before_the_login_succeeds(hosts: Hosts) -> None:
    assert run_early(hosts.hosts[0], hosts.key, "true")[2] == ["sent", "connected"]


@SERVERS
@pytest.mark.usefixtures("unknown_server")
def test_a_command_is_run_once_if_the_host_rejects_the_first_keys(hosts: Hosts, tmp_path: Path) -> None:
    wrong = []
    for number in range(2):
        wrong.append(tmp_path / f"key-{number}")
        wrong[-1].write_text(generate_ed25519("wrong").private)
    host = dataclasses.replace(hosts.hosts[0], identities=(*map(str, wrong), str(hosts.key)))
    code, output, _ = run_early(host, tmp_path / "none", f"echo run >> {tmp_path}/runs; cat {tmp_path}/runs")
    assert (code, output) == (0, b"run\n")


@SERVERS
@pytest.mark.usefixtures("unknown_server")
def test_a_command_is_not_run_if_the_host_rejects_the_key(hosts: Hosts, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(generate_ed25519("wrong").private)
    with pytest.raises(WrongHostError, match="refuses the fleet's key"):
        run_early(hosts.hosts[0], tmp_path / "key", f"touch {tmp_path}/run")
    assert not (tmp_path / "run").exists()


def test_a_command_is_not_sent_to_a_host_with_another_key(hosts: Hosts) -> None:
    sent: list[int] = []
    other = dataclasses.replace(hosts.hosts[0], host_key=hosts.hosts[1].host_key)
    with pytest.raises(WrongHostError, match="has a different host key than before"):
        connect(other, hosts.key, start=Start("true", on_send=lambda: sent.append(1)))
    assert not sent


@SERVERS
@pytest.mark.usefixtures("unknown_server")
def test_a_host_that_refuses_sessions_is_named(tmp_path: Path) -> None:
    with lab(tmp_path) as home:
        machine = home.machine("gpu1", more="Match all\n  MaxSessions 0")
        host = Host(
            "worker-0", machine.address, machine.port, USER, machine.key, "gpu1", "", identities=(str(home.key),)
        )
        with pytest.raises(UnreachableError, match="refuses another session on its connection while opening"):
            run_early(host, home.key, "true")


@contextlib.contextmanager
def connected_with(host: Host, key: Path, start: Start) -> Iterator[HostConnection]:
    """Connect to a host, with a request for a command or a socket."""
    connection = connect(host, key, start=start)
    try:
        yield connection
    finally:
        connection.close()


@pytest.mark.parametrize("unknown_server", ["OpenSSH", "other"], indirect=True)
@pytest.mark.usefixtures("unknown_server")
def test_a_socket_is_connected_once_with_the_login(hosts: Hosts) -> None:
    with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX) as listener:
        path = f"{directory}/socket"
        listener.settimeout(90)
        listener.bind(path)
        listener.listen()
        with connected_with(hosts.hosts[0], hosts.key, Start("echo command", path=path)) as connection:
            near, _ = listener.accept()  # before the client calls open_socket
            with near:
                first = connection.open_socket(path, 60)
                near.sendall(b"first")
                assert first.recv(100) == b"first"
            second = connection.open_socket(path, 60)
            near, _ = listener.accept()
            with near:
                near.sendall(b"second")
                assert second.recv(100) == b"second"
            assert run(connection, "echo another") == b"another\n"


@SERVERS
@pytest.mark.usefixtures("unknown_server")
def test_a_session_is_opened_after_a_socket_that_the_host_refuses(hosts: Hosts, tmp_path: Path) -> None:
    start = Start("echo command", path=f"{tmp_path}/none")
    with connected_with(hosts.hosts[0], hosts.key, start) as connection:
        with pytest.raises(NoSocketError):
            connection.open_socket(start.path, 10)
        session = connection.open_session(60)
        connection.execute(session, start.command)
        assert session.recv(100) == b"command\n"


def test_a_socket_is_not_requested_from_a_host_with_another_key(hosts: Hosts, tmp_path: Path) -> None:
    sent: list[int] = []
    other = dataclasses.replace(hosts.hosts[0], host_key=hosts.hosts[1].host_key)
    start = Start("true", on_send=lambda: sent.append(1), path=f"{tmp_path}/none")
    with pytest.raises(WrongHostError, match="has a different host key than before"):
        connect(other, hosts.key, start=start)
    assert not sent


@pytest.mark.parametrize("seed", range(3))
def test_a_connection_that_breaks_while_a_command_starts_is_an_error(hosts: Hosts, seed: int) -> None:
    for at in range(1200 + 61 * seed, 3200, 211):

        def cut(passed: int, data: bytes, at: int = at) -> bytes:
            return data[: at - passed]

        with relay(hosts.hosts[0], cut) as host, contextlib.suppress(UnreachableError):
            assert run_early(host, hosts.key, "seq 400")[0] == 0


@SERVERS
@pytest.mark.usefixtures("unknown_server")
def test_output_on_stderr_beyond_the_window_does_not_hold_up_an_answer(hosts: Hosts) -> None:
    start = Start("seq 200000 >&2; echo last words >&2; echo answer; read -r line", 1 << 16)
    connection = connect(hosts.hosts[0], hosts.key, start=start)
    try:
        transport = SSHTransport(connection, connection.open_session(60, start.window), "python3")
        transport.execute(start.command, 60)
        with pytest.raises(NotReadyError, match="is not a record of its agent"):
            transport.receive(60, "it answers")
        transport._session.shutdown_write()
        with pytest.raises(NotReadyError, match="ended with exit code") as raised:
            transport.receive(60, "it answers")
        assert raised.value.cause == "last words"
    finally:
        connection.close()
