"""The events that a command emits for a job of several attempts, from the records of its hosts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fleet import events
from fleet.events import ConnectionLost, ConnectionRestored, Event, JobDiagnosed, LogChunk, Note
from fleet.jobs.following import follow as verb
from fleet.jobs.following.follow import Ended, Followed, follow, until_running
from fleet.jobs.following.log_view import Selection
from fleet.jobs.results import agree
from fleet.remote.follower import Position
from fleet.remote.merge import Item
from fleet.state import FleetDirectory, FleetRecord
from provision.model import FleetSpec
from train.agent.protocol.records import (
    AttemptEnded,
    Exit,
    HangInspection,
    JobResult,
    Log,
    Member,
    Notice,
    Outcome,
    Phase,
    TaskState,
)
from train.diagnosis.verdict import Cause, Verdict

MEMBERS = tuple(Member(f"worker-{index}", f"worker-{index}", f"10.0.0.{index + 2}", 2222, 4000) for index in range(3))
SPARED = (*MEMBERS[:2], MEMBERS[2]._replace(task=""))  # the last slot is a spare
MISTAKE = b'Traceback (most recent call last):\n  File "task.py", line 4, in <module>\n    fail()\nValueError: no\n'
READ = Verdict("worker-1", Cause.KILLED, "worker-1 was killed")
WON = JobResult("j", 2, Outcome.SUCCEEDED, 9.0)
FELL = JobResult("j", 2, Outcome.FAILED, 9.0, "worker-1", "worker-1 was killed by SIGKILL")


class Hosts:
    """A fake follower that is also the sink."""

    def __init__(self, items: list[Item]) -> None:
        self.items = items
        self.events: list[Event] = []
        self.taken = 0
        self.incomplete: dict[str, Position] = {}

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def __iter__(self) -> Iterator[Item]:
        for item in self.items:
            self.taken += 1
            yield item

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def close(self) -> None:
        return

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def kinds(self) -> list[str]:
        return [type(event).__name__ for event in self.events]


def followed(**more: Any) -> Followed:
    clients: Any = tuple(SimpleNamespace(host=SimpleNamespace(name=member.task)) for member in MEMBERS)
    record = FleetRecord(FleetSpec("demo", "local", 3), 1.0)
    defaults: dict[str, Any] = {"members": MEMBERS, "attempts": 4, **more}
    return Followed(FleetDirectory(Path("nowhere")), record, "j", clients, **defaults)


def run(monkeypatch: pytest.MonkeyPatch, items: list[Item], **more: Any) -> tuple[Hosts, Ended]:
    hosts = Hosts(items)
    monkeypatch.setattr(verb, "open_follower", lambda *_: hosts)
    monkeypatch.setattr(verb, "first_cause", lambda *_: READ)
    return hosts, follow(followed(**more), hosts)


def log(host: str, data: bytes, attempt: int = 1) -> Item:
    return Item(host, Log(host, host, attempt, 0, len(data)), data)


def exited(host: str, ended: Exit, attempt: int = 1) -> Item:
    return Item(host, TaskState(host, host, attempt, Phase.EXITED, 5.0 + attempt, exit=ended))


def stopping(host: str, attempt: int = 1) -> Item:
    return Item(host, TaskState(host, host, attempt, Phase.STOPPING, 4.0))


def over(host: str, attempt: int = 1) -> Item:
    exits = {"worker-0": Exit(signal=15), "worker-1": Exit(code=1)}
    return Item(host, AttemptEnded(host, attempt, 5.0, "worker-1", "worker-1 exited with code 1", exits, 0.5))


def first_attempt(*, late: bool = False) -> list[Item]:
    """Return the records of an attempt: worker-1 raises, worker-0 is stopped, worker-2 is a spare."""
    mistake = [log("worker-1", MISTAKE), exited("worker-1", Exit(code=1)), over("worker-1")]
    stopped = [log("worker-0", b"up\n"), stopping("worker-0"), exited("worker-0", Exit(signal=15)), over("worker-0")]
    return stopped + mistake if late else mistake + stopped


@pytest.mark.parametrize("late", [False, True])
def test_a_failed_attempt_is_reported_once_and_its_cause_when_all_records_arrived(
    monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    won = [Item(host, WON) for host in ("worker-0", "worker-1")]
    hosts, ended = run(monkeypatch, [*first_attempt(late=late), *won], members=SPARED)
    (failed,) = hosts.of(events.AttemptEnded)
    assert (failed.attempt, failed.attempts) == (1, 4)
    (cause,) = hosts.of(JobDiagnosed)
    assert (cause.attempt, cause.final, cause.task, cause.kind) == (1, False, "worker-1", "script-exception")
    assert hosts.kinds.index("AttemptEnded") < hosts.kinds.index("JobDiagnosed") < hosts.kinds.index("JobResult")
    last_of_attempt = max(
        i for i, event in enumerate(hosts.events) if isinstance(event, (LogChunk, events.TaskState))
    )
    assert hosts.kinds.index("JobDiagnosed") == last_of_attempt + 1
    assert (ended.result, ended.verdict) == (WON, None)


def test_the_last_attempt_has_its_own_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    second = [exited("worker-1", Exit(signal=9), 2), stopping("worker-0", 2), exited("worker-0", Exit(signal=15), 2)]
    hosts, ended = run(monkeypatch, [*first_attempt(), *second, Item("worker-0", FELL)], members=SPARED)
    causes = [(event.attempt, event.kind, event.final) for event in hosts.of(JobDiagnosed)]
    assert causes == [(1, "script-exception", False), (2, "killed", True)]
    assert ended.verdict is not None
    assert ended.verdict.kind.value == "killed"


def test_a_host_that_is_away_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    items = first_attempt()[:4]  # the exit of worker-0 follows later
    gone = Item("worker-0", ConnectionLost("worker-0", "timed out", 1.0))
    back = Item("worker-0", ConnectionRestored("worker-0"))
    hosts, _ = run(monkeypatch, [*items, gone, back, Item("worker-1", WON)], members=SPARED)
    assert hosts.kinds[-4:] == ["ConnectionLost", "JobDiagnosed", "ConnectionRestored", "JobResult"]
    hosts, _ = run(monkeypatch, [gone, back, *items, log("worker-0", b"x"), Item("worker-1", WON)])
    assert hosts.kinds[-3:] == ["LogChunk", "JobDiagnosed", "JobResult"]


def test_an_unreachable_host_is_reported_once_and_when_it_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = [Item("worker-0", ConnectionLost("worker-0", "timed out", wait)) for wait in (0.5, 1.0, 2.0, 0.0)]
    hosts, _ = run(monkeypatch, [*tries[:2], Item("worker-0", ConnectionRestored("worker-0")), *tries])
    assert [event.retry_s for event in hosts.of(ConnectionLost)] == [0.5, 0.5, 0.0]


def test_the_cause_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verb, "DIAGNOSE_S", 0.0)
    hosts, _ = run(monkeypatch, [*first_attempt(), Item("worker-0", WON)])
    assert hosts.kinds.index("JobDiagnosed") < hosts.kinds.index("LogChunk", 2)


@pytest.mark.parametrize("more", [{"selection": Selection(lines=5)}, {"logs": False}, {"members": MEMBERS[:2]}])
def test_without_all_logs_the_hosts_are_asked_for_the_evidence(
    monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    hosts, ended = run(monkeypatch, [*first_attempt(), Item("worker-0", FELL)], **more)
    assert hosts.of(events.AttemptEnded)
    assert [(event.attempt, event.final) for event in hosts.of(JobDiagnosed)] == [(FELL.attempt, True)]
    assert ended.verdict == READ


def test_records_of_all_hosts_are_reported_once_and_those_of_each_host_all(monkeypatch: pytest.MonkeyPatch) -> None:
    items = [Item(host, Notice(host, 1, 1.0, "attempt 2: worker-2 is worker-1")) for host in ("worker-0", "worker-1")]
    items += [Item(host, HangInspection(host, host, 1, 1.0, "S", "", [])) for host in ("worker-0", "worker-1")]
    hosts, ended = run(monkeypatch, items)
    assert len(hosts.of(Note)) == 1
    assert len(hosts.of(events.HangInspection)) == 2
    assert ended == Ended(None)


def test_a_spare_need_not_run_for_the_job_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    items = [Item(host, TaskState(host, host, 1, Phase.RUNNING, 1.0)) for host in ("worker-0", "worker-1")]
    hosts = Hosts([*items, Item("worker-0", FELL)])
    monkeypatch.setattr(verb, "open_follower", lambda *_: hosts)
    assert until_running(followed(members=SPARED, logs=False), hosts) == Ended(None)
    assert hosts.taken == 2


LOST = JobResult("j", 3, Outcome.LOST, 9.0, "worker-2", "the agent is gone")
ALONE = JobResult("j", 3, Outcome.FAILED, 9.0, "worker-0", "worker-0 was lost", isolated=True)
LATER = ALONE._replace(at=10.0, reason="worker-0 did not answer")


@pytest.mark.parametrize(
    ("results", "wanted"),
    [
        ([], None),
        ([LOST], LOST),
        ([LOST, ALONE], ALONE),
        ([LOST, ALONE, WON], WON),
        ([ALONE, FELL], FELL),
        ([LATER, ALONE], ALONE),
        ([WON._replace(attempt=1), WON], WON),
    ],
)
def test_the_result_of_the_gang_wins_over_that_of_a_disconnected_host(
    results: list[JobResult], wanted: JobResult | None
) -> None:
    for order in (results, results[::-1]):
        by_host = {f"worker-{number}": result for number, result in enumerate(order)}
        assert agree(by_host, size=3).result == wanted


@pytest.mark.parametrize("attempt", [2, 3, 10**9])
@pytest.mark.parametrize("hosts", [2, 3, 5])
def test_one_host_cannot_replace_the_result_of_the_others(
    monkeypatch: pytest.MonkeyPatch, attempt: int, hosts: int
) -> None:
    members = tuple(Member(f"worker-{index}", f"worker-{index}", "10.0.0.2", 2222, 4000) for index in range(hosts))
    false = Item("worker-0", WON._replace(attempt=attempt))
    true = [Item(member.task, FELL) for member in members[1:]]
    for attempts, items in ((0, [false, *true]), (4, [*true, false])):
        reported, ended = run(monkeypatch, items, members=members, attempts=attempts)
        assert ended.result == FELL
        text = f"worker-0 reports a different result: the job succeeded in attempt {attempt}"
        assert [note.text for note in reported.of(Note)] == [text]


def test_a_false_end_of_an_attempt_does_not_hide_the_true_one(monkeypatch: pytest.MonkeyPatch) -> None:
    false = [
        Item("worker-2", AttemptEnded("worker-2", attempt, 5.0, "worker-0", "not true", {}, 0.5))
        for attempt in (1, 2, 10**9)
    ]
    states = [exited("worker-2", Exit(code=0), 10**9 + number) for number in range(20)]
    hosts, _ = run(monkeypatch, [*false, *states, *first_attempt(), Item("worker-0", FELL), Item("worker-1", FELL)])
    assert "worker-1 exited with code 1" in [event.reason for event in hosts.of(events.AttemptEnded)]
    assert ("script-exception", "worker-1") in [(event.kind, event.task) for event in hosts.of(JobDiagnosed)]
