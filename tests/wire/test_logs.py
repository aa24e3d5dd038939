"""The log of a job as `fleet logs` shows it: in the order of time, and selected by its options."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.program import CommandResult, Program

pytestmark = pytest.mark.wire

# The ranks take turns: each waits for the file that the other creates after its line.
TURNS = """
import os, pathlib, sys, time
rank, turns = int(os.environ["FLEET_RANK"]), pathlib.Path(sys.argv[1])
for number in range(rank, 12, 2):
    while number and not (turns / str(number - 1)).exists():
        time.sleep(0.005)
    time.sleep(0.02)  # more than the resolution of the times
    print("line", number, flush=True)
    time.sleep(0.02)
    (turns / str(number)).touch()
"""


def lines(ran: CommandResult) -> list[str]:
    return [line for line in ran.text.splitlines() if " | line" in line]


def test_the_log_is_in_the_order_of_time(pair: Program, tmp_path: Path) -> None:
    pair.script("task.py", TURNS)
    (tmp_path / "turns").mkdir()
    expected = [f"worker-{number % 2} | line {number}" for number in range(12)]
    assert sorted(lines(pair.run("train", "task.py", "--", str(tmp_path / "turns")))) == sorted(expected)
    assert lines(pair.run("logs")) == expected
    assert lines(pair.run("logs", "-f")) == expected
