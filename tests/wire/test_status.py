"""`fleet status` of a job that has ended, from job directories on its hosts that the test writes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fleet.cli.fleets.status import run
from fleet.events import FleetStatus, JobStatus
from fleet.services import Services
from fleet.state import FleetRecord, Store
from provision.model import FleetSpec
from tests.wire.hosts import Hosts
from train.agent.files.journal import Journal, write_job, write_result
from train.agent.files.paths import HostPaths, TaskPaths
from train.agent.host import control
from train.agent.protocol.records import Exit, JobResult, Member, Outcome, Phase, Progress, TaskState, to_dict
from train.diagnosis.verdict import Cause

pytestmark = pytest.mark.wire

TASKS = ("worker-0", "worker-1", "")
MEMBERS = [Member(f"worker-{n}", task, f"10.0.0.{n + 2}", 2222, 4000) for n, task in enumerate(TASKS)]
MISTAKE = b'Traceback (most recent call last):\n  File "task.py", line 4, in main\n    f()\nValueError: no\n'
FELL = JobResult(
    "j-1", 2, Outcome.FAILED, 90.0, "worker-1", "worker-1 exited with code 1", {"worker-1": Exit(1)}
)  # fmt: skip


class Job:
    """A job of two workers and a spare on three hosts."""

    def __init__(self, hosts: Hosts) -> None:
        policy = {"restart": "on-failure", "restarts": 3}
        self.slots = [HostPaths(host.root).task("j-1", host.name) for host in hosts.hosts]
        for slot, member in zip(self.slots, MEMBERS, strict=True):
            Path(slot.directory).mkdir(parents=True)
            values = {
                "job": "j-1",
                "fleet": "demo",
                "slot": member.slot,
                "name": "task.py",
                "command": ["python", "task.py"],
            }
            write_job(
                slot,
                {**values, "members": to_dict(MEMBERS), "policy": policy, "started_at": 1.0},
            )

    def ran(self, index: int, attempt: int, log: bytes, ended: Exit, *, ours: bool = False, task: str = "") -> None:
        """Write a slot's part in an attempt."""
        journal = Journal(self.slots[index], attempt)
        name = f"worker-{index}"
        place = (name, task or name, attempt)
        journal.write_record(TaskState(*place, Phase.RUNNING, 10.0))
        for step in range(200):
            journal.write_record(Progress(*place, 10.0 + step, 1, 5, step))
        journal.write_log(log, 1.0)
        if ours:
            journal.write_record(TaskState(*place, Phase.STOPPING, 80.0))
        journal.write_record(TaskState(*place, Phase.EXITED, 80.0 + ours, exit=ended))
        journal.close()

    def failed(self) -> None:
        """Write two failed attempts: worker-1 was killed, then raised an exception."""
        self.ran(0, 1, b"up\n", Exit(signal=15), ours=True)
        self.ran(1, 1, b"up\n", Exit(signal=9))
        self.ran(0, 2, b"up\n" * 1_000_000, Exit(signal=15), ours=True)
        self.ran(1, 2, b"step 1 loss 2\n" * 1_000_000 + MISTAKE, Exit(1))

    def ended(self, result: JobResult) -> None:
        for slot in self.slots:
            write_result(slot, result)


@pytest.fixture
def job(hosts: Hosts) -> Iterator[Job]:
    new_job = Job(hosts)
    yield new_job
    for host in hosts.hosts:
        shutil.rmtree(HostPaths(host.root).jobs)


@pytest.fixture
def status(hosts: Hosts, tmp_path: Path) -> Callable[[], FleetStatus]:
    store = Store(tmp_path / "state")
    directory = store.fleet("demo")
    directory.create()
    shutil.copy(hosts.key, directory.key)
    directory.write(FleetRecord(FleetSpec("demo", "local", 3), 1.0, tuple(hosts.hosts)))

    def ask() -> FleetStatus:
        (fleet_status,), _ = run("demo", Services(store, lambda _: True))
        return fleet_status

    return ask


def job_of(status: FleetStatus) -> JobStatus:
    assert status.job is not None
    return status.job


def test_the_first_cause_of_a_job_without_a_client_is_shown(job: Job, status: Callable[[], FleetStatus]) -> None:
    job.failed()
    job.ended(FELL)
    shown_job = job_of(status())
    assert shown_job.verdict is not None
    assert (shown_job.verdict.kind, shown_job.verdict.task) == (Cause.SCRIPT_EXCEPTION, "worker-1")
    assert shown_job.verdict.message == "worker-1 (10.0.0.3) raised ValueError: no at task.py:4 in main"
    assert (shown_job.attempt, shown_job.attempts, shown_job.waits) == (2, 4, False)
    assert [(task.slot, task.task) for task in shown_job.tasks] == [
        ("worker-0", "worker-0"), ("worker-1", "worker-1"), ("worker-2", ""),
    ]  # fmt: skip


def test_an_exit_that_is_recorded_after_the_end_of_the_job_is_diagnosed(
    job: Job, status: Callable[[], FleetStatus]
) -> None:
    job.ran(0, 1, b"up\n", Exit(signal=15), ours=True)
    journal = Journal(job.slots[1], 1)
    place = ("worker-1", "worker-1", 1)
    journal.write_record(TaskState(*place, Phase.RUNNING, 10.0))
    journal.write_log(b"up\n", 1.0)
    job.ended(JobResult("j-1", 1, Outcome.LOST, 90.0, "worker-1", "worker-1 does not answer"))
    before = job_of(status()).verdict
    journal.write_record(TaskState(*place, Phase.EXITED, 80.0, exit=Exit(signal=9)))
    journal.close()
    after = job_of(status()).verdict
    assert before is not None
    assert after is not None
    assert before.message != after.message


def test_a_job_that_succeeded_has_no_cause(job: Job, status: Callable[[], FleetStatus]) -> None:
    job.failed()
    job.ended(FELL._replace(outcome=Outcome.SUCCEEDED, first_failed_task="", reason=""))
    assert job_of(status()).verdict is None


def test_the_decision_of_the_gang_takes_precedence_over_the_report_of_a_lost_host(
    job: Job, status: Callable[[], FleetStatus]
) -> None:
    job.failed()
    job.ended(FELL)
    write_result(job.slots[0], FELL._replace(attempt=3, reason="worker-1 was lost", isolated=True))
    shown_job = job_of(status())
    assert shown_job.result is not None
    assert shown_job.result.reason == FELL.reason


def test_a_job_between_two_attempts_is_shown_as_waiting(job: Job, status: Callable[[], FleetStatus]) -> None:
    job.ran(0, 1, b"up\n", Exit(signal=15), ours=True)
    job.ran(1, 1, b"up\n", Exit(signal=9))
    listeners = [control.listen(slot.control) for slot in job.slots]
    try:
        shown_job = job_of(status())
    finally:
        for listener in listeners:
            listener.close()
    assert (shown_job.result, shown_job.waits, shown_job.attempt, shown_job.verdict) == (None, True, 1, None)


def test_a_spare_that_took_over_is_shown_with_its_task(job: Job, status: Callable[[], FleetStatus]) -> None:
    job.failed()
    job.ran(0, 3, b"up\n", Exit(0))
    job.ran(2, 3, b"up\n", Exit(0), task="worker-1")
    job.ended(JobResult("j-1", 3, Outcome.SUCCEEDED, 99.0))
    tasks = {task.slot: task.task for task in job_of(status()).tasks}
    assert tasks["worker-2"] == "worker-1"


def test_a_host_without_files_of_the_job_is_ignored(
    job: Job, status: Callable[[], FleetStatus], hosts: Hosts
) -> None:
    job.failed()
    for slot in job.slots[1:]:
        write_result(slot, FELL)
    shutil.rmtree(TaskPaths(job.slots[0].directory).directory)
    shown_job = job_of(status())
    assert shown_job.verdict is not None
    assert shown_job.verdict.kind is Cause.SCRIPT_EXCEPTION
