"""The log of a job as `fleet logs` shows it: in the order of time, and selected by its options."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.program import CommandResult, Program, lines_of

pytestmark = pytest.mark.wire

STARTUP = "rebuild TensorFlow"

# The ranks take turns: each waits for the file that the other creates after the agent has stored its line.
TURNS = """
import os, pathlib, sys, time
print("To enable the following instructions: AVX2,",
    "rebuild TensorFlow with the appropriate compiler flags.", flush=True)
rank, turns = int(os.environ["FLEET_RANK"]), pathlib.Path(sys.argv[1])
for number in range(rank, 12, 2):
    while number and not (turns / str(number - 1)).exists():
        time.sleep(0.005)
    time.sleep(0.02)  # more than the resolution of the times
    print(f"line {number}", flush=True)
    while f"line {number}\\n" not in pathlib.Path("../attempt-1/log").read_text():
        time.sleep(0.005)
    (turns / str(number)).touch()
"""


def lines(ran: CommandResult) -> list[str]:
    return [line for line in ran.text.splitlines() if " | line" in line]


def test_the_log_is_in_the_order_of_time(pair: Program, tmp_path: Path) -> None:
    pair.script("task.py", TURNS)
    (tmp_path / "turns").mkdir()
    expected = [f"worker-{number % 2} | line {number}" for number in range(12)]
    assert sorted(lines(pair.run("train", "task.py", "--", str(tmp_path / "turns")))) == sorted(expected)
    plain = pair.run("logs")
    assert lines(plain) == expected
    assert STARTUP not in plain.text
    assert "2 TensorFlow startup lines hidden" in plain.err
    raw = pair.run("logs", "-f", "--raw", "--timestamps")
    assert raw.text.count(STARTUP) == 2
    stamped = [line.split(" ") for line in raw.text.splitlines() if "Z line" in line]
    assert [" ".join([task, bar, *words]) for task, bar, _, *words in stamped] == expected
    times = [time for _, _, time, *_ in stamped]
    assert times == sorted(times)
    assert lines(pair.run("logs", "-n", "3")) == expected[-3:]
    assert lines(pair.run("logs", "-f", "-n", "3", "--grep", "[13579]$")) == expected[7::2]
    assert lines(pair.run("logs", "--since", times[4])) == expected[4:]
    assert pair.run("logs", "--since", times[4], "--worker", "1", "--raw").text == "line 5\nline 7\nline 9\nline 11\n"
    assert "no line matches 'nothing'" in pair.run("logs", "--grep", "nothing").err
    chunks = [event for event in pair.run("logs", "-n", "4", "-o", "json").events if event["event"] == "log_chunk"]
    assert [chunk["text"] for chunk in chunks] == [f"line {number}\n" for number in range(8, 12)]
    assert [chunk["at"] for chunk in chunks] == sorted(chunk["at"] for chunk in chunks)
    assert "regular expression" in pair.run("logs", "--grep", "(", code=2).err
    assert "10m" in pair.run("logs", "--since", "yesterday", code=2).err


BARS = """
import sys, time
for step in range(400):
    print(f"\\r{step + 1}/400 [===>..]", end="", flush=step % 100 == 0)
print()
bar = ""
for step in range(44):
    print("\\b" * len(bar), end="")
    bar = f"{step + 1}/44 [===>..]"
    print(bar, end="")
print(" - loss: 1.0")
print("To enable the following instructions: AVX2,",
    "rebuild TensorFlow with the appropriate compiler flags.")
print("no newline", end="")
"""


def test_a_pipe_gets_final_states_only(pair: Program) -> None:
    pair.script("bars.py", BARS)
    final = ["400/400 [===>..]", "44/44 [===>..] - loss: 1.0", "no newline"]
    trained = pair.run("train", "bars.py")
    stored = pair.log_of("worker-1").read_bytes()
    followed = pair.run("logs", "-f")
    for ran in (trained, pair.run("logs"), followed):
        for task in ("worker-0", "worker-1"):
            assert lines_of(ran, task) == final
        assert ran.err.count("2 TensorFlow startup lines hidden; --raw shows everything") == 1
    assert b"all 2 | 400/400 [===>..]\n" in followed.out
    assert pair.run("logs", "--worker", "1").text == "\n".join(final)
    assert pair.run("logs", "--worker", "1", "--raw").out == stored
    assert lines_of(pair.run("logs", "--grep", "44/44"), "worker-1") == final[1:2]
    assert "no line matches" in pair.run("logs", "--grep", "43/44").err
    # One task may have written all of its three lines after the other one.
    assert lines_of(pair.run("logs", "-n", "4"), "worker-0")[-1:] == final[2:]
    raw = pair.run("train", "--raw", "bars.py")
    assert b"\n".join(line.encode() for line in lines_of(raw, "worker-1")) == stored
    assert "hidden" not in raw.err
