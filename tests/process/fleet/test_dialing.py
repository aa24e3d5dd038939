from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from fleet.remote.dialing import VERSION, dialing, take
from provision.model import Host


def host(port: int, address: str = "127.0.0.1", proxy: tuple[str, ...] = ()) -> Host:
    return Host("worker-0", address, port, "user", "ssh-ed25519 AAAA", "alias", "10.0.0.1", proxy=proxy)


@contextlib.contextmanager
def listening(backlog: int = 8) -> Iterator[tuple[socket.socket, int]]:
    with socket.create_server(("127.0.0.1", 0), backlog=backlog) as server:
        yield server, server.getsockname()[1]


def test_a_connection_is_begun_and_taken() -> None:
    with listening() as (server, port), dialing([host(port)]):
        accepted, _ = server.accept()
        sock = take("127.0.0.1", port, 10.0)
        assert sock is not None
        with accepted, sock:
            accepted.sendall(b"SSH")
            sock.setblocking(True)
            assert sock.recv(3) == b"SSH"
            assert take("127.0.0.1", port, 10.0) is None


def test_slots_of_one_host_get_connections_of_their_own() -> None:
    with listening() as (_, port), dialing([host(port), host(port)]):
        first, second = take("127.0.0.1", port, 10.0), take("127.0.0.1", port, 10.0)
        assert first is not None
        assert second is not None
        assert first is not second
        first.close()
        second.close()


def test_a_connection_that_is_not_taken_is_closed() -> None:
    with listening() as (server, port):
        with dialing([host(port)]):
            accepted, _ = server.accept()
        with accepted:
            assert b"".join(iter(lambda: accepted.recv(100), b"")) in (b"", b"SSH-2.0-fleet\r\n")
        assert take("127.0.0.1", port, 10.0) is None


def test_a_refused_connection_is_not_returned() -> None:
    with listening() as (_, port):
        pass
    with dialing([host(port)]):
        assert take("127.0.0.1", port, 10.0) is None


@pytest.mark.parametrize("unused", [host(22, "example.com"), host(22, proxy=("ssh", "-W")), host(22, "")])
def test_names_and_proxies_are_left_to_their_users(unused: Host) -> None:
    with dialing([unused]):
        assert take(unused.address, unused.port, 10.0) is None


def take_all(port: int, count: int) -> None:
    for _ in range(count):
        sock = take("127.0.0.1", port, 0.05)
        assert sock is not None
        sock.close()


def test_a_host_that_does_not_answer_has_a_deadline() -> None:
    with listening(backlog=0) as (_, port), dialing([host(port)] * 4), pytest.raises(TimeoutError):
        take_all(port, 4)  # Linux answers only the first one or two


def test_the_version_is_sent_when_a_connection_opens() -> None:
    with listening() as (server, port), dialing([host(port), host(port)]), contextlib.ExitStack() as stack:
        for _ in range(2):
            accepted = stack.enter_context(server.accept()[0])
            assert accepted.recv(100) == f"{VERSION}\r\n".encode()
        for _ in range(2):
            sock = take("127.0.0.1", port, 10.0)
            assert sock is not None
            assert sock.is_greeted
            sock.close()


def test_the_version_is_not_sent_on_a_connection_that_was_taken_before() -> None:
    with listening(backlog=8) as (server, port), dialing([host(port)]):
        sock = take("127.0.0.1", port, 10.0)
        assert sock is not None
        is_greeted = sock.is_greeted
        sock.close()
        with server.accept()[0] as accepted:
            received = b"".join(iter(lambda: accepted.recv(100), b""))
        assert received == (f"{VERSION}\r\n".encode() if is_greeted else b"")
