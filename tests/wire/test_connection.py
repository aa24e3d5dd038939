from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paramiko
import psutil
import pytest

from fleet.errors import UnreachableError, WrongHostError
from fleet.remote.ssh.connection import connect
from provision.keys import generate_ed25519
from tests.next_steps import next_lines
from tests.wire.hosts import Hosts, Wire, no_thread_left

pytestmark = pytest.mark.wire


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Fail if a test leaves a thread running."""
    with no_thread_left():
        yield


def test_a_connection_is_fast_and_stays_open_until_it_is_closed(hosts: Hosts) -> None:
    connection = connect(hosts.hosts[0], hosts.key, window=1 << 16)
    transport: Any = connection.fabric.transport
    assert transport.is_active()
    assert transport.getpeername()[0] == hosts.hosts[0].address
    fast = "aes128-gcm@openssh.com"
    near, far = socket.socketpair()
    with near, far:
        has_fast = fast in paramiko.Transport(near).get_security_options().ciphers  # from paramiko 5
    assert transport.local_cipher == transport.remote_cipher == (fast if has_fast else "aes128-ctr")
    assert transport.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    session = connection.execute("seq 300000", 5, "counting")  # through a small window
    received = b""
    while data := session.recv(10_000):
        connection.has_read(len(data))
        received += data
    assert received == b"".join(b"%d\n" % number for number in range(1, 300_001))
    connection.close()
    connection.close()
    assert not transport.is_active()


def test_idle_connections_of_other_users_do_not_block_the_owner(hosts: Hosts) -> None:
    host = hosts.hosts[0]
    with contextlib.ExitStack() as held:
        for _ in range(210):
            idle = held.enter_context(socket.create_connection((host.address, host.port), timeout=60))
            assert idle.recv(4) == b"SSH-", "the server accepts the connection"
        connect(host, hosts.key, connect_timeout_s=60).close()


def test_a_changed_host_key_is_refused(hosts: Hosts) -> None:
    pinned = paramiko.ECDSAKey.generate()
    for key in (hosts.hosts[1].host_key, f"{pinned.get_name()} {pinned.get_base64()}"):
        with pytest.raises(WrongHostError, match="has a different host key than before") as raised:
            connect(dataclasses.replace(hosts.hosts[0], host_key=key), hosts.key)
        assert "intercepted" in raised.value.cause
        assert next_lines(raised.value) == "fleet down\nfleet up"
    for text in ("", "ssh-ed25519", "ssh-ed25519 %%%", "ssh-nothing AAAA", "ssh-ed25519 AAAA"):
        with pytest.raises(UnreachableError, match="no usable host key"):
            connect(dataclasses.replace(hosts.hosts[0], host_key=text), hosts.key)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (generate_ed25519("wrong").private, "refuses the fleet's key"),
        *dict.fromkeys([None, "", "no key"], r"the fleet's key .* cannot be read").items(),
    ],
    ids=["wrong", "missing", "empty", "invalid"],
)
def test_a_key_that_is_not_authorised_or_cannot_be_read_is_named(
    hosts: Hosts, tmp_path: Path, content: str | None, message: str
) -> None:
    if content is not None:
        (tmp_path / "key").write_text(content)
    with pytest.raises(UnreachableError, match=message):
        connect(hosts.hosts[0], tmp_path / "key")


def test_a_refused_connection_is_named(hosts: Hosts, port: int) -> None:
    host = dataclasses.replace(hosts.hosts[0], address="127.0.0.1", port=port)
    with pytest.raises(UnreachableError, match=rf"worker-0 \(127\.0\.0\.1:{port}\) cannot be connected to") as raised:
        connect(host, hosts.key)
    assert raised.value.cause == "Connection refused"
    assert "fleet up" in next_lines(raised.value)


def test_an_unknown_host_name_is_named(hosts: Hosts) -> None:
    host = dataclasses.replace(hosts.hosts[0], address="no-such-host.invalid")
    with pytest.raises(UnreachableError, match="has an address that is not known here"):
        connect(host, hosts.key)


def test_connecting_to_what_does_not_answer_ends_at_the_deadline(hosts: Hosts, wire: Wire) -> None:
    wire.hold()  # in the handshake
    with contextlib.ExitStack() as stack:
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        full = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(2):  # fill the queue, so that the kernel drops later connections
            each = stack.enter_context(socket.socket())
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        for host in (
            wire.host,
            *(dataclasses.replace(wire.host, port=server.getsockname()[1]) for server in (silent, full)),
            dataclasses.replace(wire.host, proxy=(sys.executable, "-c", "import sys; sys.stdin.read()")),
        ):
            with pytest.raises(UnreachableError, match="did not answer within 1 s while"):
                connect(host, hosts.key, connect_timeout_s=1)


def test_a_server_that_is_not_ssh_is_named(hosts: Hosts) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            near, _ = server.accept()
            with near:
                near.sendall(b"HTTP/1.1 400 Bad Request\r\n" * 200)

        thread = threading.Thread(target=answer)
        thread.start()
        host = dataclasses.replace(hosts.hosts[0], address="127.0.0.1", port=server.getsockname()[1])
        with pytest.raises(UnreachableError, match="worker-0"):
            connect(host, hosts.key, connect_timeout_s=3)
        thread.join()


def test_starting_a_command_on_a_hung_host_ends_at_the_deadline(hosts: Hosts) -> None:
    connection = connect(hosts.hosts[0], hosts.key)
    try:
        late = pytest.raises(UnreachableError, match="did not answer within 1 s while starting")
        with hosts.hung(0), late:
            connection.execute("true", 1, "starting")
    finally:
        connection.close()


def test_the_ssh_configuration_of_the_user_is_not_read(hosts: Hosts, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "config").write_text("Host *\n  Port 1\n  User no-such-user\n  ProxyCommand false\n")
    for name in (".fabric.py", ".invoke.py", "fabric.py", "fabfile.py"):
        text = "raise SystemExit('executed')\n"
        ((home if name.startswith(".") else tmp_path) / name).write_text(text)
    (home / ".fabric.yaml").write_text("port: 1\nconnect_kwargs: {password: x}\n")
    (tmp_path / "elsewhere").mkdir()
    code = tmp_path / "elsewhere" / "code.py"
    code.write_text(
        "from pathlib import Path; from provision.model import Host\n"
        "from fleet.remote.ssh.connection import connect\n"
        f"connection = connect({hosts.hosts[0]!r}, Path({str(hosts.key)!r})); connection.close(); print('fine')"
    )
    env = {**os.environ, "HOME": str(home), "FABRIC_PORT": "1", "SSH_AUTH_SOCK": str(tmp_path / "agent")}
    env["PYTHONPATH"] = str(Path(__file__).parents[2])
    done = subprocess.run([sys.executable, code], check=False, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("fine\n", "")


def proxy_program(host: str, port: int) -> tuple[str, ...]:
    """Return a program that forwards a connection, as `gcloud compute start-iap-tunnel --listen-on-stdin` does."""
    source = (
        "import os, select, socket, sys\n"
        "far = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        "while True:\n"
        "    ready = select.select([0, far], [], [])[0]\n"
        "    data = os.read(0, 65536) if 0 in ready else b'x'\n"
        "    if not data: break\n"
        "    if 0 in ready: far.sendall(data)\n"
        "    if far in ready:\n"
        "        data = far.recv(65536)\n"
        "        if not data: break\n"
        "        while data: data = data[os.write(1, data):]\n"
    )
    return (sys.executable, "-c", source, host, str(port))


def proxy_programs() -> list[psutil.Process]:
    """Return the running proxy programs of this process."""
    programs = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # of another test, not yet reaped
            if "far = socket.create_connection" in " ".join(child.cmdline()):
                programs.append(child)
    return programs


def test_a_proxy_program_forwards_the_connection(hosts: Hosts) -> None:
    host = hosts.hosts[0]
    carried = dataclasses.replace(host, address="nowhere.invalid", proxy=proxy_program(host.address, host.port))
    connection = connect(carried, hosts.key)
    [program] = proxy_programs()
    assert connection.execute("echo $((6 * 7))", 5, "adding").recv(100) == b"42\n"
    connection.close()
    connection.close()
    assert not program.is_running()
    with pytest.raises(WrongHostError, match="has a different host key than before"):
        connect(dataclasses.replace(carried, host_key=hosts.hosts[1].host_key), hosts.key)


def test_a_proxy_program_that_fails_is_reported_with_its_output(hosts: Hosts) -> None:
    failing = (sys.executable, "-c", "import sys; sys.exit('no permission for the tunnel')")
    for program, cause in (
        (failing, "no permission for the tunnel"),
        (("no-such-program",), "no-such-program: No such file or directory"),
    ):
        with pytest.raises(UnreachableError, match="does not connect to worker-0") as raised:
            connect(dataclasses.replace(hosts.hosts[0], proxy=program), hosts.key)
        assert raised.value.cause == cause
        assert shlex.split(next_lines(raised.value)) == list(program)
