"""Test faults on separate hosts with real TensorFlow."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import signal
import subprocess
import sys
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


@pytest.fixture(scope="module")
def three_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultFleet]:
    yield from _fleet(tmp_path_factory.mktemp("three"), 3)


@pytest.fixture
def two(two_hosts: FaultFleet) -> Iterator[FaultFleet]:
    yield two_hosts
    two_hosts.clear()


@pytest.fixture
def three(three_hosts: FaultFleet) -> Iterator[FaultFleet]:
    yield three_hosts
    three_hosts.clear()


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


def test_a_taken_port_then_a_chief_killed_while_it_saves_then_an_exception(two: FaultFleet) -> None:
    """TensorFlow binds its port seconds after the start, and no process can reserve it until then.

    The next attempt uses other ports. The custom loop continues at the epoch and step that its checkpoint manager
    saved, until an exception in the last attempt ends the job.
    """
    takes = (
        "import socket, sys\n"
        "while True:\n"
        "    try: s = socket.create_server(('', 2222))\n"
        "    except OSError: continue\n"
        "    print('taken', flush=True); sys.stdin.read(); break\n"
    )
    options = ("--restarts", "2", "--checkpoint-dir", "training")
    play = two.train(LOOP, *QUICK, *options, arguments=["4", "pause=0.1", "big", "directory=training", "raise=32"])
    play.wait_for_record(1, "task_state", phase="waiting")
    intruder = subprocess.Popen(
        [*two.hosts[1].where.prefix, sys.executable, "-c", takes], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        play.wait_for_log(0, "say saving 15", 2)
    finally:
        intruder.kill()
        intruder.communicate()
    play.send(0, "task")
    report = over(play, 100)
    assert report.verdicts == [(1, "port-in-use", "worker-1"), (2, "killed", "worker-0")]
    assert begins(report, 2) == ["0 0", "0 0"]
    assert continues(report, 3, 2) >= 10
    assert report.verdict == ("script-exception", "worker-1")
    final = [event for event in report.of("job_diagnosed") if event["final"]][-1]
    assert "ValueError: no such thing" in final["message"]
    assert final["traceback"].startswith("task.py:")
    assert not [
        path for number in (0, 1) for path in (play.directory(number) / "src" / "training").glob("workertemp*")
    ]


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


def test_a_pair_loses_its_connections_and_then_the_chiefs_host_is_gone(three: FaultFleet) -> None:
    """Two workers lose only each other, which hangs TensorFlow for 15 minutes; then fewer workers continue."""
    watch = ("--hang-timeout", "8", "--on-hang", "restart", "--restarts", "2", "--min-workers", "2", "--backoff", "1")
    play = three.train(LOOP, *QUICK, *watch, arguments=["6", "pause=0.1"])
    play.wait_for_log(0, "say saved 10")
    three.cut(1, 2)
    play.wait_for_record(0, "attempt_ended")
    three.heal()
    play.wait_for_steps(0, 12, 2)
    play.saved_everywhere(lists_second_checkpoint, 1, 2)
    three.kill_host(0)
    play.wait_for_record(1, "task_state", 3, phase="running")
    three.heal()
    report = over(play, cut=(0,))
    assert [verdict[:2] for verdict in report.verdicts] == [(1, "hang"), (2, "peer-unreachable")]
    assert report.verdicts[1][2] == "worker-0"
    continues(report, 2, 3)
    continues(report, 3, 2, at_least=10)
    assert not report.values("worker-0", 3, "begin")


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
