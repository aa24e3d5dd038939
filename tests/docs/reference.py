"""Write docs/cli.md from the help texts of the program.

Run: .venv/bin/python -m tests.docs.reference
"""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path
from unittest import mock

from fleet.cli.app import root_command, run

FILE = Path(__file__).parents[2] / "docs" / "cli.md"
COMMANDS = tuple(root_command().commands)
HEAD = """# Command line

The help texts of all commands, as printed by `fleet COMMAND --help-all`; `--help` leaves rare options out.
Exit codes are listed in [failures.md](failures.md), JSON events in [json.md](json.md).
"""


def help_of(*command: str) -> str:
    """Return the help of the program or of one command, 80 columns wide."""
    env = {**{key: value for key, value in os.environ.items() if not key.startswith("FLEET_")}, "COLUMNS": "80"}
    options = "--help-all" if command else "--help"
    with mock.patch.dict(os.environ, env, clear=True), contextlib.redirect_stdout(io.StringIO()) as out:
        assert run([*command, options]) == 0
    return "\n".join(line.rstrip() for line in out.getvalue().strip().splitlines())


def reference() -> str:
    """Return the whole page."""
    parts = [HEAD, f"```text\n{help_of()}\n```\n"]
    parts += [f"## fleet {command}\n\n```text\n{help_of(command)}\n```\n" for command in COMMANDS]
    return "\n".join(parts)


if __name__ == "__main__":
    FILE.write_text(reference())
