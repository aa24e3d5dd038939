"""Time from the launch to the start of user code on the last host, compared with two `ssh host python task.py`.

Both sides run on the same local fleet of two workers, with agents and files already uploaded. The script writes
the time of its first line into a file.

Run: .venv/bin/python -m benchmarks.launch
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness import interleaved
from benchmarks.stage import Stage

RUNS = 11
GOAL_S = 0.5
SCRIPT = """
import time
now = time.time()
import os, sys
with open(os.path.join(sys.argv[1], str(os.getpid())), "w") as file:
    file.write(repr(now))
"""


class Launches(Stage):
    """Launch the same script in both ways."""

    def with_fleet(self) -> float:
        """Return the seconds until the last task began, started by `fleet train`."""
        return self._last(lambda: self.run("train", str(self.script), "--", str(self.marks)))

    def by_hand(self) -> float:
        """Return the seconds until the last task began, started by one ssh per host in parallel."""
        record = json.loads((self.state / "fleets" / "default" / "fleet.json").read_text())
        directory = self.state / "fleets" / "default"

        def start() -> None:
            clients = [
                subprocess.Popen(
                    [
                        *("ssh", "-F", "/dev/null", "-i", str(directory / "id_ed25519"), "-o", "IdentitiesOnly=yes"),
                        *(
                            "-o",
                            f"UserKnownHostsFile={directory / 'known_hosts'}",
                            "-o",
                            f"HostKeyAlias={host['key_alias']}",
                        ),
                        *("-p", str(host["port"]), f"{host['user']}@{host['address']}"),
                        f"{host['python']} {self.script} {self.marks}",
                    ]
                )
                for host in record["hosts"]
            ]
            codes = [client.wait(timeout=60) for client in clients]
            if any(codes):
                raise RuntimeError("ssh failed")

        return self._last(start)

    def _last(self, launch: Callable[[], object]) -> float:
        self.clear()
        begun = time.time()
        launch()
        marks = [float(mark.read_text()) for mark in self.marks.iterdir()]
        if len(marks) != 2:
            raise RuntimeError(f"{len(marks)} tasks wrote when they began, not 2")
        return max(marks) - begun


def main() -> None:
    """Print the medians and their difference."""
    with tempfile.TemporaryDirectory() as root, Launches(Path(root), SCRIPT) as stage:
        series = interleaved({"fleet train": stage.with_fleet, "two ssh by hand": stage.by_hand}, RUNS)
    for sery in series.values():
        print(sery)
    more = series["fleet train"].median - series["two ssh by hand"].median
    print(f"ratio {series['fleet train'].median / series['two ssh by hand'].median:.2f}")
    verdict = "reached" if more <= GOAL_S else "MISSED"
    print(f"fleet train - two ssh by hand = {more:.3f} s   goal: at most {GOAL_S} s   {verdict}")


if __name__ == "__main__":
    main()
