"""Test following a job over several attempts, with directories that the test writes."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from train.agent.files.journal import Journal, write_job, write_result
from train.agent.files.paths import HostPaths, TaskPaths
from train.agent.host import control
from train.agent.host.jobs import report_task
from train.agent.protocol.channel import Channel
from train.agent.protocol.records import (
    AttemptEnded,
    Beat,
    End,
    Exit,
    Follow,
    JobResult,
    Log,
    Outcome,
    Phase,
    Progress,
    Record,
    TaskState,
    decode,
    encode,
)
from train.agent.requests.follow import Follower

ALL = Follow("j", "worker-0", attempt=1)
RESULT = JobResult("j", 3, Outcome.SUCCEEDED, 9.0)
DEADLINE_S = 90.0


class Host:
    """A host with one job, and optionally a supervisor."""

    def __init__(self, root: Path) -> None:
        self.paths = HostPaths(str(root))
        self.task: TaskPaths = self.paths.task("j", "worker-0")
        Path(self.task.directory).mkdir(parents=True)
        policy = {"restart": "on-failure", "restarts": 3}
        write_job(self.task, {"job": "j", "slot": "worker-0", "name": "task.py", "policy": policy})
        self.listener: socket.socket | None = None
        self.connections: list[socket.socket] = []

    def supervise(self) -> None:
        self.listener = control.listen(self.task.control)
        self.listener.setblocking(True)
        self.listener.settimeout(DEADLINE_S)

    def accept(self) -> None:
        assert self.listener is not None
        self.connections.append(self.listener.accept()[0])

    def wake(self) -> None:
        for connection in self.connections:
            with contextlib.suppress(ConnectionError):  # the reader may have read the result already
                connection.send(encode(Beat(0.0)))

    def vanish(self) -> None:
        for each in (self.listener, *self.connections):
            if each is not None:
                each.close()

    def attempt(self, number: int) -> Journal:
        return Journal(self.task, number)

    def run_program(self, number: int, text: bytes, *, ended: bool = True) -> None:
        """Write an attempt that printed `text`, half of it before a record."""
        journal = self.attempt(number)
        journal.write_record(TaskState("worker-0", "worker-1", number, Phase.RUNNING, number * 10.0))
        journal.write_log(text[: len(text) // 2], number * 10.0 + 0.5)
        journal.write_record(Progress("worker-0", "worker-1", number, number * 10.0 + 1, 1))
        journal.write_log(text[len(text) // 2 :], number * 10.0 + 1.5)
        if ended:
            journal.write_record(
                TaskState("worker-0", "worker-1", number, Phase.EXITED, number * 10.0 + 2, exit=Exit(1))
            )
        journal.close()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    yield host
    host.vanish()


class Reader:
    """The client's end of a Follow request."""

    def __init__(self, host: Host, request: Follow) -> None:
        near, far = socket.socketpair()
        self._near, self._far = near, far
        self._file = near.makefile("rb")
        near.settimeout(DEADLINE_S)
        follower = Follower(Channel(far.fileno(), far.fileno()), host.paths, request)
        self._thread = threading.Thread(target=follower.run)
        self._thread.start()

    def __iter__(self) -> Iterator[tuple[Record, bytes]]:
        while True:
            record = decode(self._file.readline())
            if isinstance(record, End):
                break
            yield record, self._file.read(record.payload) if isinstance(record, Log) else b""
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()
        self._file.close()
        self._near.close()
        self._far.close()

    def until(self, kind: type[Record]) -> list[Record]:
        records = []
        for record, _ in self:
            records.append(record)
            if isinstance(record, kind):
                break
        return records


def sorted_out(items: Iterable[tuple[Record, bytes]]) -> tuple[dict[int, bytes], list[Record]]:
    """Return the logs by attempt, which must have no gaps, and all other records except heartbeats."""
    logs: dict[int, bytes] = {}
    ends: dict[int, int] = {}
    others: list[Record] = []
    for record, payload in items:
        if isinstance(record, Log):
            assert record.offset == ends.get(record.attempt, record.offset)
            assert record.attempt == max([*logs, record.attempt])
            ends[record.attempt] = record.offset + record.payload
            logs[record.attempt] = logs.get(record.attempt, b"") + payload
        elif not isinstance(record, Beat):
            others.append(record)
    return logs, others


def followed_logs(host: Host, request: Follow) -> tuple[dict[int, bytes], list[Record]]:
    return sorted_out(Reader(host, request))


def attempts_of(records: list[Record]) -> list[tuple[int, Phase]]:
    return [(record.attempt, record.phase) for record in records if isinstance(record, TaskState)]


@pytest.mark.parametrize("follow", [True, False])
def test_all_attempts_come_in_order_and_gaps_are_passed_over(host: Host, follow: bool) -> None:
    logs = {2: b"first words\n", 3: b"x" * 600_000, 5: b"last\n"}
    for number, text in logs.items():
        host.run_program(number, text)
    write_result(host.task, RESULT)
    received, others = followed_logs(host, ALL._replace(follow=follow))
    assert received == logs
    assert attempts_of(others) == [(number, phase) for number in logs for phase in (Phase.RUNNING, Phase.EXITED)]
    assert others[-1] == RESULT


def test_offsets_belong_to_the_attempt_that_is_asked_for_and_a_tail_to_the_newest(host: Host) -> None:
    host.run_program(2, b"first")
    host.run_program(4, b"a\nb\nc\n")
    write_result(host.task, RESULT)
    records = Path(host.task.records(4)).stat().st_size
    for request, logs in (
        (ALL._replace(attempt=2, log_offset=3), {2: b"st", 4: b"a\nb\nc\n"}),
        (ALL._replace(attempt=3, log_offset=3, record_offset=9), {4: b"a\nb\nc\n"}),
        (ALL._replace(attempt=4, log_offset=4), {4: b"c\n"}),
        (ALL._replace(attempt=5, log_offset=3), {}),
        (Follow("j", "worker-0", tail_lines=2), {4: b"b\nc\n"}),
        (Follow("j", "worker-0"), {4: b"a\nb\nc\n"}),
    ):
        assert followed_logs(host, request)[0] == logs
    assert followed_logs(host, ALL._replace(attempt=4, log_offset=3, record_offset=records))[1] == [RESULT]


def test_output_has_its_time_and_can_begin_at_one(host: Host) -> None:
    host.run_program(1, b"one\ntwo\n")  # at 10.5 and 11.5 s
    host.run_program(2, b"three\nfour")  # the second half begins in the middle of a line
    write_result(host.task, RESULT)
    logs = [(record, data) for record, data in Reader(host, ALL) if isinstance(record, Log)]
    assert [(record.attempt, record.at, record.marks) for record, _ in logs] == [
        (1, 10.5, []), (1, 11.5, []), (2, 20.5, []), (2, 21.5, []),
    ]  # fmt: skip
    assert followed_logs(host, ALL._replace(since=11.0))[0] == {1: b"two\n", 2: b"three\nfour"}
    assert followed_logs(host, ALL._replace(since=21.0))[0] == {2: b"three\nfour"}
    assert followed_logs(host, ALL._replace(since=22.0))[0] == {}
    for number in (1, 2):
        Path(host.task.times(number)).unlink()
    assert followed_logs(host, ALL._replace(since=22.0))[0] == {1: b"one\ntwo\n", 2: b"three\nfour"}
    assert followed_logs(host, ALL._replace(since=time.time() + 60))[0] == {}
    assert [record.at for record, _ in Reader(host, ALL) if isinstance(record, Log)] == [0.0] * 4


def test_a_slot_without_any_attempt_has_no_records(host: Host) -> None:
    result = followed_logs(host, ALL._replace(follow=False))[1][-1]
    assert isinstance(result, JobResult)
    assert result.outcome is Outcome.LOST
    write_result(host.task, RESULT)
    assert followed_logs(host, ALL) == ({}, [RESULT])
    report = report_task(host.task)
    assert report is not None
    assert (report.attempt, report.phase, report.name, report.attempts, report.task) == (
        0, Phase.WAITING, "task.py", 4, "",
    )  # fmt: skip


def test_the_last_bytes_of_an_attempt_come_before_the_next_one(host: Host) -> None:
    host.supervise()
    first = host.attempt(1)
    first.write_record(TaskState("worker-0", "worker-0", 1, Phase.RUNNING, 10.0))
    first.write_log(b"one ", 10.0)
    reader = Reader(host, ALL)
    host.accept()
    assert isinstance(reader.until(Log)[-1], Log)
    first.write_record(AttemptEnded("worker-0", 1, 10.5, "worker-1", "", {}, 0.1))
    Path(host.task.attempt(2)).mkdir()  # the next attempt is created before the task of this one has ended
    host.wake()
    first.write_log(b"two", 11.0)
    host.wake()
    first.write_record(TaskState("worker-0", "worker-0", 1, Phase.EXITED, 11.0))
    first.close()
    host.run_program(2, b"three")
    write_result(host.task, RESULT)
    host.wake()
    logs, others = sorted_out(reader)
    assert (logs[1][-3:], logs[2]) == (b"two", b"three")
    kinds = [type(record) for record in others]
    assert kinds == [AttemptEnded, TaskState, TaskState, Progress, TaskState, JobResult]


@pytest.mark.parametrize("written", [b"", b"cut off"])
def test_an_attempt_whose_end_was_never_written_does_not_hold_up_the_next_one(host: Host, written: bytes) -> None:
    """An attempt without a state never began; if it has one, the next attempt that began shows that it is over."""
    host.supervise()
    if written:
        host.run_program(1, written, ended=False)
    else:
        host.attempt(1).close()
    reader = Reader(host, ALL)
    host.accept()
    host.run_program(2, b"again")
    host.wake()
    items = []
    for record, payload in reader:
        items.append((record, payload))
        if isinstance(record, TaskState) and record.attempt == 2 and record.phase is Phase.EXITED:
            write_result(host.task, RESULT)
            host.wake()
    assert sorted_out(items)[0] == {1: written, 2: b"again"} if written else {2: b"again"}


def test_all_records_are_sent_before_the_end_of_the_supervisor_is_reported(host: Host) -> None:
    host.supervise()
    host.run_program(1, b"one", ended=False)
    host.run_program(2, b"two", ended=False)
    reader = Reader(host, ALL)
    host.accept()
    host.vanish()
    logs, others = sorted_out(reader)
    assert logs == {1: b"one", 2: b"two"}
    assert isinstance(others[-1], JobResult)
    assert (others[-1].outcome, others[-1].attempt) == (Outcome.LOST, 2)


@pytest.mark.parametrize(
    ("size", "pieces"),
    [(0, {}), (30, {0: 30}), (100, {0: 100}), (101, {0: 40, 41: 60}), (1_000_000, {0: 40, 999_940: 60})],
)
def test_of_a_long_log_only_the_two_ends(host: Host, size: int, pieces: dict[int, int]) -> None:
    host.run_program(1, b"old")
    host.run_program(2, os.urandom(size))
    write_result(host.task, RESULT)
    whole = Path(host.task.log(2)).read_bytes()
    received: dict[int, bytes] = {}
    items = list(Reader(host, ALL._replace(attempt=2, follow=False, head_bytes=40, tail_bytes=60)))
    for record, payload in items:
        if isinstance(record, Log):
            start = next((at for at, data in received.items() if at + len(data) == record.offset), record.offset)
            received[start] = received.get(start, b"") + payload
    assert {offset: len(data) for offset, data in received.items()} == pieces
    assert all(whole[offset : offset + len(data)] == data for offset, data in received.items())
    others = [record for record, _ in items if not isinstance(record, (Log, Beat))]
    assert attempts_of(others) == [(2, Phase.RUNNING), (2, Phase.EXITED)]
    assert not any(isinstance(record, Progress) for record in others)


def test_a_silent_supervisor_is_reported_and_one_that_answers_is_not(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that answers is not the supervisor; only the supervisor can report the end of the job."""
    monkeypatch.setattr("train.agent.requests.follow.BEAT_S", 0.05)
    host.supervise()
    host.run_program(1, b"one", ended=False)
    reader = Reader(host, ALL)
    host.accept()
    beats: list[float] = []
    for record, _ in reader:
        beats += [record.unanswered_s] if isinstance(record, Beat) else []
        if len(beats) == 10:
            break
    assert beats == sorted(beats)
    assert beats[-1] > 0
    requests = host.connections[0]
    requests.recv(1 << 16)
    requests.setblocking(False)
    with pytest.raises(BlockingIOError):  # requests do not accumulate in the socket of a frozen process
        requests.recv(1 << 16)
    host.wake()
    least = beats[-1]
    for record, _ in reader:
        if isinstance(record, Beat) and record.unanswered_s < least:
            least = record.unanswered_s
            host.vanish()
    assert least < beats[-1]
