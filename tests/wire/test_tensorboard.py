"""`fleet tensorboard` with the real TensorBoard, without TensorFlow."""

from __future__ import annotations

import json
import signal
import urllib.request
import zipfile
from pathlib import Path
from typing import Any

import psutil
import pytest

from fleet.results.runs import write_scalars
from tests.program import Program, wait_for

pytestmark = pytest.mark.wire

WRITES = """
import os, shutil, time
print("Epoch 1/1\\n1/1 - loss: 0.5", flush=True)
os.mkdir(os.path.join(os.environ["FLEET_LOG_DIR"], "train"))
name = f"events.out.tfevents.{int(time.time()) + 1}.host.1.0.v2"
shutil.copy("prepared", os.path.join(os.environ["FLEET_LOG_DIR"], "train", name))
if os.environ["FLEET_RANK"] == "0":
    while not os.path.exists("more"):
        time.sleep(0.1)
    os.mkdir("logs")
    shutil.copy("prepared", os.path.join("logs", name))
    time.sleep(600)
"""


def tags(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url + "data/plugin/scalars/tags", timeout=60) as answer:
        return {run: set(values) for run, values in json.load(answer).items()}


def check_report_of_running_job(two: Program) -> None:
    (two.directory / "other.html").write_text("mine")
    assert "is not a report" in two.run("report", "--to", "other.html", code=2).err
    two.run("report", "--to", "live.html")
    page = (two.directory / "live.html").read_text()
    assert ">running</span>" in page
    assert "stored no telemetry" not in page
    assert "MODE" in page
    assert "sesame" not in page
    with zipfile.ZipFile(two.directory / "live.capsule.zip") as capsule:
        texts = {name: capsule.read(name) for name in capsule.namelist()}
    assert texts["source/task.py"].decode() == WRITES
    assert b"typer==" in texts["packages/worker-0.txt"]
    assert not any(b"sesame" in text for text in texts.values())


def check_capsule(two: Program) -> None:
    assert "--env MODE: the variable is not set" in two.run("train", "--from-capsule", "live.capsule.zip", code=2).err
    two.env["MODE"] = "other"
    (two.directory / "task.py").unlink()
    again = two.run("train", "--from-capsule", "live.capsule.zip", "--dry-run")
    assert "task.py" in again.out.decode()
    assert "the capsule copies variables of this computer: MODE" in again.err
    assert "the capsule runs: task.py" in again.err
    refused = two.run("train", "--from-capsule", "live.capsule.zip", code=2).err
    assert "the capsule copies variables of this computer, and confirmation requires a terminal: MODE" in refused
    assert "next:  fleet train --env MODE --from-capsule live.capsule.zip" in refused
    named = two.run("train", "--from-capsule", "live.capsule.zip", "--env", "MODE=mine", "--dry-run")
    assert "the capsule copies" not in named.err
    assert "mine" in named.text


def check_report_of_pulled_results(two: Program) -> None:
    two.run("report", "--dir", "pulled", "--to", "live.html")  # replaces a page
    page = (two.directory / "live.html").read_text()
    assert ">cancelled</span>" in page
    for part in ("loss over time", "ended by signal", "&#34;index&#34;: 0", "No faults"):
        assert part in page


def test_curves_and_telemetry_of_all_workers_while_the_job_runs_and_after_a_pull(
    two: Program, tmp_path: Path
) -> None:
    (tmp_path / "tensorflow.py").write_text("raise ImportError\n")  # TensorBoard starts faster without it
    two.env |= {"PYTHONPATH": str(tmp_path), "TMPDIR": str(tmp_path)}
    write_scalars(two.directory / "prepared", [(1.0, 1, {"epoch_loss": 0.5})])
    two.script("task.py", WRITES)
    two.run("train", "-d", "--env", "MODE=sesame", "task.py")
    assert "does not hold results" in two.run("tensorboard", "--dir", "nowhere", code=2).err
    assert "has no job 'nope'" in two.run("tensorboard", "nope", code=102).err

    shown = two.start("tensorboard", "--no-open", "-o", "json")
    assert shown.stdout is not None
    started = next(event for event in map(json.loads, shown.stdout) if event["event"] == "tensorboard_started")
    assert started["directory"] is None
    wait_for("the curves of both workers", lambda: len(tags(started["url"])) >= 2)
    assert tags(started["url"])["worker-1/train"] == {"epoch_loss"}
    for source in (two.state / "local").glob(f"*/fleet/jobs/{started['job']}/worker-0/src"):
        (source / "more").touch()
    wait_for("a new file", lambda: "worker-0/logs" in tags(started["url"]))
    shown.send_signal(signal.SIGINT)
    shown.communicate()
    assert shown.returncode == 0
    assert not list(tmp_path.glob("fleet-tensorboard-*"))

    check_report_of_running_job(two)
    two.run("stop", "--grace", "0")
    two.run("pull", "--to", "pulled")
    check_capsule(two)
    check_report_of_pulled_results(two)
    local = two.start("tensorboard", "--dir", "pulled", "--no-open", "-o", "json")
    assert local.stdout is not None
    started = next(event for event in map(json.loads, local.stdout) if event["event"] == "tensorboard_started")
    assert started["directory"] == str(two.directory / "pulled")
    wait_for("all runs", lambda: len(tags(started["url"])) >= 5)
    shown = tags(started["url"])["worker-1/fleet"]
    assert "fleet/metrics/loss" in shown
    local.send_signal(signal.SIGHUP)  # the terminal was closed
    local.communicate()
    assert local.returncode == 0
    check_end_with_a_killed_command(two)


def check_end_with_a_killed_command(two: Program) -> None:
    killed = two.start("tensorboard", "--dir", "pulled", "--no-open", "-o", "json")
    assert killed.stdout is not None
    assert any(json.loads(line)["event"] == "tensorboard_started" for line in killed.stdout)
    left = psutil.Process(killed.pid).children(recursive=True)
    assert len(left) >= 2
    killed.kill()
    killed.communicate()
    assert psutil.wait_procs(left, 60)[1] == []
