"""Shell completion of commands and options."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.program import PROGRAM


@pytest.mark.parametrize(("typed", "offered"), [("fleet tr", ["train"]), ("fleet train --restart", ["--restarts"])])
def test_the_shell_completes_commands_and_options(typed: str, offered: list[str]) -> None:
    request = {"_FLEET_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    done = subprocess.run([str(PROGRAM)], check=True, capture_output=True, text=True, env={**os.environ, **request})
    assert done.stdout.split() == offered
