"""Test the request SmokeTest on agents that communicate over pipes: run a script alone until its first step."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.process.train.agent.conftest import Connect
from tests.process.train.agent.hosts import Agent, Bundle, alive, eventually, gone
from train.agent.protocol.records import BootstrapStep, Prepared, Refused, SmokeTest, SmokeTestResult

HANG = """
import os, subprocess, sys, time
away = subprocess.Popen(["sleep", "600"], start_new_session=True)
print("waiting", os.getpid(), away.pid, flush=True)
time.sleep(600)
"""


def tried(
    agent: Agent, script: str, seconds: float = 20.0, env: dict[str, str] | None = None, task: str = "worker-3"
) -> tuple[SmokeTestResult | Refused, list[BootstrapStep]]:
    answer = agent.prepare("check-1", Bundle(script), slot=task)
    assert isinstance(answer, Prepared), answer
    agent.send(
        SmokeTest([sys.executable, "task.py", "--x"], {"COLOUR": "blue", **(env or {})}, {"TOKEN": "s"}, seconds)
    )
    steps: list[BootstrapStep] = []
    while True:
        record, _ = agent.receive()
        if not isinstance(record, BootstrapStep):
            assert isinstance(record, SmokeTestResult | Refused)
            return record, steps
        steps.append(record)


def nothing_is_left(agent: Agent) -> None:
    assert not list((agent.root / "jobs").glob("*/*"))
    assert (agent.root / "active").read_text() == ""


def test_time_runs_out_and_all_processes_end(connect: Connect) -> None:
    agent = connect()
    answer, _ = tried(agent, HANG, seconds=1.0)
    assert isinstance(answer, SmokeTestResult)
    assert (answer.stepped, answer.exit) == (False, None)
    assert answer.seconds >= 1.0
    pids = [int(word) for word in answer.lines[0].split()[1:]]
    assert not any(map(alive, pids))
    nothing_is_left(agent)


def test_a_client_that_goes_takes_the_script_along(connect: Connect, tmp_path: Path) -> None:
    agent = connect()
    marker = tmp_path / "pids"
    script = HANG.replace("flush=True", f"file=open({str(marker)!r}, 'w', buffering=1)")
    assert isinstance(agent.prepare("check-1", Bundle(script)), Prepared)
    agent.send(SmokeTest([sys.executable, "task.py"], {}, {}, 600.0))
    assert eventually(lambda: marker.exists() and marker.read_text().endswith("\n"))
    pids = [int(word) for word in marker.read_text().split()[1:]]
    agent.close()
    assert all(map(gone, pids))
    nothing_is_left(agent)
