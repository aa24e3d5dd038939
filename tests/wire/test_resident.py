"""The client reaches the agent that stays on a host, and starts one if there is none."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fleet.remote.ssh import internals
from fleet.remote.ssh.resident import DIRECTORY, IDLE_S, ResidentAgent
from fleet.remote.ssh.transport import open_agent
from tests.process.train.agent.hosts import eventually, gone
from tests.program import Program, find_paths, wait_for
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
    """Return whether the resident agent listens; a client that comes earlier does not try again for two minutes."""
    with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
        probe.connect(paths(hosts).resident_socket)
        return True
    return False


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
    assert eventually(lambda: listens(single))
    assert use_agent(single) is not None


def test_an_agent_is_started_if_the_resident_one_is_stopped(single: Hosts) -> None:
    use_agent(single)
    assert eventually(lambda: listens(single))
    resident = use_agent(single)
    assert resident is not None
    resident.send_signal(signal.SIGSTOP)
    try:
        assert use_agent(single) is None
        assert ResidentAgent(single.hosts[0], single.key).is_forbidden  # it is not tried again
        assert use_agent(single) is None
        with open_agent(single.hosts[0], single.key) as client:
            client.release(Release())
        assert gone(resident.pid)
    finally:
        with contextlib.suppress(psutil.Error):
            resident.kill()


def test_the_fork_of_a_resident_agent_that_answers_late_ends(single: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    use_agent(single)
    assert eventually(lambda: listens(single))
    resident = use_agent(single)
    assert resident is not None
    monkeypatch.setattr("fleet.remote.ssh.transport._RESIDENT_S", 0.1)
    resident.send_signal(signal.SIGSTOP)
    try:
        with open_agent(single.hosts[0], single.key) as client:
            resident.send_signal(signal.SIGCONT)
            assert client.inspect(Inspect()) == []
            with socket.socket(socket.AF_UNIX) as later:
                later.connect(paths(single).resident_socket)
                assert later.recv(1)  # now the connection before is served
            assert eventually(lambda: not resident.children())
        assert resident.is_running()
    finally:
        resident.send_signal(signal.SIGCONT)


def test_an_ssh_server_that_forbids_forwarding_is_asked_once(single: Hosts) -> None:
    use_agent(single)
    assert eventually(lambda: listens(single))
    keys = next(single.key.parent.rglob("authorized_keys"))
    keys.write_text("no-port-forwarding " + keys.read_text())
    assert use_agent(single) is None
    record = ResidentAgent(single.hosts[0], single.key)
    assert (record.is_forbidden, record.socket) == (True, "")
    assert use_agent(single) is None
    (file,) = (single.key.parent / DIRECTORY).iterdir()
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
    assert ResidentAgent(single.hosts[0], single.key).learn("/socket", is_running=False)
    (file,) = (single.key.parent / DIRECTORY).iterdir()
    assert ResidentAgent(single.hosts[0], single.key).socket == "/socket"
    file.write_text(content)
    assert ResidentAgent(single.hosts[0], single.key).socket == ""


def test_a_slot_does_not_use_the_resident_agent_of_its_host(single: Hosts) -> None:
    use_agent(single)
    assert eventually(lambda: listens(single))
    assert use_agent(single) is not None
    host = single.hosts[0]
    slot = dataclasses.replace(host, root=f"{host.root}/slot-0", shared=host.root)
    with open_agent(slot, single.key) as client:
        assert client.hello.socket == f"{slot.root}/resident.sock"


STATE = """
import json, os
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
names = ("Uid", "Gid", "Groups", "Umask", "SigBlk", "SigIgn", "SigCgt", "ShdPnd", "CapInh", "CapPrm", "CapEff",
         "CapBnd", "NoNewPrivs", "Seccomp", "Cpus_allowed", "Mems_allowed", "Threads", "THP_enabled")
stat = open("/proc/self/stat").read().rpartition(") ")[2].split()
state = {name: status.get(name, "").strip() for name in names}
for name in ("limits", "cgroup", "oom_score_adj", "coredump_filter", "comm", "timerslack_ns"):
    state[name] = open("/proc/self/" + name).read()
state.update(tty=stat[4], nice=stat[16], policy=stat[38], session=os.getsid(0) == os.getpgid(0) == os.getpid())
state.update(files=sorted(os.listdir("/proc/self/fd")), cwd=os.getcwd())
state.update({link: os.readlink("/proc/self/ns/" + link) for link in os.listdir("/proc/self/ns")})
state.update({"$" + name: value for name, value in os.environ.items()})
state["login"] = open(f"/proc/{os.getppid()}/environ").read().partition("SSH_CONNECTION=")[2].partition(chr(0))[0]
print("state", json.dumps(state))
"""


def task_state(program: Program) -> dict[str, str]:
    """Run a task; return what it inherited, with the login of its supervisor."""
    ran = program.run("train", "task.py", "-o", "json")
    text = "".join(event.get("text", "") for event in ran.events if event["event"] == "log_chunk")
    state = json.loads(text.partition("state ")[2])
    (job,) = {event["job"] for event in ran.events if event["event"] == "job_result"}
    port = state["$FLEET_ADDRESSES"].rpartition(":")[2]
    return {name: str(value).replace(job, "JOB").replace(f":{port}", ":PORT") for name, value in state.items()}


def resident(program: Program) -> psutil.Process | None:
    """Return the resident agent of the only host, if it listens."""
    for record in find_paths(program.state / "local", "*/fleet/resident"):
        with contextlib.suppress(ValueError, OSError, psutil.Error):
            process = psutil.Process(json.loads(record.read_text())["process"][0])
            return process if record.with_name("resident.sock").exists() else None
    return None


def test_a_task_inherits_the_same_through_the_resident_agent(program: Program) -> None:
    program.script("task.py", STATE)
    program.run("up", "--workers", "1")
    program.run("status", code=None)
    process = wait_for("the resident agent", lambda: resident(program))
    process.kill()
    process.wait(60)
    program.host_file("*/fleet/resident.sock").unlink()
    started = task_state(program)
    process = wait_for("the next resident agent", lambda: resident(program))
    forked = task_state(program)
    logins = (started.pop("login"), forked.pop("login"))
    assert logins[1] == process.environ()["SSH_CONNECTION"]
    assert forked == started
