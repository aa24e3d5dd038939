from __future__ import annotations

import dataclasses
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fleet.errors import FleetError, UnreachableError, WrongHostError
from fleet.events import ConnectionLost, ConnectionRestored, Level, Note
from fleet.remote.client import AgentClient, RefusedError
from fleet.remote.follower import Follower
from fleet.remote.merge import Item
from fleet.remote.ssh import transport as transport_module
from fleet.remote.ssh.transport import SSHTransport, open_agent
from fleet.remote.upload import scan
from provision.model import Host
from tests.wire.hosts import Hosts, Wire, no_thread_left
from tests.wire.scripted import FOLLOW, FOLLOW_ATTEMPTS, SILENT_SUPERVISOR, Scripted
from train.agent.protocol.records import (
    AttemptEnded,
    Commit,
    Follow,
    JobResult,
    Log,
    Outcome,
    Phase,
    Prepare,
    TaskState,
)

pytestmark = pytest.mark.wire

ASK = Follow("job-1", "worker-0", attempt=1)
PROMPT_S = 30.0
"""Longest duration of what takes a moment: far above it on a loaded machine, far below the timeouts of a follower."""


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Fail if a test leaves a thread running."""
    with no_thread_left():
        yield


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Write a log of 2 MB without repetitions."""
    path = tmp_path / "log"
    path.write_bytes(os.urandom(2_000_000))
    return path


def opener(hosts: Hosts) -> Callable[[Host], AgentClient]:
    return lambda host: open_agent(host, hosts.key, connect_timeout_s=60)


def is_open(client: AgentClient) -> bool:
    assert isinstance(client.transport, SSHTransport)
    transport = client.transport.connection.fabric.transport
    return transport is not None and transport.is_active()


def text_of(items: list[Item], host: str = "worker-0") -> bytes:
    """Return the bytes of a host's log, which must arrive without gap or overlap."""
    data = b""
    for item in items:
        if item.host == host and isinstance(item.record, Log):
            assert item.record.offset == len(data)
            data += item.payload
    return data


def kinds(items: list[Item]) -> list[type]:
    return [type(item.record) for item in items if not isinstance(item.record, Log)]


BREAKS = [300_000, 900_000, 1_500_000]


def broken_three_times(
    hosts: Hosts, follower: Follower, broken: Callable[[int], None] = lambda _: None
) -> list[Item]:
    """Return all items; kill the connection at each offset of BREAKS, where the sender waits for that.

    Args:
        hosts: The first host is followed.
        follower: The follower of that host.
        broken: Called with the offset after each kill.
    """
    items: list[Item] = []
    break_at = list(BREAKS)
    for item in follower:
        items.append(item)
        if break_at and isinstance(item.record, Log) and item.record.offset > break_at[0]:
            hosts.kill_sessions(0)
            broken(break_at.pop(0))
    return items


def test_an_open_client_is_used_and_stays_open(hosts: Hosts, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller can send more requests to the same agent, and must close the client."""
    monkeypatch.setattr(transport_module, "pack", Scripted(FOLLOW, LOG=str(log), PIECE=65_536, PAUSE=0))

    def never(_: Host) -> AgentClient:
        raise AssertionError

    with open_agent(hosts.hosts[0], hosts.key) as client:
        for _ in range(2):
            with Follower([(hosts.hosts[0], ASK)], never, clients={"worker-0": client}) as follower:
                assert text_of(list(follower)) == log.read_bytes()
            assert is_open(client)
    assert not is_open(client)


def test_a_client_is_closed_if_the_follower_is_closed_early(
    hosts: Hosts, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of the conversation must not be read as the answer to the next request."""
    monkeypatch.setattr(transport_module, "pack", Scripted(FOLLOW, LOG=str(log), PIECE=999, PAUSE=0.01))
    client = open_agent(hosts.hosts[0], hosts.key)
    with Follower([(hosts.hosts[0], ASK)], opener(hosts), clients={"worker-0": client}) as follower:
        next(iter(follower))
    assert not is_open(client)


def test_a_killed_connection_continues_at_the_same_byte(
    hosts: Hosts, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport_module, "pack", Scripted(FOLLOW, LOG=str(log), PIECE=9_999, PAUSE=0, STOPS=BREAKS))
    with Follower([(hosts.hosts[0], ASK)], opener(hosts)) as follower:
        items = broken_three_times(hosts, follower)
    assert text_of(items) == log.read_bytes()
    assert kinds(items) == [TaskState, *[ConnectionLost, ConnectionRestored] * 3, JobResult]
    lost = next(item.record for item in items if isinstance(item.record, ConnectionLost))
    assert (lost.host, lost.retry_s) == ("worker-0", 0.5)
    assert "worker-0" in lost.reason


def test_a_killed_connection_continues_in_the_same_attempt(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection breaks in attempts 1, 3, and 4, and directly at the beginning of an attempt."""
    logs = {attempt: tmp_path / f"log-{attempt}" for attempt in (1, 3, 4)}
    for path in logs.values():
        path.write_bytes(os.urandom(400_000))
    script = Scripted(
        FOLLOW_ATTEMPTS,
        LOGS={attempt: str(path) for attempt, path in logs.items()},
        PIECE=9_999,
        PAUSE=0,
        STOPS={1: [200_000], 3: [0, 300_000], 4: [100_000]},
        OUTCOME="succeeded",
        ISOLATED=False,
    )
    monkeypatch.setattr(transport_module, "pack", script)
    received: dict[int, bytes] = dict.fromkeys(logs, b"")
    others: list[object] = []
    break_at = [(1, 200_000), (3, 0), (3, 300_000), (4, 100_000)]
    with Follower([(hosts.hosts[0], ASK)], opener(hosts)) as follower:
        for item in follower:
            record = item.record
            if isinstance(record, Log):
                assert record.attempt == max(
                    [1, *(attempt for attempt, data in received.items() if data), record.attempt]
                )
                assert record.offset == len(received[record.attempt])
                received[record.attempt] += item.payload
                if break_at and (record.attempt, record.offset) > break_at[0]:
                    break_at.pop(0)
                    hosts.kill_sessions(0)
            elif isinstance(record, (TaskState, AttemptEnded, JobResult)):
                others.append((type(record), record.attempt))
    assert not break_at
    assert received == {attempt: path.read_bytes() for attempt, path in logs.items()}
    assert others == [
        *[(kind, 1) for kind in (TaskState, TaskState, AttemptEnded)],
        *[(kind, 3) for kind in (TaskState, TaskState, AttemptEnded)],
        *[(kind, 4) for kind in (TaskState, TaskState, JobResult)],
    ]


@pytest.mark.parametrize("alone", [False, True])
def test_the_result_of_an_isolated_host_does_not_end_the_wait_for_the_others(
    hosts: Hosts, wire: Wire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    """The result of an isolated host is used only after the other hosts were given up."""
    go, logs = tmp_path / "go", {1: str(hosts.key)}
    script = Scripted(FOLLOW_ATTEMPTS, LOGS=logs, PIECE=10, PAUSE=0, OUTCOME="failed", ISOLATED=alone, GO=str(go))
    monkeypatch.setattr(transport_module, "pack", script)
    monkeypatch.setattr("fleet.remote.follower.AFTER_RESULT_S", 0.1)
    items: list[Item] = []
    lost_at = 0.0
    give_up_s = 3.0 if alone else 100.0
    with Follower([(wire.host, ASK), (hosts.hosts[1], ASK)], opener(hosts), give_up_s=give_up_s) as follower:
        for item in follower:
            items.append(item)
            if item.host == "worker-0" and isinstance(item.record, Log) and not lost_at:
                lost_at = time.monotonic()
                wire.close()
                go.touch()
        waited = time.monotonic() - lost_at
    assert [item.host for item in items if isinstance(item.record, JobResult)] == ["worker-1"]
    assert waited >= give_up_s if alone else waited < PROMPT_S


def test_a_silent_connection_is_opened_again(
    hosts: Hosts, wire: Wire, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport_module, "pack", Scripted(FOLLOW, LOG=str(log), PIECE=9_999, PAUSE=0.005))
    items: list[Item] = []
    with Follower([(wire.host, ASK)], opener(hosts), silence_s=1.0) as follower:
        for item in follower:
            items.append(item)
            if wire.opened == 1 and isinstance(item.record, Log) and item.record.offset > 500_000:
                wire.hold()
            if isinstance(item.record, ConnectionLost):
                wire.cut()
                wire.release()
    assert text_of(items) == log.read_bytes()
    assert ConnectionRestored in kinds(items)  # a busy computer may be silent for as long, too
    assert "did not answer within 1 s while following the job" in next(
        item.record.reason for item in items if isinstance(item.record, ConnectionLost)
    )


def follow_while_the_first_host_is_lost(
    hosts: Hosts, wire: Wire, monkeypatch: pytest.MonkeyPatch, items: list[Item], outcome: str, give_up_s: float
) -> None:
    body = FOLLOW.replace("succeeded", outcome)
    monkeypatch.setattr(transport_module, "pack", Scripted(body, LOG=str(hosts.key), PIECE=10, PAUSE=0.02))
    with Follower([(wire.host, ASK), (hosts.hosts[1], ASK)], opener(hosts), give_up_s=give_up_s) as follower:
        for item in follower:
            items.append(item)
            if item.host == "worker-0" and isinstance(item.record, Log):
                wire.close()


def test_a_lost_host_is_given_up_and_the_others_are_followed(
    hosts: Hosts, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    items: list[Item] = []
    with pytest.raises(UnreachableError, match=r"worker-0 \(127.* did not come back within 2 s") as raised:
        follow_while_the_first_host_is_lost(hosts, wire, monkeypatch, items, "lost", 2.0)
    assert text_of(items, "worker-1") == hosts.key.read_bytes()
    lost = [item.record for item in items if isinstance(item.record, ConnectionLost) and item.host == "worker-0"]
    assert lost[-1].retry_s == 0
    assert all(each.retry_s > 0 for each in lost[:-1])
    assert "worker-0" in raised.value.cause


def test_the_wait_for_a_lost_host_is_short_after_the_result(
    hosts: Hosts, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleet.remote.follower.AFTER_RESULT_S", 0.1)
    items: list[Item] = []
    follow_while_the_first_host_is_lost(hosts, wire, monkeypatch, items, "failed", 1000.0)
    assert [item.host for item in items if isinstance(item.record, JobResult)] == ["worker-1"]
    lost = [item.record for item in items if isinstance(item.record, ConnectionLost)]
    assert lost[-1].retry_s == 0


def test_a_host_with_a_frozen_supervisor_is_given_up_after_an_isolated_result(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sshd and a new agent answer, so that no connection is silent."""
    monkeypatch.setattr(transport_module, "pack", Scripted(SILENT_SUPERVISOR, OUTCOME="failed", ISOLATED=True))
    monkeypatch.setattr("fleet.remote.follower.AFTER_LONE_RESULT_S", 0.5)
    asks = [(host, Follow("job-1", host.name, attempt=1)) for host in hosts.hosts[:2]]
    with Follower(asks, opener(hosts)) as follower:
        items = list(follower)
        assert list(follower.incomplete) == ["worker-0"]
    assert [item.record.outcome for item in items if isinstance(item.record, JobResult)] == [Outcome.FAILED]
    notes = [item.record for item in items if isinstance(item.record, Note)]
    assert [note.level for note in notes] == [Level.WARNING]
    assert "the agent that supervises worker-0 has not answered for 61 s" in notes[0].text
    assert [item.record.retry_s for item in items if isinstance(item.record, ConnectionLost)] == [0.0]


# Waits, after each offset in its arguments, until a file of that name exists.
TASK = """
import os, random, sys, time
numbers = random.Random(1)
stops = list(map(int, sys.argv[1:]))
for number in range(400):
    os.write(1, numbers.randbytes(5_000))
    if stops and number * 5_000 > stops[0] + 300_000:
        while not os.path.exists(str(stops[0])):
            time.sleep(0.01)
        stops.pop(0)
"""


def test_the_real_agent_is_followed_through_killed_connections(hosts: Hosts, empty: Path) -> None:
    (empty / "task.py").write_text(TASK)
    host = hosts.hosts[0]
    client = open_agent(host, hosts.key)
    bundle = scan(empty, empty / "task.py", [], empty.parent / "cache")
    request = Prepare("job-1", "tests", "worker-0", bundle.entries, host.private_address, python=sys.executable)
    prepared = client.prepare(request, bundle, lambda *_: None)
    command = [prepared.python, "task.py", *map(str, BREAKS)]
    client.commit(
        Commit("job-1", "worker-0", [prepared.member._replace(task="worker-0")], "00" * 32, command, {}, {})
    )
    with Follower([(host, ASK)], opener(hosts), clients={host.name: client}) as follower:
        items = broken_three_times(hosts, follower, lambda offset: Path(prepared.workdir, str(offset)).touch())
    log = Path(prepared.workdir).parent / "attempt-1" / "log"
    assert text_of(items) == log.read_bytes()
    assert log.stat().st_size == 2_000_000
    states = [item.record.phase for item in items if isinstance(item.record, TaskState)]
    assert states == [Phase.WAITING, Phase.RUNNING, Phase.EXITED]
    assert kinds(items).count(ConnectionRestored) == len(BREAKS)
    (result,) = (item.record for item in items if isinstance(item.record, JobResult))
    assert result.outcome is Outcome.SUCCEEDED


def test_a_refused_request_is_not_repeated(hosts: Hosts) -> None:
    with (
        Follower([(hosts.hosts[0], Follow("no-such-job", "worker-0"))], opener(hosts)) as follower,
        pytest.raises(RefusedError, match="no-such-job"),
    ):
        list(follower)


def test_a_host_with_another_host_key_is_not_tried_again(hosts: Hosts) -> None:
    other = dataclasses.replace(hosts.hosts[0], host_key=hosts.hosts[1].host_key)
    with Follower([(other, ASK)], opener(hosts)) as follower, pytest.raises(WrongHostError, match="follow the job"):
        list(follower)


def test_an_unexpected_exception_is_raised(hosts: Hosts) -> None:
    def broken(_: Host) -> AgentClient:
        raise ZeroDivisionError

    with Follower([(hosts.hosts[0], ASK)], broken) as follower, pytest.raises(ZeroDivisionError):
        list(follower)


def test_close_is_prompt_while_a_host_is_silent(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport_module, "pack", Scripted("hello()\nreceive()\nreceive()"))
    follower = Follower([(host, ASK) for host in hosts.hosts], opener(hosts))
    timer = threading.Timer(0.5, follower.close)
    timer.start()
    began = time.monotonic()
    assert list(follower) == []
    timer.join()
    assert time.monotonic() - began < PROMPT_S


def test_close_is_prompt_while_the_items_are_not_read(
    hosts: Hosts, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.write_bytes(bytes(100_000_000))
    monkeypatch.setattr(transport_module, "pack", Scripted(FOLLOW, LOG=str(log), PIECE=262_144, PAUSE=0))
    with Follower([(hosts.hosts[0], ASK)], opener(hosts)) as follower:
        next(iter(follower))
        time.sleep(1)
        began = time.monotonic()
    assert time.monotonic() - began < PROMPT_S


def test_close_is_prompt_between_two_tries(hosts: Hosts, port: int) -> None:
    dead = dataclasses.replace(hosts.hosts[0], address="127.0.0.1", port=port)
    with Follower([(dead, ASK)], opener(hosts)) as follower:
        tries = iter(follower)
        for _ in range(3):
            assert isinstance(next(tries).record, ConnectionLost)
        began = time.monotonic()
    assert time.monotonic() - began < PROMPT_S


@pytest.mark.parametrize(("piece", "rate"), [(262_144, 1e6), (1_000, 1e5)])
def test_a_log_is_received_fast(
    hosts: Hosts, log: Path, monkeypatch: pytest.MonkeyPatch, piece: int, rate: float
) -> None:
    size = 40_000_000 if piece > 100_000 else 2_000_000
    log.write_bytes((b"Epoch 1/5 - loss: 0.1234 " * 5 + b"\n") * (size // 126))
    monkeypatch.setattr(transport_module, "pack", Scripted(FOLLOW, LOG=str(log), PIECE=piece, PAUSE=0))
    with open_agent(hosts.hosts[0], hosts.key) as client:
        began = time.monotonic()
        received = sum(len(payload) for _, payload in client.follow(ASK))
        seconds = time.monotonic() - began
    assert received == log.stat().st_size
    assert received / seconds > rate  # far below the measured rate, far above that of quadratic code


def test_following_one_host_raises_its_error(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport_module, "pack", Scripted("hello()\nreceive()\nsys.exit(7)"))
    with open_agent(hosts.hosts[0], hosts.key) as client, pytest.raises(FleetError, match="exit code 7"):
        list(client.follow(ASK))
