"""Test faults on separate hosts with real TensorFlow; `./scripts/soak tensorflow` plays more."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

from tests.faults.hosts import ClientReport, FaultFleet, fault_fleet
from tests.faults.scripts import FIT, HANDLED
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


@pytest.fixture(scope="module")
def two_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultFleet]:
    with fault_fleet(tmp_path_factory.mktemp("two"), 2) as fleet:
        yield fleet


@pytest.fixture
def two(two_hosts: FaultFleet) -> Iterator[FaultFleet]:
    yield two_hosts
    two_hosts.clear()


def printed_values(report: ClientReport, attempt: int, word: str) -> list[str]:
    """Return the values that all tasks of an attempt printed after `word`."""
    members = report.of("job_started")[0]["members"]
    return [value for member in members for value in report.values(member["slot"], attempt, word)]


def test_the_chief_is_killed_while_keras_writes_one_file_in_place(two: FaultFleet) -> None:
    """`fit` continues from the backup, and the file is complete again."""
    play = two.train(FIT, *QUICK, "--restarts", "2", arguments=["4"])
    play.saved_everywhere(lambda path: path.stat().st_size > 30_000_000, 0, 1)
    (play.directory(0) / "logs" / "go").touch()
    play.wait_for_log(0, "say saving 3")
    play.send(0, "task")
    report = play.finish(0, DEADLINE_S)
    play.nothing_is_left()
    play.no_byte_is_lost(report)
    assert report.verdicts == [(1, "killed", "worker-0")]
    assert printed_values(report, 1, "begin") == ["0", "0"]
    copied = (["1", "1"], ["2", "2"], ["3", "3"])  # which epoch was copied last depends on the speed of the hosts
    assert printed_values(report, 2, "begin") in copied  # epochs are numbered from 0
    assert printed_values(report, 2, "kept") in copied


def test_a_waiting_worker_is_reported_and_a_preemption_handler_saves_when_the_job_is_stopped(two: FaultFleet) -> None:
    """The report has the stacks of all tasks; `fleet stop` gives TensorFlow's handler time to save and to exit."""
    play = two.train(HANDLED, *QUICK, "--hang-timeout", "3", "--grace", "60")
    wait_for("the report", lambda: "no progress for" in play.out.read_text(errors="replace"))
    (play.directory(1) / "logs" / "go").touch()
    play.wait_for_steps(0, 20, 1)
    two.run("stop")
    report = play.finish(103, DEADLINE_S)
    play.nothing_is_left()
    play.no_byte_is_lost(report)
    reports = {event["task"]: event for event in reversed(report.of("hang_inspection"))}
    assert set(reports) == {"worker-0", "worker-1"}
    assert all("task.py" in event["stack"] for event in reports.values())
    notes = [event["text"] for event in report.of("note") if "no progress" in event["text"]]
    assert "worker-1" in notes[0]
    ended = {event["task"]: event["exit"] for event in report.of("task_state") if event["phase"] == "exited"}
    assert ended == {f"worker-{index}": {"code": 42, "signal": None} for index in range(2)}
    assert list(play.directory(0).glob("checkpoints/own/ckpt-1.index"))
