"""Start skew: time from the start of user code on the first of 8 local hosts to that on the last.

All hosts share this computer and its clock; the script writes the time of its first line to a file.

Run: .venv/bin/python -m benchmarks.skew
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from benchmarks.stage import Stage

HOSTS = 8
RUNS = 21
GOAL_S = 0.020
# It runs for a while: the end of a task would delay the start of another.
SCRIPT = """
import time
now = time.time()
import os, sys
with open(os.path.join(sys.argv[1], str(os.getpid())), "w") as file:
    file.write(repr(now))
time.sleep(0.3)
"""


def skew(stage: Stage) -> float:
    """Return the seconds between the first and the last start of user code in a job.

    Raises:
        RuntimeError: Not every task wrote its start time.
    """
    stage.clear()
    stage.run("train", str(stage.script), "--", str(stage.marks))
    begun = [float(mark.read_text()) for mark in stage.marks.iterdir()]
    if len(begun) != HOSTS:
        raise RuntimeError(f"{len(begun)} tasks wrote when they began, not {HOSTS}")
    return max(begun) - min(begun)


def main() -> None:
    """Print the median and the spread."""
    with tempfile.TemporaryDirectory() as root, Stage(Path(root), SCRIPT, HOSTS) as stage:
        skews = [skew(stage) for _ in range(RUNS + 1)][1:]
    median = statistics.median(skews)
    print(
        f"start skew over {HOSTS} hosts {1000 * median:.1f} ms  ({1000 * min(skews):.1f} to {1000 * max(skews):.1f}, "
        f"n={len(skews)})   goal: at most {1000 * GOAL_S:.0f} ms   {'reached' if median <= GOAL_S else 'MISSED'}"
    )


if __name__ == "__main__":
    main()
