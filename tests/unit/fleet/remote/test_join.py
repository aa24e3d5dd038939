"""A host replaces a lost host and runs the job with its own interpreter."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from fleet.fleets import repair as fix
from fleet.remote.client import AgentClient
from fleet.state import FleetRecord
from provision.model import FleetSpec, Host
from train.agent.protocol.records import (
    Bootstrap,
    Bootstrapped,
    ClockTime,
    Commit,
    Committed,
    Hello,
    JobReport,
    JoinInfo,
    Member,
    Phase,
    Prepare,
    Prepared,
    ReadClock,
    Record,
)

MEMBERS = [Member("worker-0", "worker-0", "10.0.0.2", 2222, 1), Member("worker-1", "worker-1", "10.0.0.3", 2222, 1)]
NEW = Member("worker-1", "worker-1", "10.0.0.9", 2223, 5)


class StoringTransport:
    """A transport that returns the given answers, and keeps the records that were sent; its clock may be ahead."""

    def __init__(self, *answers: Record) -> None:
        self.ahead_s = 0.0
        self.sent: list[Any] = []
        self._answers = list(answers)

    def send(self, record: Record, payload: bytes = b"", **_: object) -> None:
        self.sent.append(record)

    def receive(self, *_: object, **__: object) -> tuple[Record, bytes]:
        if isinstance(self.sent[-1], ReadClock):
            self.sent.pop()
            return ClockTime(time.time() + self.ahead_s), b""
        return self._answers.pop(0), b""


def client(name: str, *answers: Record) -> tuple[AgentClient, list[Any]]:
    """Return the client of an agent that returns the given answers, and the list of the records sent to it."""
    host = Host(name, "10.0.0.9", 22, "u", "", "", "10.0.0.9", python="/own/python")
    transport: Any = StoringTransport(*answers)
    return AgentClient(transport, host, Hello("", "3.12", 1)), transport.sent


def prepared(python: str) -> Prepared:
    return Prepared(NEW, python, {}, [], 1, 1, "h", "/w")


def join_info(command: list[str], **fields: object) -> JoinInfo:
    commit = Commit("j", "worker-0", MEMBERS, "00", command, {}, {}, **fields)  # type: ignore[arg-type]
    return JoinInfo("demo", [], commit, "/their/python")


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        (["/their/python", "-m", "task"], ["/found/python", "-m", "task"]),
        (["Rscript", "task.R"], ["Rscript", "task.R"]),
        (["bash", "run.sh", "/their/python"], ["bash", "run.sh", "/their/python"]),
    ],
)
def test_the_command_names_the_hosts_own_interpreter(command: list[str], wanted: list[str]) -> None:
    joining, sent = client("worker-1", prepared("/found/python"), Committed(7))
    source, _ = client("worker-0")
    joining.join(join_info(command), "worker-1", source, lambda _, env: {**env, "A": "1"})
    prepare, commit = sent
    assert isinstance(prepare, Prepare)
    assert isinstance(commit, Commit)
    assert prepare.python == "/own/python"
    assert (commit.command, commit.env, commit.members) == (wanted, {"A": "1"}, [MEMBERS[0], NEW])


def test_packages_are_installed_before_it_joins() -> None:
    terms = join_info(
        ["/their/python", "task.py"], requirements="adds\n", constraints="adds<2\n", clock_correction_s=5.0
    )
    joining, sent = client(
        "worker-1",
        Bootstrapped("/venv/python", {}, [], 0, True, 1.0),
        prepared("/venv/python"),
        Committed(7),
    )
    source, _ = client("worker-0", terms)
    record = FleetRecord(FleetSpec("demo", "local", 2), 0.0, (joining.host,))
    reports = {
        "worker-0": JobReport("j", "demo", "worker-0", "worker-0", 1, Phase.RUNNING, True, 0.0, [], MEMBERS, 0)
    }
    sink: Any = SimpleNamespace(emit=lambda _: None)
    clients = {"worker-0": source, "worker-1": joining}
    joining.transport.ahead_s = 100.0  # type: ignore[attr-defined]
    assert fix.join("worker-1", "worker-0", reports, clients, record, sink)
    install, prepare, commit = sent
    assert install == Bootstrap("adds\n", "/own/python", 0, "adds<2\n", True)
    assert prepare.python == "/venv/python"
    assert commit.command == ["/venv/python", "task.py"]
    assert (commit.requirements, commit.constraints) == ("adds\n", "adds<2\n")
    assert commit.clock_correction_s == pytest.approx(5.0 - 100.0, abs=1.0)  # the source corrects its clock by 5 s
