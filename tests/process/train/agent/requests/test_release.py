"""Test that no file of a fleet stays on a host that is released, and the address at which others reach a host."""

from __future__ import annotations

import socket
import stat
from pathlib import Path

import pytest

from tests.process.train.agent.conftest import Connect
from tests.process.train.agent.hosts import Bundle, committed, eventually
from train.agent.files.paths import HostPaths
from train.agent.host import ports
from train.agent.host.ports import host_address
from train.agent.host.processes import list_processes
from train.agent.protocol.channel import Channel
from train.agent.protocol.records import Prepared, Release, Released
from train.agent.requests.stop import release_host


def test_an_agent_that_leaves_takes_all_with_it(connect: Connect, tmp_path: Path) -> None:
    agent = connect()
    assert isinstance(agent.prepare("j", Bundle("pass")), Prepared)
    (tmp_path / "host-0/readonly").mkdir()
    (tmp_path / "host-0/readonly/file").touch()
    (tmp_path / "host-0/readonly").chmod(stat.S_IRUSR | stat.S_IXUSR)
    agent.send(Release())
    assert not agent.expect(Released).running
    assert not (tmp_path / "host-0").exists()
    agent.send(Release())
    assert not agent.expect(Released).running


def test_what_runs_is_ended_first(connect: Connect, tmp_path: Path) -> None:
    agent = connect()
    script = "import os, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(600)\n"
    committed([agent], "j", Bundle(script))
    source = tmp_path / "host-0/jobs/j/worker-0/src/pid"
    eventually(lambda: source.exists() and bool(source.read_text()))
    pid = int(source.read_text())
    other = connect()
    other.send(Release(5.0))
    assert other.expect(Released).running
    assert pid not in list_processes()
    assert not (tmp_path / "host-0").exists()


@pytest.mark.parametrize(("shared", "stays"), [(".fleet", False), ("precious", True)])
def test_the_directory_of_all_fleets_goes_with_the_last(tmp_path: Path, shared: str, stays: bool) -> None:
    directory = tmp_path / shared
    for name in ("one", "two"):
        (directory / name).mkdir(parents=True)
    near, far = socket.socketpair()
    channel = Channel(near.fileno(), near.fileno())
    release_host(channel, HostPaths(str(directory / "one")), Release())
    assert list(directory.iterdir()) == [directory / "two"]
    release_host(channel, HostPaths(str(directory / "two")), Release())
    assert directory.exists() == stays
    near.close()
    far.close()


# --- the address of a host --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("connection", "expected"),
    [
        ("203.0.113.9 50000 10.0.0.3 22", "10.0.0.3"),
        ("2001:db8::9 50000 2001:db8::3 22", "2001:db8::3"),
        ("127.0.0.1 50000 127.0.0.1 2222", "198.51.100.7"),
        ("::1 50000 ::1 22", "198.51.100.7"),
        ("fe80::9%eth0 50000 fe80::3%eth0 22", "198.51.100.7"),
        ("169.254.1.1 50000 169.254.1.2 22", "198.51.100.7"),
        ("", "198.51.100.7"),
        ("nonsense", "198.51.100.7"),
    ],
)
def test_the_address_at_which_ssh_came_in(monkeypatch: pytest.MonkeyPatch, connection: str, expected: str) -> None:
    monkeypatch.setattr(ports, "address_on_route", lambda *_: "198.51.100.7")
    assert host_address(connection) == expected
