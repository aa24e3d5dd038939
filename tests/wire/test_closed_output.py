"""A reader that closes the output early (``| head -1``) changes neither the job nor the exit code."""

from __future__ import annotations

import shlex
import subprocess

import pytest

from tests.fork_server import start_command
from tests.program import DEADLINE_S, CommandResult, Program

pytestmark = pytest.mark.wire

ENDLESS = "import time\nwhile True:\n    print('line', flush=True)\n    time.sleep(0.05)\n"


def first_line(program: Program, arguments: str, *, both: bool = False) -> CommandResult:
    """Run a command whose reader closes the output after one line."""
    with start_command(
        shlex.split(arguments),
        directory=program.directory,
        environment=program.environment(),
        stderr=subprocess.STDOUT if both else subprocess.PIPE,
    ) as client:
        assert client.stdout is not None
        line = client.stdout.readline()
        client.stdout.close()
        code = client.wait(timeout=DEADLINE_S)
        ran = CommandResult(code, line, client.stderr.read().decode() if client.stderr else "")
    assert "Traceback" not in ran.err
    assert "BrokenPipe" not in ran.err
    return ran


def test_a_closed_output_keeps_the_job_and_the_exit_code(program: Program) -> None:
    program.script("endless.py", ENDLESS)
    program.script("long.py", "print('\\n'.join(f'{number} ' + 'x' * 50 for number in range(20_000)))\n")
    program.script("fails.py", "import sys\nfor _ in range(5):\n    print('line', flush=True)\nsys.exit(3)\n")
    program.run("up", "--workers", "1")

    ran = first_line(program, "train endless.py")
    assert (ran.code, ran.text) == (101, "worker-0 | line\n")
    assert "the reader of the output is gone; detached; job " in ran.err
    assert ran.err.splitlines()[-2:] == ["next:  fleet logs -f", "       fleet stop"]
    assert first_line(program, "logs").code == 101
    assert first_line(program, "logs -f -o json").code == 101
    assert first_line(program, "logs -f", both=True).code == 101
    assert first_line(program, "status -o json").code == 0
    assert program.tasks("worker-0")  # the job still runs
    program.run("stop", "--grace", "1s")
    assert first_line(program, "logs").code == 103

    program.run("train", "long.py")
    for command in ("logs", "logs -f", "logs -o json"):
        ran = first_line(program, command)
        assert ran.code == 0
        assert "error" not in ran.err.lower()

    assert program.run("train", "fails.py", code=100)
    ran = first_line(program, "logs")
    assert (ran.code, ran.text) == (100, "worker-0 | line\n")
    assert first_line(program, "up -o json").code == 0
    assert first_line(program, "down --yes -o json").code == 0
    assert not program.processes()
