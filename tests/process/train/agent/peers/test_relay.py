"""Test contents that hosts pass on to each other during an upload."""

from __future__ import annotations

import os
import random
import sys
from hashlib import sha256
from pathlib import Path

from tests.process.train.agent.conftest import Connect
from tests.process.train.agent.hosts import Bundle, stored_contents
from train.agent.files.contents import Receiver
from train.agent.host.ports import listen_for_links
from train.agent.peers.relay import RelayServer, fetch
from train.agent.protocol.records import Chunk, NeedContents, Prepare, Prepared, Relay

SECRET = "ab" * 32
OTHER_SECRET = "cd" * 32

Contents = list[tuple[str, int]]


def nothing() -> None:
    return None


def some_contents(numbers: random.Random, count: int) -> tuple[Contents, bytes]:
    parts = [numbers.randbytes(numbers.choice([0, 1, 5000, 700_000])) for _ in range(count)]
    parts = list(dict.fromkeys(parts))
    return [(sha256(part).hexdigest(), len(part)) for part in parts], b"".join(parts)


class Host:
    """A receiver of contents that passes them on."""

    def __init__(self, store: Path, contents: Contents, secret: str = SECRET) -> None:
        self.store = store
        self.receiver = Receiver(str(store), contents)
        self.server = RelayServer(listen_for_links("127.0.0.1"))
        self.server.start(secret, self.receiver)

    def fetch_from(self, other: Host, secret: str = SECRET) -> bool:
        return fetch(Relay(secret, "127.0.0.1", other.server.port), self.receiver, nothing)

    def close(self) -> None:
        self.receiver.close()
        self.server.close()


def test_contents_pass_through_a_chain_of_hosts_unchanged(tmp_path: Path) -> None:
    contents, data = some_contents(random.Random(1), 12)
    hosts = [Host(tmp_path / str(number), contents) for number in range(3)]
    hosts[0].receiver.feed(data)
    assert hosts[1].fetch_from(hosts[0])
    assert hosts[2].fetch_from(hosts[1])
    for host in hosts:
        host.receiver.finish()
        host.close()
    assert stored_contents(tmp_path / "0") == stored_contents(tmp_path / "1") == stored_contents(tmp_path / "2")
    assert {sha256(content).hexdigest() for content in stored_contents(tmp_path / "2").values()} == {*dict(contents)}


def test_a_host_with_another_secret_or_other_contents_gets_nothing(tmp_path: Path) -> None:
    contents, data = some_contents(random.Random(1), 4)
    first, second = Host(tmp_path / "a", contents), Host(tmp_path / "b", contents[:-1])
    first.receiver.feed(data)
    assert not second.fetch_from(first, OTHER_SECRET)
    assert not second.fetch_from(first)
    assert second.receiver.received == 0
    for host in (first, second):
        host.close()
    assert not fetch(Relay(SECRET, "127.0.0.1", 1), second.receiver, nothing)


def test_a_host_names_the_rest_when_its_source_ends(tmp_path: Path) -> None:
    contents, data = some_contents(random.Random(3), 6)
    first, second = Host(tmp_path / "a", contents), Host(tmp_path / "b", contents)
    first.receiver.feed(data[: len(data) // 2])

    def tick() -> None:
        if second.receiver.received == len(data) // 2:
            first.receiver.close()

    relay = Relay(SECRET, "127.0.0.1", first.server.port)
    assert not fetch(relay, second.receiver, tick)
    rest = second.receiver.need()
    assert rest.size == len(data) - second.receiver.received
    second.receiver.feed(data[len(data) - rest.size :])
    second.receiver.finish()
    for host in (first, second):
        host.close()
    assert {sha256(content).hexdigest() for content in stored_contents(tmp_path / "b").values()} == {*dict(contents)}


# --- the conversation with the client ---------------------------------------------------------------------


def request(job: str, bundle: Bundle) -> Prepare:
    return Prepare(job, "tiny", "worker-0", bundle.entries, "127.0.0.1", sys.executable)


def test_an_agent_receives_contents_from_another_one_and_the_rest_from_the_client(connect: Connect) -> None:
    bundle = Bundle("print(1)", data=os.urandom(10 << 20))
    agents = [connect(number) for number in range(3)]
    needs = [agent.request_contents(request("job", bundle)) for agent in agents]
    data = b"".join(bundle.contents[digest] for digest in needs[0].objects)
    agents[0].send(Relay(SECRET))
    agents[1].send(Relay(SECRET, "127.0.0.1", needs[0].port))
    agents[2].send(Relay(OTHER_SECRET, "127.0.0.1", needs[0].port))
    rest = agents[2].answer()
    assert isinstance(rest, NeedContents)
    assert (rest.objects, rest.size, rest.offset) == (needs[0].objects, len(data), 0)
    agents[2].send_contents([data])
    agents[0].send_contents([data])
    assert all(isinstance(agent.answer(), Prepared) for agent in agents)
    for agent in agents:
        (source,) = agent.root.glob("jobs/job/worker-0/src/data")
        assert source.read_bytes() == bundle.contents[sha256(source.read_bytes()).hexdigest()]


def test_an_agent_asks_the_client_for_the_rest_when_its_source_is_killed(connect: Connect) -> None:
    bundle = Bundle("print(1)", data=os.urandom(10 << 20))
    first, second = connect(0), connect(1)
    needs = [agent.request_contents(request("job", bundle)) for agent in (first, second)]
    data = b"".join(bundle.contents[digest] for digest in needs[0].objects)
    first.send(Relay(SECRET))
    second.send(Relay(SECRET, "127.0.0.1", needs[0].port))
    for start in range(0, 4 << 20, 1 << 19):
        block = data[start : start + (1 << 19)]
        first.send(Chunk(len(block)), block)
    first.process.kill()
    rest = second.answer()
    assert isinstance(rest, NeedContents)
    second.send_contents([data[len(data) - rest.size :]])
    assert isinstance(second.answer(), Prepared)
