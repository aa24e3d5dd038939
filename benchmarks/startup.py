"""Startup time of `fleet --help` and `fleet status` without a fleet, compared with `ansible --version`.

Run: .venv/bin/python -m benchmarks.startup
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import command, interleaved, ratio
from benchmarks.peers import ansible

RUNS = 15


def main() -> None:
    """Print the medians and the ratios."""
    fleet = str(Path(sys.executable).parent / "fleet")
    peer = str(ansible() / "ansible")
    with tempfile.TemporaryDirectory() as state:
        env = {**os.environ, "FLEET_STATE_DIR": state}
        series = interleaved(
            {
                "fleet --help": lambda: command([fleet, "--help"], env=env),
                "fleet status": lambda: command([fleet, "status"], codes=(102,), env=env),
                "ansible --version": lambda: command([peer, "--version"]),
            },
            RUNS,
        )
    for sery in series.values():
        print(sery)
    print(ratio(series, "fleet --help", "ansible --version", 0.4))
    print(ratio(series, "fleet status", "ansible --version", 0.6))


if __name__ == "__main__":
    main()
