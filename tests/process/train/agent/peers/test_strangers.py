"""Test unauthenticated connections: their bytes do not end a process or keep valid peers from connecting."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.process.train.agent.peers.test_links import Net, joined
from train.agent.protocol.session import Message, encode_message

NONCE = "00" * 16
HELLO = json.dumps({"hello": ["job", 0, "worker-1"], "nonce": NONCE}).encode() + b"\n"
LINES = {
    "deep list": b"[" * 3000 + b"\n",
    "deep object": b'{"a":' * 800 + b"\n",
    "proof of half a character": HELLO + b'{"proof":"\\ud800"}\n',
    "proof that is not ASCII": HELLO + '{"proof":"é"}\n'.encode(),
    "proof that is a number": HELLO + b'{"proof":1e400}\n',
    "name that is a list": b'{"hello":["job",0,[[]]],"nonce":"%s"}\n' % NONCE.encode(),
    "name of half a character": b'{"hello":["job",0,"\\udfff"],"nonce":"%s"}\n' % NONCE.encode(),
    "nonce that is not hexadecimal": '{"hello":["job",0,"worker-1"],"nonce":"é"}\n'.encode(),
    "huge number": b'{"hello":["job",%s,"x"]}\n' % (b"9" * 3900),
    "bytes of UTF-16": "\ufeff{}\n".encode("utf-16"),
}


@pytest.fixture
def net() -> Iterator[Net]:
    built = Net()
    yield built
    built.close()


def is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        while connection.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_a_stranger_at_the_link_port_loses_only_its_own_connection(net: Net, line: bytes) -> None:
    leader, _ = joined(net)
    with socket.create_connection(("127.0.0.1", net.port("worker-0"))) as stranger:
        stranger.sendall(line)
        net.until(lambda: is_closed(stranger))
    message: Message = {"order": 2}
    leader.send("worker-1", encode_message(message))
    net.until(lambda: net.count("message", "worker-1", "worker-0", message) == 1)
    assert net.downs() == []


@pytest.mark.parametrize("answer", [LINES["deep list"], b'{"nonce":"%s","proof":"\\ud800"}\n' % NONCE.encode()])
def test_a_stranger_that_answers_a_call_does_not_end_the_agent(net: Net, answer: bytes) -> None:
    leader = net.agent("worker-0")
    impostor = socket.create_server(("127.0.0.1", 0))
    impostor.setblocking(False)
    follower = net.agent("worker-1", ports={"worker-0": impostor.getsockname()[1]})
    follower.dial("worker-0")
    with impostor, contextlib.ExitStack() as opened:
        calls: list[socket.socket] = []

        def called_twice() -> bool:
            with contextlib.suppress(BlockingIOError):
                calls.append(opened.enter_context(impostor.accept()[0]))
                calls[-1].sendall(answer)
            return len(calls) > 1

        net.until(called_twice)
    assert leader is net.agents["worker-0"]
    assert net.events == []


# --- rendezvous -----------------------------------------------------------------------------------------------------

CROWD = """
import socket, sys
held = []
for _ in range(int(sys.argv[2])):
    held.append(socket.create_connection(("127.0.0.1", int(sys.argv[1]))))
print("held", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def program(text: str, *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", text, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


@contextlib.contextmanager
def crowd(port: int, size: int) -> Iterator[None]:
    """Hold connections of another process that send nothing."""
    with program(CROWD, port, size) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield


def test_idle_strangers_do_not_keep_agents_apart(net: Net) -> None:
    net.agent("worker-0")
    with crowd(net.port("worker-0"), 100):  # the number that waits until the agent accepts them
        follower = net.agent("worker-1")
        follower.dial("worker-0")
        net.until(lambda: ("up", "worker-0", "worker-1") in net.events)
    assert net.downs() == []
