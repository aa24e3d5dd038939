"""Test that a task with `--warm` is forked from a process with its imports, and when it is a new process instead."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.process.train.agent.conftest import Connect
from tests.process.train.agent.hosts import Agent, Bundle, Story, alive, committed, eventually, follow
from train.agent.host.processes import is_marked, list_processes
from train.agent.protocol.records import Exit, Follow, Phase, Release, Released, Stopped, TaskState
from train.agent.supervisor.warm import end_server

IMPORT = '"""A script."""\nimport os, sys\nimport tensorflow\n'
STATE = (
    IMPORT
    + """
print(sys.argv[1:], os.getcwd(), os.environ["FLEET_JOB_ID"], sys.path[0], __name__, __file__)
print(tensorflow.imported, sys.stdin.read())
"""
)
NOT_YET = "no process has imported its modules yet"


@pytest.fixture
def agent(connect: Connect, tmp_path: Path) -> Iterator[Agent]:
    """Yield the agent of a host with a stand-in for TensorFlow."""
    site = tmp_path / "site" / "tensorflow"
    site.mkdir(parents=True)
    (site / "__init__.py").write_text("import os\nimported = os.path.exists('/nowhere')\nprint('imported')\n")
    connected = connect(env={"PYTHONPATH": str(site.parent)})
    yield connected
    end_server(str(connected.root / "warm"))


def run(agent: Agent, job: str, script: str, *, command: Sequence[str] = ("task.py",), **fields: Any) -> Story:
    """Run a job to its end."""
    committed([agent], job, Bundle(script), command=[sys.executable, *command], warm=True, **fields)
    return follow(agent, Follow(job, "worker-0"))


def start_of(story: Story) -> str | None:
    """Return why the task was a new process; empty if it was forked."""
    return next(item.cold for item in story.records if isinstance(item, TaskState) and item.phase is Phase.RUNNING)


def prepare(agent: Agent) -> None:
    """Run jobs until one is forked."""
    number = iter(range(1000))
    assert start_of(run(agent, f"job-{next(number)}", IMPORT)) == NOT_YET
    assert eventually(lambda: start_of(run(agent, f"job-{next(number)}", IMPORT)) == "")


def test_a_forked_task_runs_the_script_as_a_new_process_does_unless_modules_or_packages_changed(
    agent: Agent, tmp_path: Path
) -> None:
    prepare(agent)
    for name, script, command in (
        ("script", STATE, ("task.py", "a", "b")),
        ("module", STATE, ("-m", "task", "a")),
        ("code", IMPORT + "sys.exit(7)", ("task.py",)),
        ("error", IMPORT + "def f():\n    raise ValueError('wrong')\nf()", ("task.py",)),
        ("signal", IMPORT + "os.kill(os.getpid(), 9)", ("task.py",)),
        ("thread", IMPORT + "import threading\nthreading.Thread(target=print, args=('last',)).start()", ("task.py",)),
    ):
        committed([agent], f"cold-{name}", Bundle(script), command=[sys.executable, *command])
        expected = follow(agent, Follow(f"cold-{name}", "worker-0"))
        forked = run(agent, f"warm-{name}", script, command=command)
        assert start_of(forked) == ""
        assert forked.exit == expected.exit
        assert forked.log == expected.log.replace(b"imported\n", b"", 1).replace(b"cold-", b"warm-"), name
    kills_parent = run(agent, "killed", IMPORT + "import time\nos.kill(os.getppid(), 9)\ntime.sleep(60)")
    assert kills_parent.exit == Exit(signal=signal.SIGKILL)
    bundle = Bundle(IMPORT)
    bundle.add("json.py", b"")
    committed([agent], "shadow", bundle, command=[sys.executable, "task.py"], warm=True)
    assert start_of(follow(agent, Follow("shadow", "worker-0"))) == "the script's directory has a module json"
    (tmp_path / "site" / "new.py").touch()
    assert start_of(run(agent, "changed", IMPORT)) == "the installed packages have changed"


def test_a_new_process_has_a_reason(agent: Agent) -> None:
    reasons: list[tuple[str, dict[str, Any], str]] = [
        (IMPORT, {"secret_env": {"KEY": "s"}}, "the job has secrets"),
        ("import os\nos.umask(0)\nimport tensorflow", {}, "does not import tensorflow, tf_keras, or keras before"),
        ("import tensorflow\nimport torch", {}, "the script imports torch"),
        ("import tensorflow, (", {}, "the script cannot be parsed"),
        (IMPORT, {"command": ("-c", "print(1)")}, "does not run a script with the fleet's interpreter"),
    ]
    for number, (script, fields, reason) in enumerate(reasons):
        assert reason in (start_of(run(agent, f"cold-{number}", script, **fields)) or "")


def test_a_forked_task_is_stopped_with_its_children_and_leaves_nothing(agent: Agent) -> None:
    prepare(agent)
    script = IMPORT + (
        "import subprocess, time\nchild = subprocess.Popen(['sleep', '60'])\nforked = os.fork()\n"
        "if forked:\n    print(os.getpid(), child.pid, forked, os.getppid(), flush=True)\ntime.sleep(60)\n"
    )
    committed([agent], "stop", Bundle(script), command=[sys.executable, "task.py"], warm=True)
    log = agent.root / "jobs" / "stop" / "worker-0" / "attempt-1" / "log"
    assert eventually(lambda: log.exists() and log.read_bytes().endswith(b"\n"))
    pids = list(map(int, log.read_text().split()))
    assert [pid for pid in list_processes() if is_marked(pid, str(agent.root / "warm"))]
    assert agent.stop("stop", grace_s=20) == Stopped(killed=False, running=True)
    assert eventually(lambda: not any(map(alive, pids)))
    assert follow(agent, Follow("stop", "worker-0")).exit == Exit(signal=signal.SIGTERM)
    agent.send(Release(grace_s=0.0))
    agent.expect(Released)
    assert eventually(lambda: not any(is_marked(pid, str(agent.root / "warm")) for pid in list_processes()))
