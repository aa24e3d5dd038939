"""Rendezvous in a directory and at an address: one contract for both."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

from tests.program import wait_for
from train.errors import RendezvousError
from train.rendezvous.contract import AbandonedError, Participants, address_of_node
from train.rendezvous.directory import join_directory
from train.rendezvous.tcp import TcpRendezvous as Rendezvous
from train.rendezvous.tcp import join_tcp, parse_address

Join = Callable[..., Rendezvous]
T = TypeVar("T")
SECRET = "correct horse battery staple"
NODES = ("n0", "n1", "n2")


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the extra waiting times."""
    for module in ("directory", "tcp"):
        monkeypatch.setattr(f"train.rendezvous.{module}.SLACK_S", 0.3)


@pytest.fixture(params=["directory", "tcp"])
def join(request: pytest.FixtureRequest, tmp_path: Path, port: int) -> Join:
    """Return a function that joins the rendezvous."""

    def meet(rank: int, size: int = 3, deadline_s: float = 10.0, nodes: tuple[str, ...] = NODES) -> Rendezvous:
        participants = Participants(rank, size, nodes)
        if request.param == "directory":
            return join_directory(tmp_path / "rendezvous", participants, deadline_s)
        return join_tcp("127.0.0.1", port, participants, SECRET, deadline_s)

    return meet


def together(*actions: Callable[[], T]) -> list[Future[T]]:
    """Run `actions` in parallel; return their futures."""
    with ThreadPoolExecutor(len(actions)) as pool:
        return [pool.submit(action) for action in actions]


@contextlib.contextmanager
def all_joined(join: Join, size: int = 3) -> Iterator[list[Rendezvous]]:
    joined = together(*(lambda rank=rank: join(rank, size) for rank in range(size)))
    members = [future.result() for future in joined]
    yield members
    for future in together(*(member.close for member in members)):
        future.result()


def test_gather_returns_all_values_in_the_order_of_ranks(join: Join, tmp_path: Path) -> None:
    with all_joined(join) as members:
        assert {member.size for member in members} == {3}
        assert len({member.secret for member in members}) == 1
        assert len(bytes.fromhex(members[0].secret)) == 32
        for about in ("first", "second"):
            values = together(
                *(
                    lambda member=member, about=about: member.gather(about, {"me": id(member)}, 10)
                    for member in members
                )
            )
            assert [value.result() for value in values] == 3 * [[{"me": id(member)} for member in members]]
    assert list(tmp_path.iterdir()) == []


def test_a_process_without_a_size_learns_it(join: Join) -> None:
    first, second = together(lambda: join(0, 2), lambda: join(1, 0, nodes=()))
    assert second.result().size == 2
    values = together(
        lambda: first.result().gather("x", {}, 10), lambda: second.result().gather("x", {"own": "é"}, 10)
    )
    assert [value.result() for value in values] == 2 * [[{}, {"own": "é"}]]
    second.result().close()
    first.result().close()


def test_a_process_with_another_size_is_rejected(join: Join) -> None:
    first, second = together(lambda: join(0, 2), lambda: join(1, 3))
    with pytest.raises(RendezvousError, match=r"expects 2 processes, and n1 \(rank 1\) 3"):
        second.result()
    with pytest.raises(RendezvousError, match=r"n1 \(rank 1\)"):
        first.result().gather("hello", {}, 5)
    first.result().close()


def test_missing_processes_are_named(join: Join) -> None:
    first, second = together(lambda: join(0, 3, 2.0), lambda: join(1, 3, 2.0))
    with pytest.raises(RendezvousError, match=r"timed out after 2 s waiting for n2 \(rank 2\)"):
        first.result()
    with pytest.raises(RendezvousError):  # reported by rank 0, or the connection failed
        second.result().gather("hello", {}, 5)


def test_a_missing_rank_0_is_reported(join: Join) -> None:
    with pytest.raises(RendezvousError, match=r"timed out after 0\.3 s waiting for n0 \(rank 0\).*has not started"):
        join(1, 3, 0.3)


def test_a_duplicate_rank_is_rejected(join: Join) -> None:
    first, *_ = together(lambda: join(0, 3), lambda: join(1, 3, 2.0), lambda: join(1, 3, 2.0))
    with pytest.raises(RendezvousError, match=r"as rank 1, but this rank exists already"):
        first.result()


@pytest.mark.parametrize("rank", [0, 2])
def test_abandoning_ends_the_wait_of_all_processes(join: Join, rank: int) -> None:
    with all_joined(join) as members:
        waiting = [member for number, member in enumerate(members) if number != rank]
        *waits, _ = together(
            *(lambda member=member: member.gather("prepared", {}, 20) for member in waiting),
            lambda: members[rank].abandon("no Python here", 14),
        )
        for wait in waits:
            with pytest.raises(AbandonedError, match=f"n{rank} \\(rank {rank}\\) gave up: no Python here") as gave_up:
                wait.result()
            assert gave_up.value.code == 14


# --- in a directory
# ----------------------------------------------------------------------------------------------------


def test_the_call_of_an_earlier_rendezvous_is_ignored(tmp_path: Path, port: int) -> None:
    directory = tmp_path / "rendezvous"
    directory.mkdir(mode=0o700)
    (directory / "call").write_text(json.dumps({"secret": "old", "port": port, "addresses": ["127.0.0.1"]}))

    def meet(rank: int) -> Rendezvous:
        return join_directory(directory, Participants(rank, 2), 10)

    with pytest.raises(RendezvousError, match=r"timed out after 0\.3 s waiting for rank 0"):
        join_directory(directory, Participants(1, 2), 0.3)
    second, first = together(lambda: meet(1), lambda: meet(0))
    values = together(*(lambda future=future: future.result().gather("hello", {}, 10) for future in (first, second)))
    assert [value.result() for value in values] == 2 * [[{}, {}]]
    assert first.result().secret == second.result().secret
    second.result().close()
    first.result().close()
    assert not directory.exists()


def test_a_directory_readable_by_others_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m").chmod(0o750)
    with pytest.raises(RendezvousError, match="other users could read the job's secret"):
        join_directory(tmp_path / "m", Participants(0, 1), 1)


# --- at an address --------------------------------------------------------------------------------------------------


def test_a_wrong_secret_is_reported_on_both_sides(port: int) -> None:
    first, second = together(
        lambda: join_tcp("127.0.0.1", port, Participants(0, 2), SECRET, 3.0),
        lambda: join_tcp("127.0.0.1", port, Participants(1, 2), "another secret altogether", 3.0),
    )
    with pytest.raises(RendezvousError, match="does not know the secret of the rendezvous"):
        second.result()
    with pytest.raises(RendezvousError, match=r"timed out after 3 s waiting for rank 1") as missing:
        first.result()
    assert missing.value.cause == "127.0.0.1 failed authentication"


@pytest.mark.parametrize("noise", [b"GET / HTTP/1.0\r\n\r\n", b"\x00" * 8192, b'{"hello": ["rendezvous", 0, "1"]}\n'])
def test_unauthenticated_connections_are_closed(noise: bytes, port: int) -> None:
    def stranger() -> bytes:
        with connected(port) as connection:
            connection.sendall(noise)
            with contextlib.suppress(ConnectionResetError):
                return connection.recv(100)
            return b""

    def late() -> Rendezvous:
        stranger()
        return join_tcp("127.0.0.1", port, Participants(1, 2), SECRET, 10)

    first, second = together(lambda: join_tcp("127.0.0.1", port, Participants(0, 2), SECRET, 10), late)
    assert first.result().secret == second.result().secret
    second.result().close()
    first.result().close()


def connected(port: int) -> socket.socket:
    def connection() -> socket.socket | None:
        with contextlib.suppress(OSError):
            return socket.create_connection(("127.0.0.1", port), timeout=90)
        return None

    return wait_for("rank 0", connection)


def test_a_broken_connection_names_the_lost_process(port: int) -> None:
    with all_joined(
        lambda rank, size: join_tcp("127.0.0.1", port, Participants(rank, size, NODES), SECRET, 10)
    ) as members:
        timer = threading.Timer(0.1, members[1].close)
        timer.start()
        with pytest.raises(RendezvousError, match="n1 \\(rank 1\\) is gone"):
            members[0].gather("prepared", {}, 10)
        timer.join()


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("", 0)) as taken, pytest.raises(RendezvousError, match="rank 0 cannot listen on port"):
        join_tcp("127.0.0.1", taken.getsockname()[1], Participants(0, 2), SECRET, 1)


@pytest.mark.parametrize("text", ["tcp://node1", "tcp://node1:", "tcp://node1:0", "tcp://node1:65536", "tcp://a/b:1"])
def test_malformed_addresses_are_rejected(text: str) -> None:
    with pytest.raises(RendezvousError, match="is not an address"):
        parse_address(text, "")


# --- which address --------------------------------------------------------------------------------------------------


def test_unknown_names_and_loopback_routes_are_skipped() -> None:
    assert address_of_node("n0", ["n0", "no-such-host.invalid", "127.0.0.9"]) == ""
