"""Test jobs with several attempts: real agents and processes on one computer, with stand-in scripts."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.process.train.agent.conftest import Connect
from tests.process.train.agent.hosts import DEADLINE_S, Agent, Bundle, Story, committed, follow
from tests.program import wait_for
from train.agent.protocol.records import (
    AttemptEnded,
    Exit,
    Follow,
    JobResult,
    Member,
    Outcome,
    Policy,
    Stopped,
)

# Counts steps; the chief saves every tenth in the checkpoint directory, and all tasks begin at the saved step.
COUNT = """
import json, os, sys, time
directory, rank = os.environ["FLEET_CHECKPOINT_DIR"], int(os.environ["FLEET_RANK"])
attempt = os.environ["FLEET_ATTEMPT"]
path = os.path.join(directory, "count.data-00000-of-00001")
begin = json.load(open(path)) if os.path.exists(path) else 0
config = json.loads(os.environ["TF_CONFIG"])
print(f"begin {attempt} {begin} {json.dumps(config)}", flush=True)
last = int(sys.argv[1]) if attempt == "1" else begin + 5
for step in range(begin + 1, last + 1):
    time.sleep(0.05)
    if rank == 0 and step % 10 == 0:
        with open(path + ".tmp", "w") as file:
            json.dump(step, file)
        os.replace(path + ".tmp", path)
        for name, text in (("count.index", ""), ("checkpoint", 'model_checkpoint_path: "count"')):
            if not os.path.exists(os.path.join(directory, name)):
                with open(os.path.join(directory, name), "w") as file:
                    file.write(text)
    print(f"step {step}", flush=True)
"""
AGAIN = Policy(restarts=3, backoff_s=0.1, host_timeout_s=2.0)


class Job:
    """A job of `count` slots whose tasks count."""

    def __init__(
        self, connect: Connect, count: int, policy: Policy, script: str = COUNT, steps: int = 1000, **more: Any
    ):
        self.agents: list[Agent] = [connect(index) for index in range(count)]
        self.names = [f"worker-{index}" for index in range(count)]
        command = [sys.executable, "task.py", str(steps)]
        self.members: list[Member] = committed(
            self.agents, "job", Bundle(script), command=command, policy=policy, grace_s=1.0, **more
        )

    def directory(self, slot: int) -> Path:
        return self.agents[slot].root / "jobs" / "job" / self.names[slot]

    def log(self, slot: int, attempt: int = 1) -> str:
        path = self.directory(slot) / f"attempt-{attempt}" / "log"
        return path.read_text() if path.exists() else ""

    def wait_for_start(self, slot: int) -> None:
        path = self.directory(slot) / "attempt-1" / "records"
        wait_for("the start", lambda: '"running"' in path.read_text())

    def wait_for_step(self, step: int, slot: int = 0, attempt: int = 1) -> None:
        wait_for(f"step {step}", lambda: f"step {step}\n" in self.log(slot, attempt))

    def wait_for_copy(self, step: int, slots: list[int]) -> None:
        """Wait until each of the slots holds a complete copy of the checkpoint of a step, or of a later one."""
        for slot in slots:
            wait_for(f"a copy of step {step} in slot {slot}", lambda slot=slot: self.copied_step(slot) >= step)  # type: ignore[misc]

    def copied_step(self, slot: int) -> int:
        """Return the step of the checkpoint that a slot holds; 0: none."""
        copies = self.directory(slot) / "replica"
        try:
            files = [file for manifest in copies.glob("*-*-*/manifest") for file in manifest.parent.glob("[0-9]")]
            return max((int(text) for text in map(Path.read_text, files) if text.isdigit()), default=0)
        except FileNotFoundError:  # a newer copy replaced it
            return 0

    def pid(self, slot: int, kind: str) -> int:
        """Of the ``task`` or the ``watchdog`` of a slot."""
        processes = json.loads((self.directory(slot) / "processes").read_text())
        return int(processes["task" if kind == "task" else "supervisor"][0])

    def supervisor(self, slot: int) -> int:
        return _children(self.pid(slot, "watchdog"))[0]

    def kill(self, slot: int, kind: str, number: int = signal.SIGKILL) -> None:
        pid = self.supervisor(slot) if kind == "supervisor" else self.pid(slot, kind)
        os.kill(pid, number)

    def story(self, slot: int = 0, deadline_s: float = DEADLINE_S) -> Story:
        return follow(self.agents[slot], Follow("job", self.names[slot], logs=False), deadline_s=deadline_s)

    def result(self, slot: int = 0) -> JobResult:
        result = self.story(slot).result
        assert result is not None
        return result

    def begins(self, slot: int, attempt: int) -> tuple[int, dict[str, object]]:
        """Return the step at which an attempt began, and its TF_CONFIG."""
        line = self.log(slot, attempt).splitlines()[0].split(" ", 3)
        assert line[:2] == ["begin", str(attempt)]
        return int(line[2]), json.loads(line[3])


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_host_has_a_replicator_if_it_has_a_checkpoint_to_copy(connect: Connect) -> None:
    job = Job(connect, 2, Policy(), script="import time\ntime.sleep(1000)\n")
    for slot, count in ((0, 2), (1, 1)):
        job.wait_for_start(slot)
        assert len(_children(job.supervisor(slot))) == count
    checkpoint = job.directory(0) / "checkpoints" / "count.json"
    checkpoint.with_suffix(".new").write_text("10")
    checkpoint.with_suffix(".new").replace(checkpoint)
    job.wait_for_copy(10, [0, 1])
    assert len(_children(job.supervisor(1))) == 2


def test_after_a_killed_task_all_begin_again_with_fresh_ports_at_the_newest_checkpoint(connect: Connect) -> None:
    job = Job(connect, 2, AGAIN)
    job.wait_for_step(20)
    job.kill(1, "task")
    story = job.story()
    assert story.result is not None
    assert (story.result.outcome, story.result.attempt) == (Outcome.SUCCEEDED, 2)
    ended = [record for record in story.records if isinstance(record, AttemptEnded)]
    assert [(end.attempt, end.first_failed_task, end.reason) for end in ended] == [
        (1, "worker-1", "worker-1 was killed by SIGKILL")
    ]
    assert ended[0].exits["worker-1"] == Exit(signal=signal.SIGKILL)
    starts = [job.begins(slot, 2)[0] for slot in range(2)]
    assert len(set(starts)) == 1
    assert starts[0] == job.log(0).count("step") // 10 * 10
    ports = [json.dumps(job.begins(slot, attempt)[1]["cluster"]) for slot in range(2) for attempt in (1, 2)]
    assert len(set(ports)) == 2
    for slot in range(2):
        assert (
            json.loads((job.directory(slot) / "checkpoints" / "count.data-00000-of-00001").read_text()) >= starts[0]
        )


WAITING = """
import os, time
for second in range(60 if os.environ["MODE"] == "wait" else 16):
    if os.environ["FLEET_RANK"] == "1":
        if os.environ["MODE"] == "write":
            print(second, flush=True)
        if os.environ["MODE"] == "compute":
            end = time.process_time() + 0.2
            while time.process_time() < end:
                pass
    time.sleep(1.0)
"""


@pytest.mark.parametrize(
    ("mode", "outcome"), [("wait", Outcome.FAILED), ("write", Outcome.SUCCEEDED), ("compute", Outcome.SUCCEEDED)]
)
def test_a_job_ends_after_the_idle_timeout_only_if_no_task_is_active(
    connect: Connect, mode: str, outcome: Outcome
) -> None:
    job = Job(connect, 2, Policy(restarts=3, idle_timeout_s=8.0), WAITING, env={"MODE": mode})
    result = job.result()
    assert (result.outcome, result.attempt) == (outcome, 1)
    assert ("--idle-timeout" in result.reason) is (outcome is Outcome.FAILED)


@pytest.mark.parametrize(("slot", "number"), [(0, signal.SIGSTOP), (1, signal.SIGKILL)])
def test_a_supervisor_that_is_killed_or_stopped_is_replaced(connect: Connect, slot: int, number: int) -> None:
    job = Job(connect, 2, AGAIN)
    job.wait_for_step(5)
    task = job.pid(slot, "task")
    job.kill(slot, "supervisor", number)
    results = [job.result(0), job.result(1)]
    assert [(result.outcome, result.attempt) for result in results] == [(Outcome.SUCCEEDED, 2)] * 2
    assert not Path(f"/proc/{task}").exists()
    whole = follow(job.agents[slot], Follow("job", job.names[slot], logs=False, attempt=1))
    assert [record.attempt for record in whole.records if isinstance(record, AttemptEnded)] == [1]


def test_stop_between_two_attempts_ends_the_job(connect: Connect) -> None:
    stubborn = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + COUNT
    job = Job(connect, 2, Policy(restarts=3, backoff_s=30.0), stubborn)
    job.wait_for_step(3)
    job.kill(1, "task")

    def ended(story: Story) -> bool:
        return any(isinstance(record, AttemptEnded) for record in story.records)

    follow(connect(0), Follow("job", "worker-0", logs=False), until=ended)
    assert connect(0).stop("job", "worker-0") == Stopped(killed=False, running=True)
    result = job.result(0)
    assert result.outcome is Outcome.CANCELLED
    assert not (job.directory(0) / "attempt-2").exists()
