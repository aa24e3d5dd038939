"""Time from the kill of one of four workers to the stop of the others, and to the restart of user code.

Real TensorFlow on four local hosts, killed during a collective operation. For comparison, TensorFlow alone: the same
four processes started by hand, without a launcher.

Run: .venv/bin/python -m benchmarks.restart
"""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.stage import Stage

WORKERS = 4
RUNS = 5
STOPPED_GOAL_S = 2.0
AGAIN_GOAL_S = 3.0
DEADLINE_S = 180.0
SCRIPT = """
import os, sys, time
now = time.time()
rank, attempt = os.environ.get("RANK") or os.environ["FLEET_RANK"], os.environ.get("FLEET_ATTEMPT", "1")
directory = sys.argv[1]

def mark(what):
    path = os.path.join(directory, f"{mark}-{attempt}-{rank}")
    with open(path + ".tmp", "w") as file:
        file.write(f"{time.time() if what != 'begun' else now} {os.getpid()}")
    os.replace(path + ".tmp", path)

mark("begun")
if attempt == "2":
    sys.exit()
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()

@tf.function
def step():
    def each():
        return tf.distribute.get_replica_context().all_reduce("sum", tf.ones([1000]))
    return strategy.run(each)

while True:
    step()
    mark("training")
"""


def await_files(directory: Path, mark: str, attempt: int) -> list[tuple[float, int]]:
    """Return the time and process that each worker wrote.

    Raises:
        TimeoutError: Not all workers wrote them.
    """
    end = time.monotonic() + DEADLINE_S
    paths = [directory / f"{mark}-{attempt}-{rank}" for rank in range(WORKERS)]
    while not all(path.exists() for path in paths):
        if time.monotonic() > end:
            raise TimeoutError(f"waited {DEADLINE_S:.0f} s for {mark} of attempt {attempt}")
        time.sleep(0.002)
    words = [path.read_text().split() for path in paths]
    return [(float(at), int(pid)) for at, pid in words]


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


def death_of(pids: list[int], killed: int, also: Callable[[], object] = lambda: None) -> float:
    """Kill a worker; return the seconds until the last of the others has ended.

    Raises:
        TimeoutError: They keep running.
    """
    os.kill(killed, signal.SIGKILL)
    began = time.monotonic()
    while any(is_alive(pid) for pid in pids):
        also()
        if time.monotonic() - began > DEADLINE_S:
            raise TimeoutError("the others live on")
        time.sleep(0.002)
    return time.monotonic() - began


def with_fleet(stage: Stage) -> tuple[float, float]:
    """Return the seconds until the others are stopped, and from there to the start of the next attempt."""
    stage.clear()
    marks = stage.marks
    job = stage.start("train", str(stage.script), "--restarts", "1", "--", str(marks))
    training = [pid for _, pid in await_files(marks, "training", 1)]
    stopped_s = death_of(training, training[2])
    stopped_at = time.time()
    again = max(at for at, _ in await_files(marks, "begun", 2))
    job.wait(DEADLINE_S)
    return stopped_s, again - stopped_at


def by_hand(stage: Stage) -> float:
    """Return the seconds until the others end, without a launcher."""
    stage.clear()
    with stage.workers_by_hand() as processes:
        pids = [pid for _, pid in await_files(stage.marks, "training", 1)]
        return death_of(pids, pids[2], lambda: [process.poll() for process in processes])


def line(title: str, seconds: list[float], goal_s: float | None = None) -> str:
    """Return a line with median, spread, and goal."""
    median = statistics.median(seconds)
    text = f"{title:<62} {median:6.2f} s  ({min(seconds):.2f} to {max(seconds):.2f}, n={len(seconds)})"
    if goal_s is None:
        return text
    return f"{text}   goal: at most {goal_s:.0f} s   {'reached' if median <= goal_s else 'MISSED'}"


def main() -> None:
    """Print both times, and that of TensorFlow alone."""
    stopped, again, alone = [], [], []
    with tempfile.TemporaryDirectory() as root, Stage(Path(root), SCRIPT, WORKERS) as stage:
        for _ in range(RUNS):
            result = with_fleet(stage)
            stopped.append(result[0])
            again.append(result[1])
            alone.append(by_hand(stage))
    print(line("one of 4 killed: the others stopped after", stopped, STOPPED_GOAL_S))
    print(line("  from there to user code on the last of the next attempt", again, AGAIN_GOAL_S))
    print(line("without a launcher: the others ended after", alone))
    print(f"stopped / TensorFlow alone = {statistics.median(stopped) / statistics.median(alone):.2f}")


if __name__ == "__main__":
    main()
