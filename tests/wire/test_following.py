"""The output of a client when hosts, connections, or the whole fleet are lost: real processes and signals."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.program import Program, find_paths, lines_of, wait_for
from tests.soak.processes import Process, ProcessKind, processes

pytestmark = pytest.mark.wire

# Prints lines until a file exists, and some more after that.
TASK = """
import os, sys, time
number = 0
while not os.path.exists(sys.argv[1]):
    number += 1
    print(f"{os.environ['FLEET_ATTEMPT']} {number}", flush=True)
    time.sleep(0.05)
for number in range(40):
    print(f"last {number}", flush=True)
"""


def processes_of(program: Program, part: ProcessKind, host: str) -> list[Process]:
    return [process for process in processes(program.state) if process.part is part and process.host == host]


def stored(program: Program, worker: str) -> list[str]:
    """Return all lines of a worker's log on its host, from all attempts of the only job."""
    logs = find_paths(program.state / "local", f"*-{worker}/fleet/jobs/*/{worker}/attempt-*/log")
    return [line for log in logs for line in log.read_text().splitlines()]


def runs(program: Program, worker: str, attempt: int) -> bool:
    return any(line.startswith(f"{attempt} ") for line in stored(program, worker))


def test_the_log_of_a_host_that_rejoins_is_complete(program: Program, tmp_path: Path) -> None:
    program.run("up", "--workers", "2")
    program.script("task.py", TASK)
    client = program.start("train", "task.py", "--restarts", "5", "--grace", "1", "--", str(tmp_path / "stop"))
    wait_for("the first attempt", lambda: runs(program, "worker-1", 1), 60)
    for part in (ProcessKind.WATCHDOG, ProcessKind.SUPERVISOR):
        for process in processes_of(program, part, "worker-1"):
            process.send(signal.SIGKILL)
    wait_for("the end of worker-1", lambda: not processes_of(program, ProcessKind.TASK, "worker-1"), 60)
    assert "worker-1 joined job" in program.run("up", "--workers", "2").err
    wait_for("the second attempt", lambda: runs(program, "worker-1", 2), 60)
    (tmp_path / "stop").touch()
    ran = program.finish(client)
    assert "worker-1: connection lost" in ran.err
    assert "worker-1: connected again" in ran.err
    for worker in ("worker-0", "worker-1"):
        assert lines_of(ran, worker) == stored(program, worker)


def test_frozen_connections_at_the_end_are_replaced_or_reported(program: Program, tmp_path: Path) -> None:
    """The connection to worker-0 is frozen, but not its sshd; worker-1 accepts no more connections."""
    program.run("up", "--workers", "3")
    program.script("task.py", TASK)
    client = program.start("train", "task.py", "--", str(tmp_path / "stop"))
    for worker in ("worker-0", "worker-1"):
        wait_for(f"the first line of {worker}", lambda worker=worker: runs(program, worker, 1), 60)  # type: ignore[misc]
    frozen = processes_of(program, ProcessKind.CONVERSATION, "worker-0")
    for kind in (ProcessKind.SESSION, ProcessKind.LISTENER):
        frozen += processes_of(program, kind, "worker-1")
    for process in frozen:
        assert process.send(signal.SIGSTOP)
    try:
        (tmp_path / "stop").touch()
        ran = program.finish(client)
    finally:
        for process in frozen:
            process.send(signal.SIGCONT)
    assert lines_of(ran, "worker-0") == stored(program, "worker-0")
    assert lines_of(ran, "worker-2") == stored(program, "worker-2")
    shown = lines_of(ran, "worker-1")
    assert shown == stored(program, "worker-1")[: len(shown)]
    (warning,) = [line for line in ran.err.splitlines() if "incomplete" in line]
    assert "the log of worker-1 is incomplete" in warning
    command = warning.partition("`fleet ")[2].partition("`")[0].split()
    assert program.run(*command).text.splitlines() == stored(program, "worker-1")


def test_a_client_ends_when_its_fleet_is_deleted(program: Program, tmp_path: Path) -> None:
    program.run("up", "--workers", "1")
    program.script("task.py", TASK)
    client = program.start("train", "task.py", "--", str(tmp_path / "stop"))
    wait_for("the first line", lambda: runs(program, "worker-0", 1), 60)
    program.run("down", "--yes")
    ran = program.finish(client, code=102)
    assert "fleet 'default' was deleted while job" in ran.err
