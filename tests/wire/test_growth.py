"""`fleet train --max-workers`: a running job takes in the hosts that `fleet up --workers` adds."""

from __future__ import annotations

import pytest

from tests.program import Program, find_paths, wait_for

pytestmark = pytest.mark.wire

TASK = """
import json, os, sys, time
config, directory = json.loads(os.environ["TF_CONFIG"]), os.environ["FLEET_CHECKPOINT_DIR"]
workers, index = len(config["cluster"]["worker"]), config["task"]["index"]
state = os.path.join(directory, "checkpoint")
first = int(open(state).read().split("-")[1].split('"')[0]) if os.path.exists(state) else 0
for step in range(first + 1, 1000):
    print(f"step {step} of {workers}", flush=True)
    time.sleep(0.1)
    if step % 20 == 0 and index == 0 and workers < 3:
        for end in ("data-00000-of-00001", "index"):
            open(f"{directory}/ckpt-{step}.{end}", "w").write("x")
        open(state + ".new", "w").write(f'model_checkpoint_path: "ckpt-{step}"\\n')
        os.rename(state + ".new", state)
    if workers == 3 and step >= first + 5:
        sys.exit()
"""


def started_on(program: Program, worker: str) -> bool:
    logs = find_paths(program.state / "local", f"*-{worker}/fleet/jobs/*/{worker}/attempt-1/log")
    return any(b"step 1 of 2" in log.read_bytes() for log in logs)


def test_a_running_job_takes_in_a_new_host_at_its_next_checkpoint(program: Program) -> None:
    program.script("task.py", TASK)
    program.run("up", "--workers", "2")
    for line, says in (
        (("--max-workers", "1"), "less than the 2 that the job begins with"),
        (("--max-workers", "3", "--checkpoint-dir", "gs://bucket/x"), "--checkpoint-dir is a URL"),
        (("--max-workers", "few"), "few"),
    ):
        assert says in program.run("train", "task.py", *line, code=2).err
    client = program.start("train", "task.py", "--max-workers", "3", "-o", "json")
    wait_for("the first step", lambda: started_on(program, "worker-1"), 60)
    grown = program.run("up", "--workers", "4").err
    assert "worker-2 joined job" in grown
    assert "worker-3 does not join the running job" in grown
    ran = program.finish(client)

    [started] = [event for event in ran.events if event["event"] == "job_started"]
    assert (started["max_workers"], len(started["members"])) == (3, 2)
    [ended] = [event for event in ran.events if event["event"] == "attempt_ended"]
    assert (ended["reason_kind"], ended["joining"]) == ("growth", ["worker-2"])
    assert not [event for event in ran.events if event["event"] == "job_diagnosed"]
    [result] = [event for event in ran.events if event["event"] == "job_result"]
    assert (result["outcome"], result["attempt"]) == ("succeeded", 2)
    assert {event["task"] for event in ran.events if event["event"] == "log_chunk"} == {
        "worker-0",
        "worker-1",
        "worker-2",
    }

    shown = program.run("logs", "--no-follow", "--raw").text.splitlines()
    assert {line.partition(" |")[0] for line in shown if " | " in line} == {"worker-0", "worker-1", "worker-2"}
    steps = [line.split(" | ")[1] for line in shown if line.startswith("worker-0 | step")]
    before = [int(line.split()[1]) for line in steps if line.endswith("of 2")]
    after = [int(line.split()[1]) for line in steps if line.endswith("of 3")]
    assert after[0] % 20 == 1  # the step after a checkpoint
    assert after[0] - 1 in before
    assert before[0] == 1
    assert "3 of at most" not in program.run("status").text  # the job has ended
