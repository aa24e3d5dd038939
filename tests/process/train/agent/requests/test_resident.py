"""An agent that stays on its host forks an agent for each connection to its socket."""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import signal
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from provision.local.sshd import AGENTS_VARIABLE
from tests.process.train.agent.conftest import Connect
from tests.process.train.agent.hosts import Agent, alive, eventually, gone
from train.agent.files.paths import HostPaths
from train.agent.protocol.records import (
    End,
    Hello,
    Inspect,
    KeepRunning,
    Record,
    Refused,
    Release,
    Released,
    decode,
    encode,
)
from train.agent.requests import resident
from train.agent.requests.resident import end_resident
from train.pack import AgentArchive, build_agent

IDLE_S = 600.0


class Client:
    """A connection to the socket of a resident agent."""

    def __init__(self, host: HostPaths) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(90)
        try:
            self.socket.connect(host.resident_socket)
        except OSError:
            self.socket.close()
            raise
        self._lines = self.socket.makefile("rb")

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        self.socket.close()

    def send(self, record: Record) -> None:
        self.socket.sendall(encode(record))

    def receive(self) -> Record | None:
        """Return the next record, or None at the end of input."""
        try:
            line = self._lines.readline()
        except ConnectionResetError:
            return None
        return decode(line) if line else None

    def hello(self) -> Hello:
        record = self.receive()
        assert isinstance(record, Hello)
        return record


@pytest.fixture
def host(tmp_path: Path) -> Iterator[HostPaths]:
    """Yield the paths of host 0; end its resident agent afterwards."""
    host = HostPaths(str(tmp_path / "host-0"))
    yield host
    end_resident(host)


def stay(agent: Agent, idle_s: float = IDLE_S) -> None:
    """Let an agent stay, and end its conversation."""
    agent.send(KeepRunning(idle_s))
    agent.send(Inspect())
    agent.expect(End)
    agent.close()


def resident_pid(host: HostPaths) -> int:
    """Return the process ID of the resident agent, once it answers."""
    pids: list[int] = []

    def answers() -> bool:
        with contextlib.suppress(OSError), Client(host) as client:
            record = client.receive()
            if isinstance(record, Hello):
                stat = Path(f"/proc/{record.pid}/stat").read_text()
                pids.append(int(stat.rpartition(") ")[2].split()[1]))
        return bool(pids)

    assert eventually(answers)
    return pids[0]


def test_an_agent_stays_only_if_its_client_requests_it(connect: Connect, host: HostPaths) -> None:
    agent = connect()
    assert agent.hello
    assert agent.hello.socket == host.resident_socket
    agent.close()
    assert not Path(host.resident).exists()


def test_the_resident_agent_serves_connections_side_by_side(connect: Connect, host: HostPaths) -> None:
    stay(connect())
    pid = resident_pid(host)
    with Client(host) as first, Client(host) as second:
        hellos = [first.hello(), second.hello()]
        assert {hello.agent for hello in hellos} == {build_agent().digest}
        assert len({hello.pid for hello in hellos} - {pid}) == 2
        for client in (first, second):
            client.send(Inspect())
            assert client.receive() == End()
            client.send(hellos[0])
            assert isinstance(client.receive(), Refused)
    assert all(gone(hello.pid) for hello in hellos)
    assert alive(pid)


def test_a_forked_agent_equals_one_that_was_started(connect: Connect, host: HostPaths) -> None:
    def state(pid: int) -> list[object]:
        status = dict(
            line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "\t" in line
        )
        names = ("Umask", "Uid", "Gid", "Groups", "SigBlk", "SigIgn", "SigCgt", "NoNewPrivs", "Cpus_allowed")
        files = {Path(f"/proc/{pid}/{name}").read_bytes() for name in ("environ", "limits", "oom_score_adj")}
        descriptors = sorted(int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir())
        return [*(status[name] for name in names), files, descriptors, os.getsid(pid) == pid]

    started = connect(env={"COLOUR": "blue"})
    assert started.hello
    expected, directory = state(started.hello.pid), Path(f"/proc/{started.hello.pid}/cwd").readlink()
    expected[-1] = True  # sshd starts it in its own session
    stay(started)
    resident_pid(host)
    with Client(host) as client:
        pid = client.hello().pid
        assert state(pid) == expected
        assert Path(f"/proc/{pid}/cwd").readlink() in (directory, Path.home())


def test_only_its_user_can_connect(connect: Connect, host: HostPaths) -> None:
    stay(connect())
    resident_pid(host)
    assert stat.S_IMODE(Path(host.resident_socket).stat().st_mode) == 0o600
    if os.geteuid() == 0:
        Path(host.resident_socket).chmod(0o666)
        Path(host.root).chmod(0o755)
        assert _first_byte_as(65534, host) == b""


def _first_byte_as(user: int, host: HostPaths) -> bytes:
    """Return the first byte that a process of another user receives from the resident agent."""
    reads, writes = os.pipe()
    directory = os.open(host.root, os.O_RDONLY)  # the other user may be unable to enter those above
    pid = os.fork()
    if pid == 0:
        try:
            os.fchdir(directory)
            os.setuid(user)
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(90)
                client.connect(Path(host.resident_socket).name)
                os.write(writes, b"c" + client.recv(1))
        finally:
            os._exit(0)
    os.close(directory)
    os.close(writes)
    os.waitpid(pid, 0)
    data = os.read(reads, 10)
    os.close(reads)
    assert data.startswith(b"c")  # connected
    return data[1:]


def test_a_host_has_one_resident_agent_of_the_newest_version(connect: Connect, host: HostPaths) -> None:
    stay(connect())
    pid = resident_pid(host)
    stay(connect())
    assert resident_pid(host) == pid
    data = build_agent().data + b"newer"
    newer = AgentArchive(data, hashlib.sha256(data).hexdigest())
    stay(connect(archive=newer))
    assert gone(pid)
    assert resident_pid(host) != pid
    with Client(host) as client:
        assert client.hello().agent == newer.digest


def test_a_conversation_outlives_the_resident_agent(connect: Connect, host: HostPaths) -> None:
    stay(connect())
    pid = resident_pid(host)
    with Client(host) as client:
        client.hello()
        os.kill(pid, signal.SIGKILL)
        assert gone(pid)
        client.send(Inspect())
        assert client.receive() == End()
    stay(connect())
    assert resident_pid(host) != pid


def test_release_ends_the_resident_agent(connect: Connect, host: HostPaths) -> None:
    stay(connect())
    pid = resident_pid(host)
    with Client(host) as client:
        client.hello()
        client.send(Release())
        assert isinstance(client.receive(), Released)
    assert gone(pid)
    assert not Path(host.root).exists()


def test_it_ends_when_no_client_connects(connect: Connect, host: HostPaths) -> None:
    stay(connect(), idle_s=3.0)
    assert eventually(lambda: Path(host.resident_socket).exists())
    assert eventually(lambda: not Path(host.resident_socket).exists())


def test_it_ends_when_the_environment_of_a_login_may_have_changed(
    connect: Connect, host: HostPaths, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    stay(connect(env={"HOME": str(home)}))
    pid = resident_pid(host)
    (home / ".bashrc").write_text("export A=b\n")
    with Client(host) as client:
        assert select.select([client.socket], [], [], 90)[0]
        assert client.receive() is None
    assert gone(pid)
    assert not Path(host.resident_socket).exists()


def test_it_ends_when_its_modules_were_removed(connect: Connect, host: HostPaths, tmp_path: Path) -> None:
    agents = tmp_path / "agents"
    stay(connect(env={AGENTS_VARIABLE: str(agents)}))
    pid = resident_pid(host)
    agents.rename(tmp_path / "removed")  # processes may write into it
    with Client(host) as client:
        assert client.receive() is None
    assert gone(pid)


def test_it_ends_when_its_socket_was_removed(monkeypatch: pytest.MonkeyPatch, host: HostPaths) -> None:
    monkeypatch.setattr(resident, "_CHECK_S", 0.01)
    Path(host.root).mkdir()
    Path(host.resident_socket).touch()
    agent = resident._Resident(host, "", resident.read_login(0o22), lambda: None)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("")  # an abstract address
        listener.listen()
        serves = threading.Thread(target=agent._serve_all, args=(listener, IDLE_S), daemon=True)
        serves.start()
        Path(host.resident_socket).unlink()
        serves.join(90)
        assert not serves.is_alive()


def test_a_client_is_closed_if_no_process_can_be_forked(monkeypatch: pytest.MonkeyPatch, host: HostPaths) -> None:
    def fail() -> int:
        raise BlockingIOError

    monkeypatch.setattr("train.agent.requests.resident.os.fork", fail)
    agent = resident._Resident(host, "", resident.read_login(0o22), lambda: None)
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.bind("")
        listener.listen()
        client.connect(listener.getsockname())
        agent._accept(listener)
        assert client.recv(1) == b""


def test_a_resident_agent_that_is_stopped_is_ended(connect: Connect, host: HostPaths) -> None:
    stay(connect())
    pid = resident_pid(host)
    os.kill(pid, signal.SIGSTOP)
    end_resident(host)
    assert gone(pid)


def test_a_process_with_threads_does_not_fork(monkeypatch: pytest.MonkeyPatch, host: HostPaths) -> None:
    monkeypatch.setattr("train.agent.requests.resident.os.listdir", lambda _: ["1", "2"])
    monkeypatch.setattr("train.agent.requests.resident.os.fork", lambda: pytest.fail("forked"))
    resident.stay(host, "", resident.read_login(0o22), IDLE_S, lambda: None)
