"""Training scripts that record when they step. A smoke test uses stand-ins without TensorFlow."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

DEADLINE_S = 180.0
_HEAD = """
import os, sys, time
rank, attempt = os.environ.get("FLEET_RANK") or os.environ["RANK"], os.environ.get("FLEET_ATTEMPT", "1")
directory = sys.argv[1]

def mark(name):
    path = os.path.join(directory, f"{name}-{attempt}-{rank}")
    with open(path + ".tmp", "w") as file:
        file.write(f"{time.time()} {os.getpid()}")
    os.replace(path + ".tmp", path)
"""
_IMPORT = "import tensorflow as tf"
_STEP = """
strategy = tf.distribute.MultiWorkerMirroredStrategy()

@tf.function
def step():
    def each():
        return tf.distribute.get_replica_context().all_reduce("sum", tf.ones([1000]))
    return strategy.run(each)
"""
_STANDIN = """
def step():
    time.sleep(0.01)
"""
_ONCE = """
step()
mark("stepped")
"""
_UNTIL_KILLED = """
while True:
    step()
    mark("stepped")
    if attempt == "2":
        time.sleep(0.5)
        sys.exit()
"""


def script(*, is_standin: bool, forever: bool = False) -> str:
    """Return a script that makes a step, or makes steps until its second attempt."""
    begin = _HEAD + _STANDIN if is_standin else _IMPORT + _HEAD + _STEP
    return begin + (_UNTIL_KILLED if forever else _ONCE)


def read_marks(directory: Path, name: str, workers: int, attempt: int = 1) -> list[tuple[float, int]]:
    """Return the time and the process that each worker wrote.

    Raises:
        TimeoutError: Not all workers wrote them.
    """
    paths = [directory / f"{name}-{attempt}-{rank}" for rank in range(workers)]
    wait_until(lambda: all(path.exists() for path in paths), f"{name} of attempt {attempt}")
    words = [path.read_text().split() for path in paths]
    return [(float(at), int(pid)) for at, pid in words]


def wait_until(is_true: Callable[[], bool], description: str, pause_s: float = 0.002) -> None:
    """Wait for a state, which is read again after a pause.

    Raises:
        TimeoutError: It did not occur.
    """
    deadline = time.monotonic() + DEADLINE_S
    while not is_true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {DEADLINE_S:.0f} s for {description}")
        time.sleep(pause_s)


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False
