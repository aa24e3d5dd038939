"""An SSH server that is hostile before its host key is verified costs its own host only."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import paramiko
import pytest
from paramiko.common import AUTH_SUCCESSFUL, OPEN_SUCCEEDED

from tests.program import Program
from tests.wire.machines import lab

pytestmark = pytest.mark.wire

KEXINIT, NEWKEYS, KEX_FIRST, KEX_SECOND, GEX_GROUP, GEX_REQUEST = 20, 21, 30, 31, 31, 34
MANY_BYTES = 250_000
LONGEST_S = 60.0  # connections end after 10 s, and this machine may be busy


def text(data: bytes) -> bytes:
    """Return a string of the SSH protocol."""
    return struct.pack(">I", len(data)) + data


def packet(payload: bytes) -> bytes:
    """Return a packet without encryption."""
    padding = 8 - (len(payload) + 5) % 8 + 8
    return struct.pack(">IB", len(payload) + padding + 1, padding) + payload + bytes(padding)


def algorithms(exchange: bytes, key: bytes = b"ssh-ed25519") -> bytes:
    """Return the message that offers these algorithms."""
    names = [exchange, key, *[b"aes128-ctr"] * 2, *[b"hmac-sha2-256"] * 2, *[b"none"] * 2, b"", b""]
    return packet(bytes([KEXINIT]) + os.urandom(16) + b"".join(map(text, names)) + bytes(5))


class Peer:
    """A connected client, before encryption."""

    def __init__(self, near: socket.socket) -> None:
        self.near = near
        self.lines = near.makefile("rb")

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.near.sendall(data)

    def receive(self) -> bytes:
        """Return the payload of the next packet."""
        head = self.lines.read(5)
        if len(head) < 5:
            raise EOFError
        length, padding = struct.unpack(">IB", head)
        return self.lines.read(length - 1)[: length - 1 - padding]

    def begin(self, *offer: bytes) -> None:
        """Exchange versions and offers; without an offer, only versions."""
        self.send(b"SSH-2.0-hostile\r\n")
        self.lines.readline()
        for each in offer:
            self.send(each)
            self.receive()


def negative_group(peer: Peer) -> None:
    peer.begin(algorithms(b"diffie-hellman-group-exchange-sha256"))
    assert peer.receive()[0] == GEX_REQUEST
    peer.send(packet(bytes([GEX_GROUP]) + text(b"\x80" + bytes(255)) + text(b"\x02")))
    peer.receive()


def long_group(peer: Peer) -> None:
    peer.begin(algorithms(b"diffie-hellman-group-exchange-sha256"))
    assert peer.receive()[0] == GEX_REQUEST
    peer.send(packet(bytes([GEX_GROUP]) + text(b"\x7f" * MANY_BYTES) + text(b"\x02")))
    peer.receive()


def long_number(peer: Peer) -> None:
    peer.begin(algorithms(b"diffie-hellman-group14-sha256"))
    assert peer.receive()[0] == KEX_FIRST
    key = text(text(b"ssh-ed25519") + text(bytes(32)))
    peer.send(packet(bytes([KEX_SECOND]) + key + text(b"\x7f" * MANY_BYTES) + text(b"")))
    peer.receive()


def long_host_key(peer: Peer) -> None:
    peer.begin(algorithms(b"curve25519-sha256@libssh.org", b"rsa-sha2-512"))
    assert peer.receive()[0] == KEX_FIRST
    key = text(text(b"ssh-rsa") + text(b"\x7f" * MANY_BYTES) + text(b"\x7f" * MANY_BYTES))
    peer.send(packet(bytes([KEX_SECOND]) + key + text(b"\x09" + bytes(31)) + text(b"")))
    peer.receive()


def zero_point(peer: Peer) -> None:
    peer.begin(algorithms(b"curve25519-sha256@libssh.org"))
    assert peer.receive()[0] == KEX_FIRST
    key = text(text(b"ssh-ed25519") + text(bytes(32)))
    peer.send(packet(bytes([KEX_SECOND]) + key + text(bytes(32)) + text(text(b"ssh-ed25519") + text(bytes(64)))))
    peer.receive()


def endless_banner(peer: Peer) -> None:
    while True:
        peer.send(b"please wait\r\n" * 1000)


def endless_offers(peer: Peer) -> None:
    peer.begin()
    while True:
        peer.send(algorithms(b"curve25519-sha256@libssh.org"))


def long_packet(peer: Peer) -> None:
    peer.begin()
    peer.send(struct.pack(">IB", (1 << 32) - 1, 4) + bytes([KEXINIT]))
    while True:
        peer.send(bytes(1 << 16))


def data_before_login(peer: Peer) -> None:
    peer.begin(algorithms(b"curve25519-sha256@libssh.org"))
    peer.send(packet(bytes([94]) + struct.pack(">I", 0) + text(b"x" * 1000)))
    peer.receive()


def garbage(peer: Peer) -> None:
    peer.send(os.urandom(5000) + b"\r\n")


KINDS = (
    negative_group,
    long_group,
    long_number,
    long_host_key,
    zero_point,
    endless_banner,
    endless_offers,
    long_packet,
    data_before_login,
    garbage,
)


@contextlib.contextmanager
def served(address: str, port: int, serve: Callable[[Peer], object]) -> Iterator[None]:
    """Answer each connection to an address with `serve`, which ends with the connection."""
    threads: list[threading.Thread] = []
    sockets: list[socket.socket] = []

    def answer(near: socket.socket) -> None:
        peer = Peer(near)
        with near, peer.lines, contextlib.suppress(OSError, EOFError):
            serve(peer)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                near = listener.accept()[0]
                sockets.append(near)
                threads.append(threading.Thread(target=answer, args=(near,)))
                threads[-1].start()

    with socket.create_server((address, port)) as listener:
        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            accepting.join(90)
            for near in sockets:
                with contextlib.suppress(OSError):
                    near.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join(90)


class Welcome(paramiko.ServerInterface):
    """Accepts every key, session, and command, and runs none."""

    def __init__(self) -> None:
        self.started = threading.Event()

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return AUTH_SUCCESSFUL

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        self.started.set()
        return True


def endless_key_exchanges(peer: Peer, host_key: Path) -> None:
    """Serve a client with the real host key, and exchange keys without end while its command runs."""
    server, user = paramiko.Transport(peer.near), Welcome()
    try:
        server.add_server_key(paramiko.PKey.from_path(host_key))
        server.start_server(server=user)
        session = server.accept(60)
        assert user.started.wait(60)
        server.global_request("after the answer to the command", wait=True)
        while session is not None and server.is_active():
            server.renegotiate_keys()
    except paramiko.SSHException:
        pass
    finally:
        server.close()


def test_hostile_servers_do_not_delay_the_healthy_host(program: Program, tmp_path: Path) -> None:
    """The healthy host answers, and each hostile one is reported in a sentence.

    A command has no deadline: what ends that on the last server is that nothing arrives but key exchanges.
    """
    with lab(tmp_path / "lab") as home, contextlib.ExitStack() as stack:
        machines = [home.machine(f"gpu{number}") for number in range(len(KINDS) + 2)]
        home.add_known_hosts(*machines)
        program.run("up", "--inventory", str(home.inventory(*home.machines)))
        exchanging = machines[-1].directory / "host_key"
        kinds = [*KINDS, lambda peer: endless_key_exchanges(peer, exchanging)]
        for machine, serve in zip(machines[1:], kinds, strict=True):
            home.stop(machine)
            stack.enter_context(served(machine.address, machine.port, serve))
        began = time.monotonic()
        ran = program.run("exec", "-o", "json", "--", "echo", "it runs", code=13)
        assert time.monotonic() - began < LONGEST_S
    [result] = [event for event in ran.events if event["event"] == "command_result"]
    assert result["hosts"][0] == {"host": "worker-0", "code": 0, "error": ""}
    for number, host in enumerate(result["hosts"][1:], 1):
        assert f"worker-{number} (" in host["error"]
        assert host["code"] is None
    assert "sent more data than it may" in ran.events[-1]["cause"]
    assert "Traceback" not in ran.err
    assert "internal error" not in ran.text
