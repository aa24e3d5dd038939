"""Footprint of the agent on a host while its task sleeps: memory, and CPU time per minute.

Run: .venv/bin/python -m benchmarks.footprint
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.stage import Stage

SECONDS = 60.0
MEMORY_GOAL_MB = 30.0
CPU_GOAL_PERCENT = 1.0
SLEEP = "import time\ntime.sleep(600)\n"


def agents(state: Path) -> list[psutil.Process]:
    """Return the agent processes of all hosts, without tasks and sshd."""
    result = []
    for process in psutil.process_iter():
        try:
            ours = str(state) in " ".join(process.cmdline())
            if ours and "python" in process.name() and "TF_CONFIG" not in process.environ():
                result.append(process)
        except psutil.Error:
            continue
    return result


def main() -> None:
    """Print memory and CPU time per host, with and without a connected client."""
    with tempfile.TemporaryDirectory() as root, Stage(Path(root), SLEEP) as stage:
        stage.run("train", "-d", str(stage.script))
        _measure("alone", stage.state)
        client = stage.start("logs", "-f")
        time.sleep(2)
        _measure("with a client that follows", stage.state)
        client.terminate()
        client.wait()


def _measure(name: str, state: Path) -> None:
    processes = agents(state)
    before = sum(sum(process.cpu_times()[:2]) for process in processes)
    time.sleep(SECONDS)
    spent = sum(sum(process.cpu_times()[:2]) for process in processes) - before
    memory = sum(process.memory_full_info().pss for process in processes) / 2 / 1e6
    percent = 100 * spent / SECONDS / 2
    print(f"{name}: {len(processes)} processes on 2 hosts; a host: {memory:.1f} MB (PSS), {percent:.2f} % of a core")
    reached = memory <= MEMORY_GOAL_MB and percent < CPU_GOAL_PERCENT
    print(f"goal: at most {MEMORY_GOAL_MB} MB, under {CPU_GOAL_PERCENT} %   {'reached' if reached else 'MISSED'}")


if __name__ == "__main__":
    main()
