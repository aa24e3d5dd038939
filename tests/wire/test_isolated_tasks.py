"""Tasks that load TensorFlow, or a file of that name, and open their port of TF_CONFIG or not."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.program import Program

pytestmark = pytest.mark.wire

MEASURED = 5  # times, in which the port is checked often enough to be certain
MESSAGE = "no task opened its port: each of the 2 tasks trained alone"

# Ends when the test has seen that the agent inspected all tasks several times.
TASK = """
import json, mmap, os, socket, sys, time
config = json.loads(os.environ["TF_CONFIG"])
library = f"libtensorflow_cc.so.{config['task']['index']}"  # tasks may share a directory
with open(library, "wb") as file:
    file.write(b"library")
with open(library, "rb") as file:
    loaded = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
endpoint = config["cluster"]["worker"][config["task"]["index"]]
if sys.argv[1] == "together" and config["task"]["index"] == 0:
    server = socket.create_server(("", int(endpoint.rpartition(":")[2])))
while not os.path.exists(sys.argv[2]):
    time.sleep(0.05)
if sys.argv[1] == "together" and config["task"]["index"] == 1:  # its port was open too briefly to be seen
    print("Started server with target: grpc://" + endpoint, flush=True)
"""


def _trained(two: Program, tmp_path: Path, *arguments: str) -> list[dict[str, object]]:
    """Return the events of a job whose tasks end after the agents have measured the resource use often enough."""
    continue_file = tmp_path / "go-on"
    client = two.start("train", "-o", "json", *arguments, str(continue_file))
    assert client.stdout is not None
    events: list[dict[str, object]] = []
    measured: Counter[object] = Counter()
    for line in client.stdout:
        events.append(json.loads(line))
        if events[-1]["event"] == "usage":
            measured[events[-1]["task"]] += 1
        if len(measured) == 2 and min(measured.values()) >= MEASURED:
            continue_file.touch()
    assert client.wait() == 0, events[-8:]
    return events


def _warnings(events: list[dict[str, object]]) -> list[str]:
    return [str(event["text"]) for event in events if event["event"] == "note" and event["level"] == "warning"]


def _listened(events: list[dict[str, object]]) -> list[object]:
    return [event["listened"] for event in events if event["event"] == "task_state" and event["phase"] == "exited"]


def test_tasks_that_train_alone_are_reported(two: Program, tmp_path: Path) -> None:
    two.script("task.py", TASK)
    events = _trained(two, tmp_path, "task.py", "--", "alone")
    assert _listened(events) == [False, False]
    assert any(MESSAGE in text for text in _warnings(events))
    status = next(event for event in two.run("status", "-o", "json").events if event["event"] == "fleet_status")
    assert MESSAGE in status["job"]["warning"]
    assert MESSAGE in " ".join(two.run("status").text.split())
    assert MESSAGE in two.run("logs").err


@pytest.mark.parametrize(
    ("arguments", "listened"),
    [
        (["task.py", "--", "together"], True),
        (["--", "sh", "-c", 'while [ ! -e "$0" ]; do sleep 0.1; done'], None),
    ],
)
def test_no_warning_for_tasks_that_listen_and_for_shell_commands(
    two: Program, tmp_path: Path, arguments: list[str], listened: bool | None
) -> None:
    two.script("task.py", TASK)
    events = _trained(two, tmp_path, *arguments)
    assert _listened(events) == [listened, listened]
    assert not [text for text in _warnings(events) if "trained alone" in text]
    assert "trained alone" not in two.run("logs").err
    assert "trained alone" not in two.run("status").text
