"""Test jobs with several attempts: real agents and processes on one computer, with stand-in scripts."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from tests.process.train.agent.conftest import Connect
from tests.process.train.agent.hosts import DEADLINE_S, Agent, Bundle, Story, committed, follow
from tests.program import wait_for
from train.agent.protocol.records import AttemptEnded, Exit, Follow, JobResult, Member, Outcome, Policy, Stopped

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
        self, connect: Connect, count: int, policy: Policy, script: str = COUNT, first_host: int = 0, **more: Any
    ):
        self.agents: list[Agent] = [connect(first_host + index) for index in range(count)]
        self.names = [f"worker-{index}" for index in range(count)]
        command = [sys.executable, "task.py", "1000"]
        self.members: list[Member] = committed(
            self.agents, "job", Bundle(script), command=command, policy=policy, grace_s=1.0, **more
        )

    def directory(self, slot: int) -> Path:
        return self.agents[slot].root / "jobs" / "job" / self.names[slot]

    def log(self, slot: int, attempt: int = 1) -> str:
        path = self.directory(slot) / f"attempt-{attempt}" / "log"
        return path.read_text() if path.exists() else ""

    def wait_for_step(self, step: int, slot: int = 0, attempt: int = 1) -> None:
        wait_for(f"step {step}", lambda: f"step {step}\n" in self.log(slot, attempt))

    def kill(self, slot: int) -> None:
        """Kill the task of a slot."""
        os.kill(json.loads((self.directory(slot) / "processes").read_text())["task"][0], signal.SIGKILL)

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


def test_after_a_killed_task_all_begin_again_with_fresh_ports_at_the_newest_checkpoint(connect: Connect) -> None:
    job = Job(connect, 2, AGAIN)
    job.wait_for_step(20)
    job.kill(1)
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


def test_a_job_ends_after_the_idle_timeout_only_if_no_task_is_active(connect: Connect) -> None:
    outcomes = {"wait": Outcome.FAILED, "write": Outcome.SUCCEEDED, "compute": Outcome.SUCCEEDED}
    policy = Policy(restarts=3, idle_timeout_s=8.0)
    jobs = [
        Job(connect, 2, policy, WAITING, first_host=2 * index, env={"MODE": mode})
        for index, mode in enumerate(outcomes)
    ]
    for job, outcome in zip(jobs, outcomes.values(), strict=True):
        result = job.result()
        assert (result.outcome, result.attempt) == (outcome, 1)
        assert ("--idle-timeout" in result.reason) is (outcome is Outcome.FAILED)


def test_stop_between_two_attempts_ends_the_job(connect: Connect) -> None:
    stubborn = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + COUNT
    job = Job(connect, 2, Policy(restarts=3, backoff_s=30.0), stubborn)
    job.wait_for_step(3)
    job.kill(1)

    def ended(story: Story) -> bool:
        return any(isinstance(record, AttemptEnded) for record in story.records)

    follow(connect(0), Follow("job", "worker-0", logs=False), until=ended)
    assert connect(0).stop("job", "worker-0") == Stopped(killed=False, running=True)
    result = job.result(0)
    assert result.outcome is Outcome.CANCELLED
    assert not (job.directory(0) / "attempt-2").exists()
