"""A local fleet with lost or damaged records: no process keeps running, and no report is wrong."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.program import Program, wait_for

pytestmark = pytest.mark.wire

SLEEP = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:40])


def scramble(path: Path) -> None:
    path.write_bytes(os.urandom(300))


def nest(path: Path) -> None:
    path.write_bytes(b"[" * 100_000)


def lose(directory: Path) -> None:
    """Delete the directory of a host at once, although processes write files into it."""
    lost = directory.parent.with_name("lost")
    directory.rename(lost)
    shutil.rmtree(lost, ignore_errors=True)


@pytest.fixture
def running(program: Program, request: pytest.FixtureRequest) -> Program:
    """Start a job that does not end by itself on two hosts, or on `param` hosts."""
    program.run("up", "--workers", str(getattr(request, "param", 2)))
    program.script("task.py", SLEEP)
    program.run("train", "-d", "task.py")
    return program


@pytest.mark.parametrize("running", [4], indirect=True)
def test_down_ends_hosts_without_a_readable_record(running: Program) -> None:
    local = running.state / "local"
    damages: list[Callable[[Path], None]] = [Path.unlink, truncate, scramble, nest]
    for index, damage in enumerate(damages):
        damage(local / f"default-worker-{index}.json")
    lose(local / "default-worker-1")
    ran = running.run("down", "--yes")
    assert "4 hosts deleted, 0 left" in ran.err
    assert not running.processes()
    assert not list(local.iterdir())


def test_gc_finds_hosts_without_any_record(running: Program) -> None:
    local = running.state / "local"
    shutil.rmtree(running.state / "fleets" / "default")
    for path in local.glob("*.json"):
        path.unlink()
    lose(local / "default-worker-1")
    running.run("gc", "--yes")
    assert not running.processes()
    assert not list(local.iterdir())


def test_up_keeps_a_running_host_whose_record_was_lost(running: Program) -> None:
    log = running.log_of("worker-0")
    wait_for("the first line", lambda: log.read_bytes() == b"up\n")
    tasks = {process.pid for process in running.tasks()}
    (running.state / "local" / "default-worker-0.json").unlink()
    running.run("up", "--workers", "2")
    assert {process.pid for process in running.tasks()} == tasks
    assert running.run("logs", "--worker", "0", code=101).out == b"up\n"
    running.run("stop", "--grace", "1")
