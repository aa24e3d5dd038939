"""Shell completion of commands and options."""

from __future__ import annotations

import os
import subprocess

from tests.program import PROGRAM


def test_the_shell_completes_commands_and_options() -> None:
    request = {"_FLEET_COMPLETE": "complete_bash", "COMP_WORDS": "fleet train --restart", "COMP_CWORD": "2"}
    done = subprocess.run([str(PROGRAM)], check=True, capture_output=True, text=True, env={**os.environ, **request})
    assert done.stdout.split() == ["--restarts"]
