"""Test links between agents on real sockets: they stay open, come back after a short loss, and go down in time."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator

import pytest

from train.agent.gang.patience import LATE_S
from train.agent.host.loop import Loop
from train.agent.peers.connections import ConnectionEvents, PeerConnections
from train.agent.protocol.records import Member
from train.agent.protocol.session import Credentials, encode_message

SECRET = b"s" * 32
TIMEOUT_S = 3.0


class Proxy:
    """A proxy for a port, whose connections can be cut."""

    def __init__(self, loop: Loop, port: int) -> None:
        self.loop, self.port = loop, port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setblocking(False)
        self.pairs: list[tuple[socket.socket, socket.socket]] = []
        self.frozen = False
        loop.watch(self.listener.fileno(), 1, lambda _: self._accept())

    @property
    def front(self) -> int:
        return int(self.listener.getsockname()[1])

    def _accept(self) -> None:
        near, _ = self.listener.accept()
        far = socket.create_connection(("127.0.0.1", self.port))
        self.pairs.append((near, far))
        for source, other in ((near, far), (far, near)):
            self.loop.watch(source.fileno(), 1, lambda _, source=source, other=other: self._pass(source, other))  # type: ignore[misc]

    def _pass(self, near_end: socket.socket, other: socket.socket) -> None:
        if self.frozen:
            self.loop.unwatch(near_end.fileno())
            return
        data = near_end.recv(1 << 16)
        if data:
            other.sendall(data)
        else:
            self.loop.unwatch(near_end.fileno())
            other.close()

    def cut(self) -> None:
        """End all connections."""
        for pair in self.pairs:
            for end in pair:
                self.loop.unwatch(end.fileno())
                end.close()
        self.pairs.clear()

    def close(self) -> None:
        self.cut()
        self.loop.unwatch(self.listener.fileno())
        self.listener.close()


class Net:
    """Agents in one thread, each with a separate loop, and the events that they received."""

    def __init__(self) -> None:
        self.loops: list[Loop] = []
        self.agents: dict[str, PeerConnections] = {}
        self.events: list[tuple[object, ...]] = []
        self.proxies: list[Proxy] = []
        self.listeners: dict[str, socket.socket] = {}
        for index in range(3):
            listener = socket.create_server(("127.0.0.1", 0))
            listener.setblocking(False)
            self.listeners[f"worker-{index}"] = listener

    def port(self, name: str) -> int:
        return int(self.listeners[name].getsockname()[1])

    def agent(self, name: str, secret: bytes = SECRET, ports: dict[str, int] | None = None) -> PeerConnections:
        loop = Loop()
        self.loops.append(loop)
        others = {
            other: Member(other, other, "127.0.0.1", 2222, (ports or {}).get(other, self.port(other)))
            for other in self.listeners
            if other != name
        }
        links = PeerConnections(
            loop,
            self.listeners[name],
            Credentials("job", secret, name),
            TIMEOUT_S,
            others,
            events=ConnectionEvents(
                lambda slot: self.events.append(("up", name, slot)),
                lambda slot, reason: self.events.append(("down", name, slot, reason)),
                lambda slot, message: self.events.append(("message", name, slot, message)),
                lambda: None,
            ),
        )
        self.agents[name] = links
        return links

    def proxy(self, name: str) -> Proxy:
        loop = Loop()
        self.loops.append(loop)
        proxy = Proxy(loop, self.port(name))
        self.proxies.append(proxy)
        return proxy

    def until(self, true: Callable[[], bool], deadline_s: float = 90.0) -> None:
        end = time.monotonic() + deadline_s
        while not true():
            assert time.monotonic() < end, self.events
            for loop in self.loops:
                loop.after("test", 0.002, lambda: None)
                loop.turn()

    def pass_time(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        self.until(lambda: time.monotonic() > end)

    def count(self, *event: object) -> int:
        return self.events.count(event)

    def downs(self) -> list[tuple[object, ...]]:
        return [event for event in self.events if event[0] == "down"]

    def close(self) -> None:
        for links in self.agents.values():
            links.close()
        for proxy in self.proxies:
            proxy.close()
        for listener in self.listeners.values():
            listener.close()
        for loop in self.loops:
            loop.close()


@pytest.fixture
def net() -> Iterator[Net]:
    built = Net()
    yield built
    built.close()


def joined(net: Net, ports: dict[str, int] | None = None) -> tuple[PeerConnections, PeerConnections]:
    leader, follower = net.agent("worker-0"), net.agent("worker-1", ports=ports)
    follower.dial("worker-0")
    net.until(lambda: net.count("up", "worker-0", "worker-1") == net.count("up", "worker-1", "worker-0") == 1)
    return leader, follower


def test_a_link_comes_back_after_a_short_loss_and_both_ends_report_it(net: Net) -> None:
    proxy = net.proxy("worker-0")
    leader, follower = joined(net, {"worker-0": proxy.front})
    for again in (2, 3):
        proxy.cut()
        net.until(lambda again=again: net.count("up", "worker-0", "worker-1") == again)  # type: ignore[misc]
    follower.send("worker-0", encode_message({"report": 2}))
    net.until(lambda: net.count("message", "worker-0", "worker-1", {"report": 2}) == 1)
    net.pass_time(1.5 * TIMEOUT_S)
    assert net.downs() == []
    assert leader.connected


def test_a_link_on_which_nothing_passes_goes_down_on_both_sides_in_time(net: Net) -> None:
    proxy = net.proxy("worker-0")
    joined(net, {"worker-0": proxy.front})
    proxy.frozen = True
    net.until(lambda: len(net.downs()) == 2)
    silent = f"its agent was silent for {TIMEOUT_S:g} s"
    assert set(net.downs()) == {("down", "worker-0", "worker-1", silent), ("down", "worker-1", "worker-0", silent)}


def test_an_agent_that_ends_and_does_not_come_back_is_reported_once(net: Net) -> None:
    _, follower = joined(net)
    follower.close()
    net.until(lambda: bool(net.downs()))
    net.pass_time(TIMEOUT_S)
    assert net.downs() == [("down", "worker-0", "worker-1", "its agent ended")]


def test_who_dials_another_leaves_the_first(net: Net) -> None:
    _, follower = joined(net)
    net.agent("worker-2")
    follower.dial("worker-2")
    net.until(lambda: net.count("up", "worker-2", "worker-1") == 1)
    net.until(lambda: ("down", "worker-1", "worker-0", "") in net.events)
    follower.send("worker-2", encode_message({"report": 3}))
    net.until(lambda: net.count("message", "worker-2", "worker-1", {"report": 3}) == 1)


def test_who_dials_tries_until_the_other_is_there(net: Net) -> None:
    follower = net.agent("worker-1")
    follower.dial("worker-0")
    net.pass_time(0.3)
    assert net.events == []
    net.agent("worker-0")
    net.until(lambda: net.count("up", "worker-1", "worker-0") == 1)


def test_one_who_knows_the_secret_and_is_not_of_the_job_is_dropped(net: Net) -> None:
    net.agent("worker-0")
    with socket.create_connection(("127.0.0.1", net.port("worker-0"))) as stranger:
        greeting = Credentials("job", SECRET, "worker-7").peer_greeting()
        stranger.sendall(greeting.first())
        stranger.setblocking(False)
        heard = bytearray()

        def hung_up() -> bool:
            try:
                data = stranger.recv(4096)
            except BlockingIOError:
                return False
            except ConnectionResetError:
                return True
            heard.extend(data)
            if heard.endswith(b"\n"):
                stranger.sendall(greeting.take(bytes(heard))[0])
                heard.clear()
            return not data

        net.until(hung_up)
    assert net.events == []


def test_an_observer_that_did_not_run_does_not_blame_the_others(net: Net) -> None:
    net.agent("worker-0")
    net.agent("worker-1").dial("worker-0")
    net.until(lambda: net.count("up", "worker-1", "worker-0") == 1 and net.count("up", "worker-0", "worker-1") == 1)
    time.sleep(TIMEOUT_S / 2 + LATE_S)  # neither runs, as on an overloaded computer
    net.pass_time(TIMEOUT_S / 2)
    assert net.downs() == []
