"""The client reaches the agent that stays on a host, and starts one if there is none."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fleet.errors import UnreachableError
from fleet.remote.ssh import internals
from fleet.remote.ssh.resident import DIRECTORY, IDLE_S, ResidentAgent
from fleet.remote.ssh.transport import open_agent
from tests.process.train.agent.hosts import eventually, gone
from tests.wire.hosts import Hosts, local_hosts
from train.agent.files.paths import HostPaths
from train.agent.protocol.records import Inspect, Release

pytestmark = pytest.mark.wire


@pytest.fixture
def single() -> Iterator[Hosts]:
    """Yield a new host, with a path that is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="fleet-") as directory, local_hosts(Path(directory), 1) as hosts:
        yield hosts


def use_agent(hosts: Hosts) -> psutil.Process | None:
    """Reach an agent, use it, and leave it; return the resident agent that forked it, or None if sshd started it."""
    with open_agent(hosts.hosts[0], hosts.key) as client:
        assert client.inspect(Inspect()) == []
        parent = psutil.Process(client.hello.pid).parent()
        assert parent is not None
        return None if parent.name().startswith("sshd") else parent


def paths(hosts: Hosts) -> HostPaths:
    return HostPaths(hosts.hosts[0].root)


def listens(hosts: Hosts) -> bool:
    return Path(paths(hosts).resident_socket).exists()


def test_the_second_command_reaches_the_resident_agent(single: Hosts) -> None:
    assert use_agent(single) is None
    assert eventually(lambda: listens(single))
    resident = use_agent(single)
    assert resident is not None
    assert use_agent(single) == resident
    with open_agent(single.hosts[0], single.key) as client:
        client.release(Release())
    assert gone(resident.pid)
    assert use_agent(single) is None


def test_an_agent_is_started_if_the_resident_one_was_killed(single: Hosts) -> None:
    use_agent(single)
    assert eventually(lambda: listens(single))
    resident = use_agent(single)
    assert resident is not None
    resident.kill()
    psutil.wait_procs([resident], 20)
    assert use_agent(single) is None
    assert eventually(lambda: use_agent(single) is not None)


def test_a_resident_agent_that_is_stopped_fails_one_command(single: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    use_agent(single)
    assert eventually(lambda: listens(single))
    resident = use_agent(single)
    assert resident is not None
    resident.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(UnreachableError, match="did not answer within 1 s"):
            open_agent(single.hosts[0], single.key, deadline_s=1)
        assert use_agent(single) is None
    finally:
        with contextlib.suppress(psutil.Error):
            resident.kill()


def test_an_ssh_server_that_forbids_forwarding_is_asked_once(single: Hosts) -> None:
    use_agent(single)
    assert eventually(lambda: listens(single))
    keys = next(single.key.parent.rglob("authorized_keys"))
    keys.write_text("no-port-forwarding " + keys.read_text())
    assert use_agent(single) is None
    record = ResidentAgent(single.hosts[0], single.key)
    assert (record.is_forbidden, record.socket) == (True, "")
    assert use_agent(single) is None
    file = single.key.parent / DIRECTORY / single.hosts[0].name
    os.utime(file, (0, file.stat().st_mtime - IDLE_S))
    assert not ResidentAgent(single.hosts[0], single.key).is_forbidden


def test_an_agent_is_started_with_other_versions_of_paramiko(single: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    use_agent(single)
    assert eventually(lambda: listens(single))
    monkeypatch.setattr(internals, "PROVEN", ())
    assert use_agent(single) is None
    assert ResidentAgent(single.hosts[0], single.key).is_forbidden


@pytest.mark.parametrize("content", ["relative", "/" + 107 * "a", ""])
def test_a_path_that_is_no_socket_is_not_used(single: Hosts, content: str) -> None:
    directory = single.key.parent / DIRECTORY
    directory.mkdir()
    (directory / single.hosts[0].name).write_text(content)
    assert ResidentAgent(single.hosts[0], single.key).socket == ""
