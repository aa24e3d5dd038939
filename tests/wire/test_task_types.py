"""Task types and several tasks per host, in the installed program: real sshd, the real agent, stand-in scripts."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.program import CommandResult, Program, find_paths, lines_of, wait_for
from tests.wire.scripts import COUNT
from train.agent.protocol.cluster import TASK_TYPES

pytestmark = pytest.mark.wire

# Prints its environment, ends as tasks of its type do, and counts if it is the chief.
TASK = """
import json, os, sys, time
config = json.loads(os.environ["TF_CONFIG"])
kind, cluster = config["task"]["type"], config["cluster"]
print("TF_CONFIG=" + os.environ["TF_CONFIG"], flush=True)
print("rank {FLEET_RANK} of {FLEET_NUM_TASKS}".format_map(os.environ), flush=True)
path = os.path.join(os.environ["FLEET_CHECKPOINT_DIR"], "count.data-00000-of-00001")
if kind == "evaluator":
    seen = -1
    while seen < int(sys.argv[1]):
        count = json.load(open(path)) if os.path.exists(path) else -1
        if count > seen:
            print(f"seen {count}", flush=True)
            seen = count
        time.sleep(0.05)
elif kind == "ps" or (kind == "worker" and "ps" in cluster):
    time.sleep(3600)
else:
""" + textwrap.indent(COUNT, "    ")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """Start a fleet of four hosts, shared by the tests of this file."""
    directory = tmp_path_factory.mktemp("roles")
    (directory / "work").mkdir()
    program = Program(state=directory / "state", directory=directory / "work")
    program.script("task.py", TASK)
    try:
        program.run("up", "--workers", "4")
        yield program
    finally:
        program.close()


def configs(ran: CommandResult) -> dict[str, Any]:
    """Return TF_CONFIG by task, with each endpoint replaced by its number in order of appearance."""
    by_task = {}
    for line in ran.text.splitlines():
        task, _, rest = line.partition(" | ")
        if rest.startswith("TF_CONFIG="):
            by_task[task] = json.loads(rest.partition("=")[2])
    places: dict[str, str] = {}
    for task in sorted(by_task, key=lambda name: (TASK_TYPES.index(name.split("-")[0]), name)):
        for ends in by_task[task]["cluster"].values():
            for number, end in enumerate(ends):
                ends[number] = places.setdefault(end, f"end {len(places)}")
    return by_task


BOTH = {"chief": ["end 0"], "worker": ["end 1"], "ps": ["end 2"]}
CHIEF = {"chief": ["end 0"], "worker": ["end 1", "end 2", "end 3"]}


@pytest.mark.parametrize(
    ("options", "cluster", "evaluator"),
    [("--chief", CHIEF, ""), ("--chief --ps 1 --evaluator", BOTH, "end 3")],
)
def test_each_task_has_its_own_task_in_tf_config(
    fleet: Program, options: str, cluster: dict[str, list[str]], evaluator: str
) -> None:
    ran = fleet.run("train", "task.py", *options.split(), "--", "5")
    wanted: dict[str, object] = {
        f"{kind}-{index}": {"cluster": cluster, "task": {"type": kind, "index": index}}
        for kind, ends in cluster.items()
        for index in range(len(ends))
    }
    if evaluator:
        wanted["evaluator-0"] = {
            "cluster": {"evaluator": [evaluator]},
            "task": {"type": "evaluator", "index": 0},
        }
        assert lines_of(ran, "evaluator-0")[-1] == "seen 5"
    assert configs(ran) == wanted
    assert "rank 3 of 4" in lines_of(ran, list(wanted)[-1])
    assert not fleet.tasks()
    if evaluator:
        check_selection(fleet)


def check_selection(fleet: Program) -> None:
    """Check that logs selects a task and refuses unknown ones, and that status shows where each task ran."""
    alone = fleet.run("logs", "--worker", "ps-0").text
    assert '"task": {"type": "ps", "index": 0}' in alone
    assert " | " not in alone
    refused = fleet.run("logs", "--worker", "ps-1", code=102)
    assert "its tasks are chief-0, worker-0, ps-0, evaluator-0" in refused.err
    assert "is not a task" in fleet.run("logs", "--worker", "server-0", code=2).err
    text = fleet.run("status").text
    rows = [line.split()[:4] for line in text.splitlines() if line.startswith("  ")]  # without the last step
    assert ["chief-0", "on", "worker-0", "done"] in rows
    assert ["ps-0", "on", "worker-2", "stopped"] in rows


def test_a_dry_run_shows_the_task_types_and_changes_nothing(fleet: Program) -> None:
    ran = fleet.run("train", "task.py", "--chief", "--ps", "1", "--spares", "1", "--restarts", "1", "--dry-run")
    heads = [line.split()[0] for line in ran.text.splitlines() if line and not line.startswith(" ")]
    assert heads == ["chief-0", "worker-0", "ps-0", "worker-3"]
    assert "none: a spare gets no task" in ran.text


def test_a_killed_parameter_server_starts_a_second_attempt_and_is_named(fleet: Program) -> None:
    client = fleet.start(
        "train", "task.py", "--chief", "--ps", "1", "--spares", "1", "--restarts", "1", "--backoff", "0.1", "--", "30"
    )
    wait_for("steps", lambda: b"step 11\n" in newest_log(fleet, "worker-0"))
    (server,) = fleet.tasks("ps-0")
    os.kill(server.pid, signal.SIGKILL)
    ran = fleet.finish(client)
    assert "attempt 1 failed: ps-0 was killed by SIGKILL" in ran.err
    begins = [line.split()[1:] for line in lines_of(ran, "chief-0") if line.startswith("begin")]
    assert begins[0] == ["0", "1"]
    assert begins[1][1] == "2"
    assert int(begins[1][0]) >= 10
    events = fleet.run("logs", "-o", "json").events
    started = next(event for event in events if event["event"] == "job_started")
    assert [member["task"] for member in started["members"]] == ["chief-0", "worker-0", "ps-0", ""]
    assert started["ended"]
    states = [event for event in events if event["event"] == "task_state"]
    assert {(event["task"], event["slot"]) for event in states} == {
        ("chief-0", "worker-0"), ("worker-0", "worker-1"), ("ps-0", "worker-2"),
    }  # fmt: skip
    result = next(event for event in events if event["event"] == "job_result")
    assert (result["outcome"], result["attempt"], sorted(result["exits"])) == (
        "succeeded", 2, ["chief-0", "ps-0", "worker-0"],
    )  # fmt: skip


def newest_log(fleet: Program, host: str) -> bytes:
    """Return what the task of a host has written in the first attempt of the newest job."""
    logs = find_paths(fleet.state / "local", f"*-{host}/fleet/jobs/*/{host}/attempt-1/log")
    return logs[-1].read_bytes() if logs else b""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--ps 1", "--ps 1 needs --chief"),
        ("--chief --ps 3", "--chief --ps 3 with a worker need 5 tasks, but there is room for 4 on 4 hosts"),
        ("--chief --ps 2 --spares 1 --restarts 1", "there is room for 3"),
        ("--chief --ps 1 --min-workers 3 --restarts 1", "more than the 2 that the job begins with"),
        ("--evaluator --spares 3 --restarts 1", "--evaluator with a worker needs 2 tasks"),
    ],
)
def test_tasks_that_the_fleet_cannot_hold_are_refused(fleet: Program, options: str, message: str) -> None:
    ran = fleet.run("train", "task.py", *options.split(), code=2)
    assert message in ran.err
    assert "next:  fleet" in ran.err


def kill_host(program: Program, name: str) -> None:
    """End sshd, agents, and tasks of a host at once."""
    for process in program.processes():
        try:
            words = [*process.cmdline(), *(f"{key}={value}" for key, value in process.environ().items())]
        except psutil.Error:
            continue
        if any(f"{program.state}/local/default-{name}" in word for word in words) or any(
            word.startswith("FLEET_INSTANCE=") and f"default-{name}" in word for word in words
        ):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def test_several_tasks_on_each_host_continue_after_its_loss_and_are_stopped(program: Program) -> None:
    program.script("task.py", TASK)
    program.run("up", "--workers", "2")
    client = program.start(
        "train", "task.py", "--chief", "--ps", "1", "--tasks-per-host", "2", "--restarts", "1",
        "--link-timeout", "2", "--", "5000",
    )  # fmt: skip
    check_slots(program)
    logs = "local/*/fleet/slot-*/jobs/*/*/attempt-1/log"
    wait_for("steps", lambda: any(b"step 11\n" in log.read_bytes() for log in find_paths(program.state, logs)))
    kill_host(program, "worker-1")
    wait_for("the end of the other tasks", lambda: not program.tasks())
    wait_for("the loss", lambda: "waiting to start again" in program.run("status").text)
    ran = program.run("up")
    for slot in ("worker-2", "worker-3"):
        assert f"{slot} joined job" in ran.text + ran.err
    logs = "local/*/fleet/slot-*/jobs/*/*/attempt-2/log"
    wait_for(
        "the first words of all four tasks",
        lambda: sum(b"rank" in log.read_bytes() for log in find_paths(program.state, logs)) == 4,
    )
    assert "TF_CONFIG" in program.run("logs", "--worker", "ps-0", code=101).text
    assert "2 hosts, 2 tasks each" in program.run("stop").err + program.run("logs", code=103).err
    ran = program.finish(client, code=103)
    assert not program.tasks()
    assert re.search(r"attempt 1 failed: (worker-1|ps-0) \(\S+\) was lost", ran.err)
    first, second = [line.split()[1:] for line in lines_of(ran, "chief-0") if line.startswith("begin")]
    assert first == ["0", "1"]
    assert second[1] == "2"
    assert int(second[0]) >= 10
    cluster = configs(ran)["ps-0"]["cluster"]
    assert {kind: len(ends) for kind, ends in cluster.items()} == {"chief": 1, "worker": 2, "ps": 1}
    program.run("down", "--yes")
    assert not program.processes()


def check_slots(program: Program) -> None:
    """Check that four tasks run in the slots of two hosts, and that status reports them."""
    wait_for("all four tasks", lambda: len(program.tasks()) == 4, 60)
    directories = {Path(task.environ()["FLEET_CHECKPOINT_DIR"]).parents[3] for task in program.tasks()}
    assert sorted(f"{directory.parent.parent.name}/{directory.name}" for directory in directories) == [
        f"default-worker-{host}/slot-{slot}" for host in (0, 1) for slot in (0, 1)
    ]
    ports = [
        end
        for ends in json.loads(program.tasks("ps-0")[0].environ()["TF_CONFIG"])["cluster"].values()
        for end in ends
    ]
    assert len({end.rpartition(":")[2] for end in ports}) == 4
    ran = program.run("status", "-o", "json")
    status = ran.events[-1]
    assert status["job"], (status, ran.err)
    assert [host["name"] for host in status["hosts"]] == ["worker-0", "worker-1"]
    assert [(task["task"], task["slot"]) for task in status["job"]["tasks"]] == [
        ("chief-0", "worker-0"), ("worker-0", "worker-1"), ("worker-1", "worker-2"), ("ps-0", "worker-3"),
    ]  # fmt: skip
