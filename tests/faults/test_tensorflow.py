"""Test faults on separate hosts with real TensorFlow; `./scripts/soak tensorflow` plays more."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.hosts import ClientReport, FaultFleet, Play, fault_fleet
from tests.faults.namespaces import obstacle
from tests.faults.scripts import FIT, LOOP
from tests.program import THREADS, wait_for

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed here"),
]

DEADLINE_S = 200.0
# TF_USE_LEGACY_KERAS: as `fleet` sets it for scripts with Keras. Keras 3 is not imported.
TASK = ("-e", "CUDA_VISIBLE_DEVICES=-1", "-e", "TF_USE_LEGACY_KERAS=1", *THREADS)
QUICK = ("--link-timeout", "4", "--backoff", "0.1", "--host-timeout", "3", *TASK)
LONG = "1000"


def _fleet(directory: Path, count: int) -> Iterator[FaultFleet]:
    why = obstacle()
    if why:
        pytest.skip(why)
    with fault_fleet(directory, count) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def two_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultFleet]:
    yield from _fleet(tmp_path_factory.mktemp("two"), 2)


@pytest.fixture
def two(two_hosts: FaultFleet) -> Iterator[FaultFleet]:
    yield two_hosts
    two_hosts.clear()


def begins(report: ClientReport, attempt: int) -> list[str]:
    """Return the values that each task of an attempt printed when it began."""
    members = report.of("job_started")[0]["members"]
    return [words for member in members for words in report.values(member["slot"], attempt, "begin")]


def numbers(report: ClientReport, attempt: int, word: str) -> list[int]:
    members = report.of("job_started")[0]["members"]
    return [int(words) for member in members for words in report.values(member["slot"], attempt, word)]


def lists_second_checkpoint(path: Path) -> bool:
    return path.name == "manifest" and re.search(r"\bckpt-([2-9]|\d\d)\.index", path.read_text()) is not None


def over(play: Play, code: int = 0, *, cut: tuple[int, ...] = ()) -> ClientReport:
    """Wait for the end of a job, check its logs and processes, and return the report of the client."""
    report = play.finish(code, DEADLINE_S)
    play.nothing_is_left()
    play.no_byte_is_lost(report, cut=cut)
    return report


def continues(report: ClientReport, attempt: int, tasks: int, *, at_least: int = 0) -> int:
    """Check that all tasks of an attempt began at the last checkpoint of the attempt before; return the step."""
    begun = begins(report, attempt)
    assert len(begun) == tasks
    assert set(begun) == {begun[0]}, begun
    step, weight = (int(word) for word in begun[0].split())
    assert weight == step
    saved = max(numbers(report, attempt - 1, "saved"), default=0)
    allowed = (saved, *numbers(report, attempt - 1, "saving")[-1:])
    if at_least:
        assert at_least <= step <= allowed[-1]
    else:
        assert step in allowed, (step, allowed)
    return step


def test_the_chief_is_killed_while_keras_writes_one_file_in_place(two: FaultFleet) -> None:
    """`fit` continues from the backup, and the file is complete again."""
    play = two.train(FIT, *QUICK, "--restarts", "2", arguments=["4"])
    play.wait_for_log(0, "say saving 3")
    play.send(0, "task")
    report = over(play)
    assert report.verdicts == [(1, "killed", "worker-0")]
    assert begins(report, 1) == ["0", "0"]
    assert begins(report, 2) in (["2", "2"], ["3", "3"])  # epochs are numbered from 0
    assert numbers(report, 2, "kept") in ([2, 2], [3, 3])


def test_a_waiting_worker_is_reported_with_all_stacks_and_a_stopped_one_is_the_cause(two: FaultFleet) -> None:
    """TensorFlow misses the heartbeats of a stopped process after some seconds, those of a waiting script never."""
    play = two.train(LOOP, *QUICK, "--hang-timeout", "3", arguments=[LONG, "pause=0.1", "hold=12"])
    wait_for("the report", lambda: "no progress for" in play.out.read_text(errors="replace"))
    (play.directory(1) / "logs" / "go").touch()
    play.wait_for_steps(0, 20, 1)
    play.send(1, "task", signal.SIGSTOP)
    report = over(play, 100)
    assert report.verdict[1] == "worker-1", report.of("job_diagnosed")
    assert report.verdict[0] in ("hang", "peer-unreachable"), report.of("job_diagnosed")
    reports = {event["task"]: event for event in reversed(report.of("hang_inspection"))}
    assert set(reports) == {"worker-0", "worker-1"}
    assert all("task.py" in event["stack"] for event in reports.values())
    notes = [event["text"] for event in report.of("note") if "no progress" in event["text"]]
    assert "worker-1" in notes[0]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[FaultFleet]:
    """Yield two hosts, with the directory of the first on a separate file system."""
    root = tmp_path / "fleet" / "host-0" / "fleet"
    root.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=160m", "tmpfs", str(root)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"tmpfs cannot be mounted here: {done.stderr.strip()}")
    try:
        yield from _fleet(tmp_path / "fleet", 2)
    finally:
        subprocess.run(["umount", "-l", str(root)], check=True)


def test_a_disk_that_is_full_under_the_chiefs_checkpoints(small_disk: FaultFleet) -> None:
    play = small_disk.train(LOOP, *QUICK, "--checkpoint-bandwidth", "0", arguments=[LONG, "pause=0.1", "big"])
    play.wait_for_log(0, "say saved 5")
    filler = small_disk.hosts[0].root / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:  # the checkpoints may have filled it
        while True:
            file.write(bytes(1 << 16))
    report = play.finish(100, DEADLINE_S)
    assert report.verdict == ("disk-full", "worker-0"), report.of("job_diagnosed")
    play.nothing_is_left()
    play.no_byte_is_lost(report, cut=(0,))
