"""Jobs that continue after a failure, through the installed program: real sshd, the real agent, stand-in scripts."""

from __future__ import annotations

import os
import signal

import psutil
import pytest

from tests.program import Program, wait_for

pytestmark = pytest.mark.wire

# Counts to a number; the chief stores the count in the checkpoint directory.
COUNT = """
import json, os, sys, time
path = os.path.join(os.environ["FLEET_CHECKPOINT_DIR"], "count.json")
count = json.load(open(path)) if os.path.exists(path) else 0
print("begin", count, os.environ["FLEET_ATTEMPT"], flush=True)
while count < int(sys.argv[1]):
    time.sleep(0.1)
    count += 1
    if os.environ["FLEET_RANK"] == "0" and count % 5 == 0:
        with open(path + ".tmp", "w") as file:
            json.dump(count, file)
        os.replace(path + ".tmp", path)
    print("step", count, flush=True)
"""


def kill_host(program: Program, name: str) -> None:
    """End sshd, agents, and tasks of a host at once."""
    for process in program.processes():
        try:
            words = [*process.cmdline(), *(f"{key}={value}" for key, value in process.environ().items())]
        except psutil.Error:
            continue
        if any(f"{program.state}/local/default-{name}" in word for word in words) or any(
            word.startswith("FLEET_INSTANCE=") and f"default-{name}" in word for word in words
        ):
            process.kill()


def log_so_far(program: Program, name: str) -> bytes:
    logs = list((program.state / "local").glob(f"*-{name}/fleet/jobs/*/{name}/attempt-1/log"))
    return logs[0].read_bytes() if logs else b""


def begins(program: Program, name: str) -> list[list[str]]:
    log = program.run("logs", "--worker", name).text
    return [line.split()[1:] for line in log.splitlines() if line.startswith("begin")]


def test_a_killed_worker_starts_a_second_attempt_and_both_logs_are_kept(program: Program) -> None:
    program.run("up", "--workers", "2")
    program.script("task.py", COUNT)
    client = program.start("train", "task.py", "--restarts", "2", "--backoff", "0.1", "-o", "json", "--", "40")
    wait_for("eleven steps", lambda: b"step 11\n" in log_so_far(program, "worker-0"))
    task = next(process for process in program.tasks() if process.environ()["FLEET_RANK"] == "1")
    os.kill(task.pid, signal.SIGKILL)
    ran = program.finish(client, code=0, timeout=60)
    kinds = [event["event"] for event in ran.events]
    assert kinds.count("attempt_ended") == 1
    assert kinds[-2:] == ["job_result", "results_found"]
    assert kinds.count("job_result") == 1
    assert ran.events[-2]["attempt"] == 2
    for name in ("worker-0", "worker-1"):
        first, second = begins(program, name)
        assert first == ["0", "1"]
        assert second[1] == "2"
        assert int(second[0]) >= 5
    assert begins(program, "worker-0")[1] == begins(program, "worker-1")[1]


def test_up_returns_a_lost_host_to_its_job(program: Program) -> None:
    program.run("up", "--workers", "3")
    program.script("task.py", COUNT)
    client = program.start("train", "task.py", "--restarts", "1", "--link-timeout", "2", "--", "80")
    wait_for("eleven steps", lambda: b"step 11\n" in log_so_far(program, "worker-0"))
    kill_host(program, "worker-1")
    wait_for("the loss", lambda: "waiting to start again" in program.run("status").text)
    ran = program.run("up")
    assert "worker-1 joined job" in ran.text + ran.err
    program.finish(client, code=0, timeout=60)
    second = [begins(program, name)[-1] for name in ("worker-0", "worker-1", "worker-2")]
    assert len({tuple(line) for line in second}) == 1
    assert second[0][1] == "2"
    assert int(second[0][0]) >= 5
