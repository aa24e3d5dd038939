from __future__ import annotations

from dataclasses import replace

import pytest

from fleet import events
from fleet.console.messages import Activities, Reporter, describe_event, describe_result, format_exit, format_plan
from fleet.events import (
    ConnectionLost,
    ConnectionRestored,
    Event,
    Exit,
    FilesPushed,
    FleetDown,
    FleetOpened,
    InstanceChanged,
    JobDiagnosed,
    JobResult,
    JobStarted,
    Level,
    LogChunk,
    Member,
    Note,
    Outcome,
    Phase,
    PriceChanged,
    Progress,
    PushedHost,
    PushProgress,
    TaskPlanned,
    TaskPrepared,
    TaskState,
    Usage,
)
from tests.unit.fleet.console.samples import ENDED, HANG_INSPECTION

MEMBERS = tuple(Member(f"worker-{index}", f"worker-{index}", "127.0.0.1", "127.0.0.1:2222") for index in range(3))
HERE, THERE = PushedHost("worker-0", "/d", 1), PushedHost("worker-1", "/d", 1)
UNCHANGED, FAILED = PushedHost("worker-2", "/d", 0), PushedHost("worker-3", None, None, "is gone")
PUSHED = "worker-[0-1]: 3 files, 2.0 KiB, in /d (2 unchanged)"


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (Note("something"), "something"),
        (Note("something", Level.WARNING), "warning: something"),
        (FleetOpened("demo", "local", ("worker-0",), 1.0, 0.0), "fleet demo: 1 host (local)"),
        (FleetOpened("demo", "gce", ("a", "b"), 1.0, 0.7), "fleet demo: 2 hosts (gce), $0.70 an hour"),
        (PriceChanged("demo", 0.7, 1.4), "fleet demo: $0.70 an hour from now on, $1.40 so far"),
        (InstanceChanged("worker-0", "starting sshd"), "worker-0: starting sshd"),
        (PushProgress("worker-0", 1, 2, 3), ""),
        (PushProgress("worker-0", 0, 0, 0), "worker-0: up to date"),
        (PushProgress("worker-0", 2048, 2048, 1), "worker-0: 1 file pushed, 2.0 KiB"),
        (FilesPushed("demo", 3, 2048, (HERE, THERE, FAILED)), PUSHED),
        (FilesPushed("demo", 1, 2048, (HERE,)), "worker-0: 1 file, 2.0 KiB, in /d"),
        (FilesPushed("demo", 1, 2048, (UNCHANGED,)), "worker-2: 1 file, 2.0 KiB, in /d (unchanged)"),
        (TaskPrepared("worker-0", "127.0.0.1:2222"), "worker-0: prepared at 127.0.0.1:2222"),
        (
            TaskPrepared("worker-0", "h:1", {"tensorflow": "2.21.0"}, ("T4", "T4")),
            "worker-0: prepared at h:1 (tensorflow 2.21.0, 2 of T4)",
        ),
        (JobStarted("j", "task.py", 1, MEMBERS, 1.0), "job j started: task.py on worker-[0-2]"),
        (JobStarted("j", "task.py", 2, MEMBERS, 1.0, True), "attached to job j: task.py on worker-[0-2], attempt 2"),
        (
            JobStarted("j", "-m pkg.task", 1, MEMBERS, 1.0, True, ended=True),
            "job j has ended: -m pkg.task on worker-[0-2]",
        ),
        (
            JobStarted("j", "task.py", 1, (*MEMBERS[:2], replace(MEMBERS[2], task="")), 1.0),
            "job j started: task.py on worker-[0-1], spare: worker-2",
        ),
        (LogChunk("worker-0", "worker-0", 1, 0, b"text"), ""),
        (
            ConnectionLost("worker-0", "timed out", 0.2),
            "worker-0: connection lost (timed out); retrying in 1 s",
        ),
        (ConnectionLost("worker-0", "timed out", 0.0), "worker-0: connection lost (timed out); giving up"),
        (ConnectionRestored("worker-0"), "worker-0: connected again"),
        (
            FleetDown("demo", ("a", "b"), 0, 0.14, 732.0),
            "fleet demo: 2 instances deleted, 0 left, uptime 12 min, cost $0.14",
        ),
        (
            FleetDown("demo", ("a", "b"), 0, 0.14, 732.0, max_cost_usd=5.0),
            "fleet demo: 2 instances deleted, 0 left, uptime 12 min, cost $0.14 of at most $5.00",
        ),
        (
            FleetDown("demo", ("a", "b"), 0, 0.0, 10.0, external=True),
            "fleet demo: 2 hosts released; no files remain on them",
        ),
        (
            FleetDown("demo", ("a", "b"), 1, 0.0, 10.0, external=True),
            "fleet demo: 2 hosts released; files remain on 1",
        ),
        (
            FleetDown("demo", ("a", "b"), 0, 0.0, 10.0, rented=False),
            "fleet demo: 2 hosts deleted, 0 left, uptime 10 s",
        ),
        (FleetDown("demo", ("a",), 1, 0.0, 10.0), "fleet demo: 1 instance deleted; 1 instance left, uptime 10 s"),
        (TaskState("worker-0", "worker-0", 1, Phase.RUNNING, 1.0), "worker-0: running"),
        (
            TaskState("worker-0", "worker-0", 1, Phase.EXITED, 1.0, 1, Exit(3), "why"),
            "worker-0: exited with code 3 (why)",
        ),
        (
            TaskState("worker-0", "worker-0", 1, Phase.EXITED, 1.0, 1, Exit(None, 9)),
            "worker-0: was killed by SIGKILL",
        ),
        (TaskState("worker-2", "worker-1", 2, Phase.RUNNING, 1.0), "worker-1 on worker-2: running"),
        (ENDED, "attempt 1 failed: worker-1 was killed by SIGKILL; attempt 2 starts in 0.5 s (of at most 4)"),
        (
            replace(ENDED, reason="", attempt=2, retry_s=90.0, attempts=0),
            "attempt 2 failed: worker-1 was killed by SIGKILL; attempt 3 starts in 1 min",
        ),
        (
            replace(ENDED, reason="no way\nno disk", retry_s=0.0),
            "attempt 1 failed: no way; no disk; attempt 2 starts at once (of at most 4)",
        ),
        (
            HANG_INSPECTION,
            "no progress: worker-1 is in user code (data.py:31 in fetch) (state S)",
        ),
        (replace(HANG_INSPECTION, state="", activity="worker-1 has ended"), "no progress: worker-1 has ended"),
        (JobDiagnosed("j", "worker-1", "hang", "worker-1 hung"), ""),
        (JobDiagnosed("j", "worker-1", "hang", "worker-1 hung", final=False), "attempt 1: worker-1 hung"),
        (JobDiagnosed("j", "worker-1", "unknown", "not known", final=False), ""),
        (Progress("worker-0", "worker-0", 1, 1.0), ""),
        (Usage("worker-0", "worker-0", 1.0, 1.0, 1), ""),
        (Note("a\x1b[2J\nb\x07"), "a\nb"),
    ],
)
def test_messages(event: Event, text: str) -> None:
    assert describe_event(event) == text


def test_an_event_of_an_attempt_is_reported_once() -> None:
    reporter = Reporter()
    assert reporter.message(ENDED)
    killed = JobDiagnosed("j", "worker-1", "killed", "worker-1 (10.0.0.3) was killed by SIGKILL", final=False)
    assert reporter.message(killed) == ""
    assert reporter.message(replace(killed, attempt=2))
    assert reporter.message(replace(killed, message="worker-1 ran out of memory"))


def test_a_command_that_attaches_does_not_report_earlier_starts() -> None:
    reporter = Reporter()
    running = TaskState("worker-0", "worker-0", 2, Phase.RUNNING, 1.0)
    assert reporter.message(running)
    reporter.message(JobStarted("j", "task.py", 2, (), 1.0, attached=True))
    assert reporter.message(running) == reporter.message(replace(running, phase=Phase.WAITING)) == ""
    assert reporter.message(replace(running, phase=Phase.EXITED))
    assert reporter.message(replace(running, attempt=3))


EXIT = {"worker-1": Exit(3)}


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (JobResult("j", 1, Outcome.SUCCEEDED, 1.0), "job j succeeded"),
        (JobResult("j", 1, Outcome.CANCELLED, 1.0), "job j was cancelled"),
        (JobResult("j", 1, Outcome.LOST, 1.0), "job j is lost: no host can report its result"),
        (JobResult("j", 1, Outcome.FAILED, 1.0), "job j failed"),
        (JobResult("j", 1, Outcome.FAILED, 1.0, "", "why"), "job j failed: why"),
        (JobResult("j", 1, Outcome.FAILED, 1.0, "worker-1", "", EXIT), "job j failed: worker-1 exited with code 3"),
        (
            JobResult("j", 1, Outcome.FAILED, 1.0, "worker-1", "out of memory", EXIT),
            "job j failed: worker-1 exited with code 3 (out of memory)",
        ),
        (
            JobResult("j", 1, Outcome.FAILED, 1.0, "worker-1", "worker-1 was killed for memory", EXIT),
            "job j failed: worker-1 was killed for memory",
        ),
    ],
)
def test_results(result: JobResult, text: str) -> None:
    assert describe_result(result) == text


def test_exit_words() -> None:
    ends = [None, Exit(), Exit(0), Exit(3), Exit(None, 9), Exit(None, 99)]
    assert [format_exit(end) for end in ends] == ["ended", "ended", "done", "exit 3", "SIGKILL", "signal 99"]


def test_plan() -> None:
    plan = TaskPlanned(
        "worker-0", "worker-0", "alpha", '{"a": 1}', "python task.py", {"B": "2", "A": "1", "TF_CONFIG": "x"}
    )
    assert format_plan(plan) == (
        "worker-0 on alpha\n"
        "  command    python task.py\n"
        '  TF_CONFIG  {"a": 1}\n'
        "  A          1\n"
        "  B          2\n"
    )  # fmt: skip


def test_plan_of_a_spare() -> None:
    plan = TaskPlanned("", "worker-2", "alpha", "", "python task.py", {})
    assert "  TF_CONFIG  none: a spare gets no task until another host is lost\n" in format_plan(plan)


def test_an_activity_is_reported_once_for_all_tasks_and_waiting_at_the_first() -> None:
    activities = Activities()
    members = tuple(events.Member(name, name, "", "") for name in ("worker-0", "worker-1"))
    activities.message(events.JobStarted("j-1", "task.py", 1, members, 0.0))

    def message(task: str, activity: str | None, attempt: int = 1, step: int = -1) -> str:
        return activities.message(events.Progress("", task, attempt, step=step, activity=activity))

    importing, waiting = "importing tensorflow", "waiting for the other workers"
    for attempt in (1, 2):
        assert message("worker-0", importing, attempt) == ""
        assert message("worker-1", importing, attempt) == "worker-[0-1]: importing tensorflow"
        assert message("worker-0", None, attempt) == ""
        assert message("worker-0", importing, attempt) == ""
        assert message("worker-1", waiting, attempt) == "worker-1: waiting for the other workers"
        assert message("worker-0", waiting, attempt) == ""
    assert message("worker-0", "tracing", 1) == message("worker-1", "tracing", 1) == ""  # an earlier attempt
    message("worker-0", None, 2, step=1)
    assert message("worker-0", "tracing", 2) == message("worker-1", "tracing", 2) == ""


def test_an_awaited_task_is_described_with_a_hint() -> None:
    text = describe_event(events.TaskAwaited("worker-1", 1, "input", 0.21, 0.23))
    first, second = text.split("\n")
    assert first == "the others wait for worker-1 (input: 210 ms of 230 ms per step)"
    assert second.startswith("to speed up its input: ")
