"""Ctrl-C and SIGKILL at any moment: a repeat of the command repairs or explains, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.program import Program

pytestmark = pytest.mark.wire

SLEEP = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"
MOMENTS = (0.05, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8)


@pytest.fixture
def running(program: Program) -> Program:
    program.run("up", "--workers", "2")
    program.script("task.py", SLEEP)
    return program


def test_a_launch_killed_at_any_moment_is_explained_or_repaired(running: Program) -> None:
    for moment in MOMENTS:
        client = running.start("train", "task.py")
        time.sleep(moment)
        client.kill()
        client.communicate()
        running.run("status")
        again = running.run("train", "-d", "task.py", code=None)
        assert again.code in (0, 14), again.err
        if again.code == 14:
            assert "fleet stop" in again.err
        running.run("stop")
        assert not running.tasks()
    running.run("train", "-d", "task.py")
    assert len(running.tasks()) == 2


def test_ctrl_c_of_a_launch_leaves_all_or_nothing(running: Program) -> None:
    for moment in MOMENTS:
        client = running.start("train", "task.py")
        time.sleep(moment)
        client.send_signal(signal.SIGINT)
        ran = running.finish(client, code=None, timeout=30)
        if client.returncode == -signal.SIGINT:  # before the first line of ours was read
            assert not running.tasks()
            continue
        assert ran.code in (101, 103), ran.err
        assert len(running.tasks()) in ((0,) if ran.code == 103 else (0, 2))
        if ran.code == 101:
            running.run("stop")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_down_interrupted_at_any_moment_is_finished_by_a_repeat(program: Program, number: signal.Signals) -> None:
    program.script("task.py", SLEEP)
    for moment in (0.1, 0.25, 0.35, 0.45):
        program.run("up", "--workers", "3")
        program.run("train", "-d", "task.py")
        client = program.start("down", "--yes")
        time.sleep(moment)
        client.send_signal(number)
        ran = program.finish(client, code=None, timeout=30)
        assert ran.code in (0, 103, -number), ran.err
        program.run("down", "--yes")
        assert not program.processes()
        assert not list((program.state / "local").glob("*"))
        program.run("status", code=102)


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


def test_a_full_disk_is_refused_before_anything_is_sent(small_disk: Path, tmp_path: Path) -> None:
    program = Program(state=small_disk / "state", directory=tmp_path / "work")
    program.directory.mkdir()
    try:
        program.run("up", "--workers", "2")
        program.script("task.py", "print('ran')\n")
        with (program.directory / "big.bin").open("wb") as file:
            file.write(os.urandom(1024) * 256 * 1024)
        ran = program.run("train", "task.py", code=14)
        assert "no space" in ran.err
        assert "worker-" in ran.err
        (program.directory / "big.bin").unlink()
        assert program.run("train", "task.py").text.count("ran") == 2
    finally:
        program.close()
