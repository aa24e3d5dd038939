"""docs/cli.md out of what the program says of itself.

Run: .venv/bin/python -m tests.docs.reference
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.program import PROGRAM

FILE = Path(__file__).parents[2] / "docs" / "cli.md"
VERBS = (
    "up", "check", "train", "logs", "pull", "jobs", "status", "inventory", "stop",
    "down", "extend", "gc", "doctor", "lint", "agent", "demo",
)  # fmt: skip
HEAD = """# Command line

What the program says of itself; `fleet VERB --help` prints the same. Exit codes are in [failures.md](failures.md),
JSON events in [json.md](json.md).
"""


def help_of(*verb: str) -> str:
    """The help of the program, or of one verb, 80 columns wide."""
    env = {**{key: value for key, value in os.environ.items() if not key.startswith("FLEET_")}, "COLUMNS": "80"}
    done = subprocess.run([str(PROGRAM), *verb, "--help"], check=True, capture_output=True, text=True, env=env)
    return "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())


def reference() -> str:
    """The whole page."""
    parts = [HEAD, f"```text\n{help_of()}\n```\n"]
    parts += [f"## fleet {verb}\n\n```text\n{help_of(verb)}\n```\n" for verb in VERBS]
    return "\n".join(parts)


if __name__ == "__main__":
    FILE.write_text(reference())
