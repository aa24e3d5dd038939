"""Test probes of tasks' ports, and their answers."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterator

import pytest

from train.agent.gang import readiness
from train.agent.host import loop as loops
from train.agent.host import streams
from train.agent.host.loop import READ, Loop
from train.agent.host.ports import TaskPort, reserve_task_port
from train.agent.peers import probes as probing
from train.agent.peers.probes import PortProbes, answer_probes
from train.agent.protocol.records import Member
from train.agent.protocol.session import Credentials, LinkError, PeerGreeting

SECRET = b"s" * 32
CREDENTIALS = Credentials("job", SECRET, "worker-0", 1)


def answer(secret: bytes = SECRET, asker: str = "worker-0") -> tuple[PeerGreeting, bytes]:
    """Return a question of worker-0, and the answer of worker-1 to that of `asker`."""
    question = CREDENTIALS.peer_greeting()
    line = question.first()
    return question, Credentials("job", secret, "worker-1", 1).chief_greeting().take(
        line.replace(b"worker-0", asker.encode())
    )[0]


def test_another_agent_does_not_answer() -> None:
    question, line = answer()
    question.take(line)
    assert question.slot == "worker-1"
    wrong = [b"", b"HTTP/1.1 400 Bad Request\r\n", b"[]\n", b"{}\n", b'{"slot": 1, "proof": 2}\n']
    wrong += [line.replace(b"worker-1", b"worker-0"), answer()[1]]  # the latter answers another question
    for refused in wrong:
        with pytest.raises(LinkError):
            question.take(refused)
    for question, line in (answer(secret=b"t" * 32), answer(asker="worker-2")):
        with pytest.raises(LinkError):
            question.take(line)


class Site:
    """Listeners and probes in one loop."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.closing: list[Callable[[], None]] = []
        self.results: list[dict[str, str]] = []
        self.ports: list[TaskPort] = []

    def listen(self, task: str = "worker-1", credentials: Credentials = CREDENTIALS) -> int:
        port = reserve_task_port(30000)
        answers = answer_probes(self.loop, port.listener, credentials._replace(slot=task), 4)
        self.closing += [answers.close, port.release]
        self.ports.append(port)
        return port.port

    def stranger(self) -> socket.socket:
        listener = socket.create_server(("127.0.0.1", 0))
        self.closing.append(listener.close)
        return listener

    def probe(self, *ports: int, address: str = "127.0.0.1") -> dict[str, str]:
        others = [Member(f"worker-{n + 1}", f"worker-{n + 1}", address, port, 0) for n, port in enumerate(ports)]
        probes = PortProbes(self.loop, CREDENTIALS, others, self.results.append)
        self.closing.append(probes.close)
        probes.begin()
        end = time.monotonic() + 90
        while not self.results:
            assert time.monotonic() < end
            self.loop.after("test", 0.05, lambda: None)
            self.loop.turn()
        return self.results.pop()


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    yield site
    for close in site.closing:
        close()
    site.loop.close()


class PatientClock:
    """A monotonic clock that counts at most 0.1 s from one call to the next: a busy computer ends no time limit."""

    def __init__(self) -> None:
        self._now = self._called_at = time.monotonic()

    def monotonic(self) -> float:
        """Return the time in seconds."""
        called_at = time.monotonic()
        self._now += min(called_at - self._called_at, 0.1)
        self._called_at = called_at
        return self._now


def remove_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = PatientClock()
    for module in (probing, loops, streams):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(probing, "PORT_DEADLINE_S", 0.2)
    monkeypatch.setattr(probing, "PROBES_DEADLINE_S", 1.0)


def test_ports_of_the_job_are_reached_and_no_port_is_soon_done(site: Site) -> None:
    ports = [site.listen(f"worker-{n + 1}") for n in range(3)]
    assert site.probe(*ports) == {"worker-1": "", "worker-2": "", "worker-3": ""}
    assert site.probe() == {}


def test_a_closed_port_is_reported_as_refused(site: Site, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    remove_limit(monkeypatch)
    assert site.probe(port) == {"worker-1": readiness.REFUSED}


@pytest.mark.parametrize("credentials", [CREDENTIALS._replace(job="other"), CREDENTIALS._replace(attempt=2)])
def test_another_job_or_attempt_is_a_stranger(
    site: Site, credentials: Credentials, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove_limit(monkeypatch)
    assert site.probe(site.listen(credentials=credentials)) == {"worker-1": readiness.STRANGER}


def test_a_server_that_accepts_the_connection_and_is_silent(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    remove_limit(monkeypatch)
    assert site.probe(site.stranger().getsockname()[1]) == {"worker-1": readiness.SILENT}


def test_a_host_that_drops_packets_is_reported_as_timed_out(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    remove_limit(monkeypatch)
    listener = socket.socket()
    site.closing.append(listener.close)
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    where = listener.getsockname()
    for _ in range(2):  # the queue of connections is full now, and the next SYN is dropped
        filler = socket.socket()
        filler.setblocking(False)
        filler.connect_ex(where)
        site.closing.append(filler.close)
    assert site.probe(where[1]) == {"worker-1": readiness.TIMED_OUT}


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@pytest.mark.parametrize("close", [socket.socket.close, reset], ids=["closes", "resets"])
def test_a_host_that_loses_the_first_connections_is_not_blamed(
    site: Site, close: Callable[[socket.socket], None]
) -> None:
    listener, refused = site.stranger(), []
    listener.setblocking(False)

    def refuse() -> None:
        connection, _ = listener.accept()
        refused.append(connection)
        close(connection)
        if len(refused) == 5:
            site.loop.unwatch(listener.fileno())
            answers = answer_probes(site.loop, listener, CREDENTIALS._replace(slot="worker-1"), 4)
            site.closing.insert(0, answers.close)

    site.loop.watch(listener.fileno(), READ, lambda _: refuse())
    assert site.probe(listener.getsockname()[1]) == {"worker-1": ""}


def test_the_check_leaves_nothing_in_the_way_of_whoever_binds_the_port_next(site: Site) -> None:
    port = site.listen()
    assert site.probe(port) == {"worker-1": ""}
    site.closing.pop(0)()
    site.ports[0].yield_to_task()  # no agent of another test takes it
    with socket.socket() as after:  # without SO_REUSEADDR: even a connection in TIME_WAIT would block it
        after.bind(("0.0.0.0", port))


@pytest.mark.parametrize("address", ["0.0.0.0", "127.0.0.1"])
def test_no_process_can_take_a_reserved_port(address: str) -> None:
    """The port cannot be bound even with the options that gRPC sets."""
    port = reserve_task_port(30000)
    with socket.socket() as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        with pytest.raises(OSError, match="already in use"):
            stranger.bind((address, port.port))
        with port.listener.dup():  # of a process that was just forked
            port.yield_to_task()
            stranger.bind((address, port.port))
            stranger.listen()
    port.release()
