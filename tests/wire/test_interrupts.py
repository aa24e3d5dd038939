"""Ctrl-C and SIGKILL in any state of a command: a repeat of the command repairs or explains, and nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.program import Program, catches_signals, find_paths, wait_for

pytestmark = pytest.mark.wire

SLEEP = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"
JOB = "fleet/jobs/*/*"
LAUNCH = ("", f"{JOB}/objects", f"{JOB}/src/task.py", f"{JOB}/job.json", f"{JOB}/attempt-1/log")
"""Files that a launch changes on the hosts: none yet, job announced, files complete, job committed, attempt begun."""
DOWN = ("", f"{JOB}/result.json", "host_key", "fleet")
"""Files that `fleet down` changes on the hosts: none yet, job ended, SSH server removed, files removed."""


def start_until(program: Program, pattern: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a command, and return once files of the hosts that match `pattern` came or went, or the command ended.

    It never returns before the command catches signals; without a pattern, it returns as soon as it does.
    """

    def files() -> set[Path]:
        return set(find_paths(program.state / "local", f"*/{pattern}"))

    before = files()
    client = program.start(*arguments)
    while client.poll() is None and not (catches_signals(client) and (not pattern or files() != before)):
        time.sleep(0.002)
    return client


def kill_train(pair: Program, state: str) -> None:
    """Kill a train in a state of its launch; the next train starts a job, or refuses because one runs."""
    pair.script("task.py", SLEEP)
    client = start_until(pair, state, "train", "task.py")
    client.kill()
    client.communicate()
    pair.run("status", code=None)
    again = pair.run("train", "-d", "task.py", code=None)
    assert again.code in (0, 14), again.err
    if again.code == 14:
        assert "fleet stop" in again.err
        pair.run("stop")
        assert not pair.tasks()
        pair.run("train", "-d", "task.py")
    wait_for("both tasks", lambda: len(pair.tasks()) == 2)
    pair.run("stop")
    assert not pair.tasks()


def interrupt_train(pair: Program, state: str) -> None:
    """Press Ctrl-C during a train in a state of its launch."""
    pair.script("task.py", SLEEP)
    client = start_until(pair, state, "train", "task.py")
    client.send_signal(signal.SIGINT)
    ran = pair.finish(client, code=None)
    assert ran.code in (101, 103), ran.err
    if ran.code == 103:
        assert not pair.tasks()
    else:  # one host may start its task before the other
        wait_for("a whole job or none", lambda: len(pair.tasks()) in (0, 2))
        pair.run("stop")


def interrupt_down(program: Program, number: signal.Signals, state: str, workers: int = 1) -> None:
    """Send a signal to a down in one of its states, and repeat it."""
    program.script("task.py", SLEEP)
    program.run("up", "--workers", str(workers))
    program.run("train", "-d", "task.py")
    client = start_until(program, state, "down", "--yes")
    client.send_signal(number)
    ran = program.finish(client, code=None)
    assert ran.code in (0, 103, -number), ran.err
    program.run("down", "--yes")
    assert not program.processes()
    assert not list((program.state / "local").glob("*"))
    program.run("status", code=102)


# Each test has a sample of the states; `./scripts/soak interrupts` has all of them.


def test_a_killed_train_is_explained_or_repaired(pair: Program) -> None:
    kill_train(pair, LAUNCH[3])


@pytest.mark.parametrize("state", [LAUNCH[1], LAUNCH[4]], ids=["announced", "begun"])
def test_ctrl_c_during_train_leaves_a_whole_job_or_none(pair: Program, state: str) -> None:
    interrupt_train(pair, state)


@pytest.mark.parametrize(("number", "state"), [(signal.SIGINT, DOWN[1]), (signal.SIGKILL, DOWN[2])])
def test_an_interrupted_down_is_completed_by_a_repeat(program: Program, number: signal.Signals, state: str) -> None:
    interrupt_down(program, number, state)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    directory = tmp_path / "small"
    directory.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=192m", "tmpfs", str(directory)],
        check=False,
        capture_output=True,
        text=True,
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield directory
    subprocess.run(["umount", "--lazy", str(directory)], check=True)


def test_a_full_disk_is_reported_before_the_upload(small_disk: Path, tmp_path: Path) -> None:
    program = Program(state=small_disk / "state", directory=tmp_path / "work")
    program.directory.mkdir()
    try:
        program.run("up", "--workers", "1")
        program.script("task.py", "print('ran')\n")
        with (program.directory / "big.bin").open("wb") as file:
            file.write(os.urandom(1024) * 256 * 1024)
        ran = program.run("train", "task.py", code=14)
        assert "no space" in ran.err
        assert "worker-" in ran.err
        (program.directory / "big.bin").unlink()
        assert program.run("train", "task.py").text.count("ran") == 1
    finally:
        program.close()
