"""Jobs of several attempts as the client sees them: real sshd, the real agent, scripts without TensorFlow."""

from __future__ import annotations

import contextlib
import os
import signal

import psutil
import pytest

from tests.program import CommandResult, Program, find_paths, lines_of, wait_for
from tests.wire.scripts import COUNT

pytestmark = pytest.mark.wire

FAIL_ONCE = """
import os
print("attempt {FLEET_ATTEMPT} of {FLEET_TASK_INDEX}".format_map(os.environ), flush=True)
if os.environ["FLEET_ATTEMPT"] == "1" and os.environ["FLEET_RANK"] == "1":
    raise ValueError("no such thing")
if os.environ["FLEET_ATTEMPT"] == "1":
    import time
    time.sleep(60)
"""

# Prints its epochs; the chief saves after each one, and no attempt reads the checkpoints.
START_AGAIN = """
import os, pathlib, signal, time
directory = pathlib.Path(os.environ["FLEET_CHECKPOINT_DIR"])
hosts, job = directory.parents[5], directory.parents[1].name
for epoch in range(1, 9):
    print(f"Epoch {epoch}/8", flush=True)
    if os.environ["FLEET_ATTEMPT"] == "2":
        time.sleep(1)
        break
    if os.environ["FLEET_RANK"] == "0" and epoch > 1:
        (directory / f"epoch-{epoch - 1}.bin").write_text("weights")
    time.sleep(0.5)
    if os.environ["FLEET_RANK"] == "1" and epoch == 6:
        while len(list(hosts.glob(f"*/fleet/jobs/{job}/*/replica/[0-9]*/manifest"))) < 2:
            time.sleep(0.05)  # until both hosts have a checkpoint
        os.kill(os.getpid(), signal.SIGKILL)
else:
    time.sleep(600)
"""

# The second attempt runs until it is stopped.
GO_ON = """
import os, time
print("attempt {FLEET_ATTEMPT} as {FLEET_TASK_INDEX}".format_map(os.environ), flush=True)
time.sleep(300)
"""


def end_host(program: Program, worker: str) -> None:
    """Kill all processes of a host."""
    victims = []
    for process in program.processes():
        with contextlib.suppress(psutil.Error):
            words = " ".join(process.cmdline()) + " " + process.environ().get("FLEET_TASK_DIRECTORY", "")
            if f"default-{worker}/" in words:
                victims.append(process)
    assert victims
    for process in victims:
        with contextlib.suppress(psutil.Error):
            process.suspend()
    for process in victims:
        with contextlib.suppress(psutil.Error):
            process.kill()


def test_a_failed_attempt_is_reported_with_its_cause_and_all_logs_are_kept(pair: Program) -> None:
    pair.script("task.py", FAIL_ONCE)
    settings = pair.script("fleet.toml", "[train]\nrestarts = 2\n")
    ran = pair.run("train", "task.py", "-o", "json")
    settings.unlink()
    (failed,) = [event for event in ran.events if event["event"] == "attempt_ended"]
    assert (failed["attempt"], failed["attempts"], failed["first_failed_task"]) == (1, 3, "worker-1")
    (cause,) = [event for event in ran.events if event["event"] == "job_diagnosed"]
    assert (cause["attempt"], cause["final"], cause["kind"], cause["task"]) == (
        1,
        False,
        "script-exception",
        "worker-1",
    )
    (result,) = [event for event in ran.events if event["event"] == "job_result"]
    assert (result["outcome"], result["attempt"]) == ("succeeded", 2)
    notes = [str(event["text"]) for event in ran.events if event["event"] == "note"]
    (note,) = [text for text in notes if "checkpoint" in text]
    assert note.startswith("attempt 2 starts without a checkpoint of this job: none was saved")
    logs = pair.run("logs")
    assert [line for line in lines_of(logs, "worker-1") if line.startswith("attempt")] == [
        "attempt 1 of 1", "attempt 2 of 1",
    ]  # fmt: skip
    assert "attempt 1 failed: worker-1 exited with code 1; attempt 2 starts" in logs.err
    assert "attempt 1: worker-1 (" in logs.err
    assert pair.run("logs", "-n", "9", "--worker", "1").out == b"attempt 2 of 1\n"
    (status,) = [event for event in pair.run("status", "-o", "json").events if event["event"] == "fleet_status"]
    assert (status["job"]["attempt"], status["job"]["attempts"], status["job"]["verdict"]) == (2, 3, None)


def test_status_and_logs_show_the_cause_of_a_job_without_a_client(pair: Program) -> None:
    pair.script("task.py", FAIL_ONCE)
    pair.run("train", "task.py", "--detach", code=None)

    def verdict() -> object:
        (status,) = [event for event in pair.run("status", "-o", "json").events if event["event"] == "fleet_status"]
        return status["job"]["verdict"]

    assert wait_for("the first cause", verdict)["kind"] == "script-exception"  # type: ignore[index]
    assert "raised ValueError: no such thing at task.py:5" in pair.run("status").text
    logs = pair.run("logs", "-n", "1", "--worker", "0", code=100)
    assert "raised ValueError: no such thing at task.py:5" in logs.err
    assert "has ended: task.py on worker-[0-1]" in logs.err


def test_a_spare_takes_over_and_the_job_is_readable_without_the_lost_host(program: Program) -> None:
    program.run("up", "--workers", "3")
    program.script("task.py", GO_ON)
    options = ("--spares", "1", "--restarts", "2", "--link-timeout", "2", "--host-timeout", "1", "--grace", "1")
    program.run("train", "task.py", "--detach", *options)
    end_host(program, "worker-1")
    logs_of_spare = "local/*-worker-2/fleet/jobs/*/*/attempt-2/log"
    wait_for("the second attempt", lambda: any(log.read_text() for log in find_paths(program.state, logs_of_spare)))
    logs = program.run("logs", code=101)
    assert lines_of(logs, "worker-1") == ["attempt 2 as 1"]
    assert "worker-1" in logs.err
    assert "its log is left out" in logs.err
    status = program.run("status").text
    assert "worker-1 on worker-2  running" in status
    assert "attempt 2 of 3" in status
    assert "worker-1" in program.run("stop", "--grace", "1", code=13).err
    assert not program.tasks()


def test_each_later_attempt_reports_the_checkpoint_that_it_starts_from(pair: Program) -> None:
    pair.script("task.py", START_AGAIN)
    ran = pair.run("train", "task.py", "--restarts", "1", "-o", "json")
    notes = [event for event in ran.events if event["event"] == "note"]
    (states,) = {
        event["checkpoint"]
        for event in ran.events
        if event["event"] == "task_state" and event["attempt"] == 2 and event["phase"] == "running"
    }
    assert str(states).startswith("epoch-")
    assert [note["text"] for note in notes if "starts" in str(note["text"])] == [
        f"attempt 2 starts from checkpoint {states}"
    ]
    (warning,) = [note for note in notes if "began" in str(note["text"])]
    assert warning["level"] == "warning"
    assert str(warning["text"]).startswith("attempt 2 began at epoch 1 although attempt 1 had reached epoch")
    assert f"checkpoint {states} exists" in str(warning["text"])
    assert f"attempt 2 starts from checkpoint {states}" in pair.run("logs").err


def begins(ran: CommandResult, name: str) -> list[list[str]]:
    return [line.split()[1:] for line in lines_of(ran, name) if line.startswith("begin")]


def newest_log(program: Program) -> bytes:
    """Return what worker-0 has written in the first attempt of the newest job."""
    logs = find_paths(program.state / "local", "*-worker-0/fleet/jobs/*/worker-0/attempt-1/log")
    return logs[-1].read_bytes() if logs else b""


def test_a_killed_worker_starts_a_second_attempt_and_both_logs_are_kept(pair: Program) -> None:
    pair.script("task.py", COUNT)
    client = pair.start("train", "task.py", "--restarts", "2", "--backoff", "0.1", "-o", "json", "--", "40")
    wait_for("eleven steps", lambda: b"step 11\n" in newest_log(pair))
    task = next(process for process in pair.tasks() if process.environ()["FLEET_RANK"] == "1")
    os.kill(task.pid, signal.SIGKILL)
    ran = pair.finish(client, code=0)
    kinds = [event["event"] for event in ran.events]
    assert kinds.count("attempt_ended") == 1
    assert kinds[-2:] == ["job_result", "results_found"]
    assert kinds.count("job_result") == 1
    assert ran.events[-2]["attempt"] == 2
    logs = pair.run("logs")
    for name in ("worker-0", "worker-1"):
        first, second = begins(logs, name)
        assert first == ["0", "1"]
        assert second[1] == "2"
        assert int(second[0]) >= 5
    assert begins(logs, "worker-0")[1] == begins(logs, "worker-1")[1]
