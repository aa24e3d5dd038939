"""Test the readiness gate on hosts that cannot work together: no task starts, and the reason is reported."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.faults.conftest import Connect, Hosts
from tests.faults.namespaces import Namespace
from tests.process.train.agent.hosts import Agent, Bundle, Story, commits, committed, fake_python, follow
from train.agent.protocol.records import Follow, JobResult, Outcome, Prepared

MARK = "from pathlib import Path\nPath('ran').touch()\n"
OPEN = "open TCP port 2222 between the hosts (all TCP among the hosts of the fleet)"


def stories(agents: Sequence[Agent], job: str) -> list[Story]:
    return [follow(agent, Follow(job, f"worker-{n}")) for n, agent in enumerate(agents)]


def play(connect: Connect, hosts: Sequence[Namespace]) -> tuple[list[Agent], list[Story]]:
    """Run a job on all hosts, from the commit to its end."""
    agents = [connect(number, host) for number, host in enumerate(hosts)]
    committed(agents, "gate", Bundle(MARK), addresses=[host.address for host in hosts])
    return agents, stories(agents, "gate")


def nothing_started(agents: Sequence[Agent], played: Sequence[Story], job: str = "gate") -> JobResult:
    """Check that no host ran user code, and that all report the same result; return it."""
    for number, (agent, story) in enumerate(zip(agents, played, strict=True)):
        assert "running" not in story.phases
        assert not (agent.root / "jobs" / job / f"worker-{number}" / "src" / "ran").exists()
    results = {(story.result.outcome, story.result.reason, story.result.started) for story in played if story.result}
    assert len(results) == 1
    result = played[0].result
    assert result is not None
    assert (result.outcome, result.started) == (Outcome.FAILED, False)
    return result


def test_hosts_that_reach_each_other_start_on_the_same_port(connect: Connect, hosts: Hosts) -> None:
    agents, played = play(connect, hosts(3))
    for number, (agent, story) in enumerate(zip(agents, played, strict=True)):
        assert story.result is not None
        assert (story.result.outcome, story.result.started) == (Outcome.SUCCEEDED, True)
        assert (agent.root / "jobs" / "gate" / f"worker-{number}" / "src" / "ran").exists()


def test_a_pair_that_is_cut_off_in_silence_is_named_with_both_ends(connect: Connect, hosts: Hosts) -> None:
    """Without the gate, TensorFlow hangs for 15 minutes, because the heartbeats go to worker 0."""
    three = hosts(3)
    three[1].mislead(three[2])
    result = nothing_started(*play(connect, three))
    assert result.reason.splitlines() == [
        f"worker-2 (10.77.0.4) cannot reach worker-1 at 10.77.0.3:2222: timed out; {OPEN}",
        f"worker-1 (10.77.0.3) cannot reach worker-2 at 10.77.0.4:2222: timed out; {OPEN}",
    ]
    assert result.first_failed_task == ""


def test_a_firewall_that_drops_what_comes_to_the_port_of_the_chief(connect: Connect, hosts: Hosts) -> None:
    two = hosts(2)
    two[0].swallow_answers(two[1], 2222)
    result = nothing_started(*play(connect, two))
    assert result.reason == f"worker-1 (10.77.0.3) cannot reach worker-0 at 10.77.0.2:2222: timed out; {OPEN}"
    assert result.first_failed_task == "worker-0"


def test_a_port_that_is_not_reachable_is_reported_once(connect: Connect, hosts: Hosts) -> None:
    three = hosts(3)
    for other in three[:2]:
        other.refuse_way(three[2], 2222)
    result = nothing_started(*play(connect, three))
    assert result.reason == (
        "none of the others (worker-0 (10.77.0.2) and worker-1 (10.77.0.3)) can reach worker-2 at 10.77.0.4:2222: "
        f"network is unreachable; {OPEN}"
    )
    assert result.first_failed_task == "worker-2"


def test_an_address_that_leads_to_another_computer(connect: Connect, hosts: Hosts) -> None:
    """Two hosts have the same address: the host that has the port there accepts the connection."""
    *three, impostor = hosts(4)
    subprocess.run([*impostor.prefix, "ip", "address", "add", "10.77.0.3/32", "dev", "eth0"], check=True)
    three[2].mislead(three[1], impostor.hardware)
    listens = "import socket; s = socket.create_server(('', 2222)); print('x', flush=True)\nwhile 1: s.accept()"
    stranger = subprocess.Popen([*impostor.prefix, sys.executable, "-c", listens], stdout=subprocess.PIPE)
    try:
        assert stranger.stdout
        assert stranger.stdout.readline() == b"x\n"
        result = nothing_started(*play(connect, three))
    finally:
        stranger.kill()
        stranger.communicate()
    assert (
        "worker-2 (10.77.0.4) cannot reach worker-1 at 10.77.0.3:2222: another program answers there; "
        in result.reason
    )


# --- facts about the hosts, on the loopback interface------------------------------------------------------------


def test_hosts_with_other_versions(connect: Connect, tmp_path: Path) -> None:
    agents = [connect(number) for number in range(2)]
    members = []
    for number, tensorflow in enumerate(("2.21.0", "2.19.1")):
        directory = tmp_path / f"bin-{number}"
        directory.mkdir()
        python = fake_python(directory, python=f"3.{11 + number}.1", tensorflow=tensorflow)
        answer = agents[number].prepare(
            "gate", Bundle(MARK), slot=f"worker-{number}", address=f"127.0.0.{number + 1}", python=python
        )
        assert isinstance(answer, Prepared), answer
        members.append(answer.member)
    for agent, request in zip(agents, commits("gate", members, [sys.executable, "task.py"]), strict=True):
        agent.commit(request)
    result = nothing_started(agents, stories(agents, "gate"))
    assert result.reason == (
        "TensorFlow differs: 2.21 on worker-0 (127.0.0.1), 2.19 on worker-1 (127.0.0.2); "
        "install the same release on all hosts, or select an interpreter that has it"
    )
