"""Test the shell command that runs a program on a host, as sshd runs it: as the leader of a session."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE

import psutil
import pytest

from tests.process.train.agent.hosts import alive
from tests.program import wait_for
from train.run_command import run_command

SHELLS = [
    pytest.param(name, marks=pytest.mark.skipif(not shutil.which(name), reason=name)) for name in ("sh", "bash")
]


def start(shell: str, *program: str) -> subprocess.Popen[bytes]:
    command = run_command(program).replace("exec sh", f"exec {shell}", 1)
    return subprocess.Popen(["sh", "-c", command], stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True)


def result(shell: str, *program: str) -> tuple[int, bytes, bytes]:
    """Return exit code and output; the input ends after the program, as that of sshd."""
    with start(shell, *program) as running:
        assert running.stdout
        assert running.stderr
        output, errors = running.stdout.read(), running.stderr.read()
        return running.wait(), output, errors


def test_every_login_shell_passes_the_command_on() -> None:
    command = run_command(["a b", "c"])
    script = command[command.index("'") + 1 : command.rindex("' sh 'a b' c")]
    assert not re.search(r"['!\n\\]", script)


@pytest.mark.parametrize("shell", SHELLS)
def test_the_program_determines_output_and_exit_code(shell: str, tmp_path: Path) -> None:
    assert result(shell, "printf", "%s|", "a b", "$HOME", "it's", r"\n") == (0, rb"a b|$HOME|it's|\n|", b"")
    assert result(shell, "echo", r"a\nb") == (0, b"a\\nb\n", b"")  # the program, not the command of the shell
    assert result(shell, "sh", "-c", "cat; echo fails >&2; exit 7") == (7, b"", b"fails\n")
    assert result(shell, "sh", "-c", "kill -KILL $$") == (137, b"", b"")
    assert result(shell, "nosuch") == (127, b"", b"nosuch: command not found\n")
    assert result(shell, f"{tmp_path}/nosuch") == (127, b"", f"{tmp_path}/nosuch: command not found\n".encode())
    assert result(shell, str(tmp_path)) == (126, b"", f"{tmp_path}: Permission denied\n".encode())
    (tmp_path / "data").touch(0o600)
    assert result(shell, f"{tmp_path}/data") == (126, b"", f"{tmp_path}/data: Permission denied\n".encode())


@pytest.mark.parametrize("shell", SHELLS)
def test_the_program_inherits_neither_signals_nor_descriptors(shell: str) -> None:
    words = ("grep", "-E", "SigIgn|SigBlk", "/proc/self/status")
    assert result(shell, *words)[1] == subprocess.run(words, capture_output=True, check=True).stdout
    code, descriptors, _ = result(shell, "ls", "/proc/self/fd")
    assert (code, descriptors.split()) == (0, [b"0", b"1", b"2", b"3"])  # the last one is that of ls


@pytest.mark.parametrize("shell", SHELLS)
def test_all_processes_end_with_the_connection(shell: str) -> None:
    program = start(shell, "sh", "-c", "trap '' TERM; sleep 600 & trap - TERM; echo $!; exec >&-; sleep 600")
    assert program.stdin
    assert program.stdout
    child = int(program.stdout.readline())
    program.stdin.close()
    assert program.wait(30) == 143
    wait_for("the end of a process that ignores SIGTERM", lambda: not alive(child))
    program.stdout.close()
    assert program.stderr
    program.stderr.close()


@pytest.mark.parametrize("shell", SHELLS)
def test_processes_that_the_program_leaves_keep_running(shell: str) -> None:
    code, output, _ = result(shell, "sh", "-c", "sleep 600 > /dev/null 2>&1 & echo $!")
    child = int(output)
    try:
        wait_for("the end of the shells", lambda: _group(child) == {"sleep"} or None)
        assert code == 0
        assert alive(child)
    finally:
        os.kill(child, 9)


def _group(child: int) -> set[str]:
    """Return the names of the running processes in the process group of a process."""
    group = os.getpgid(child)
    names = set()
    for each in psutil.process_iter():
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            if os.getpgid(each.pid) == group and each.status() != psutil.STATUS_ZOMBIE:
                names.add(each.name())
    return names
