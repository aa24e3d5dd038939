"""Run the ssh program for a session that the user controls: its terminal, its signals, and its exit code.

A shell needs a terminal with its size, job control, and escape characters; ssh has all of them.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from fleet.errors import NotReadyError
from fleet.steps import step_of
from provision.openssh import install_openssh

FAILED = 255
"""Exit code of ssh without a connection; also that of a remote command that exits with it."""

_OPTIONS = (
    "ConnectTimeout=10",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=4",
    "PasswordAuthentication=no",
    "KbdInteractiveAuthentication=no",
)
_SIGNAL = 128  # exit code of a program that a signal ended, as in a shell


def find_ssh() -> str:
    """Return the path of ssh.

    Raises:
        NotReadyError: it is not installed.
    """
    path = shutil.which("ssh")
    if path is None:
        raise NotReadyError(
            "the OpenSSH client is not installed on this computer: ssh is not on the PATH",
            hint="fleet exec runs commands without it",
            next_steps=[step_of(command) for command in install_openssh("client")],
        )
    return path


def remote_command(words: Sequence[str]) -> str:
    """Return the command line that runs a program on a host; its words reach the program unchanged."""
    return f"exec {shlex.join(words)}" if words else ""


def ssh_command(
    ssh: str, config: Path, name: str, command: str, *, input_terminal: bool, terminal: bool
) -> list[str]:
    """Return the command of a session.

    Args:
        ssh: Path of ssh.
        config: The only SSH configuration that is read.
        name: Name of the host in it.
        command: Command line for the shell of the host; empty: an interactive shell.
        input_terminal: The input of this program is a terminal.
        terminal: Input and output are terminals.
    """
    allocates = terminal if command else input_terminal
    options = [f"-o{option}" for option in (*_OPTIONS, *(["LogLevel=ERROR"] if command else []))]
    words = [ssh, "-F", str(config), "-t" if allocates else "-T", *options, name]
    return [*words, "--", command] if command else words


def run_session(command: Sequence[str]) -> int:
    """Run ssh with the input and output of this program.

    Returns:
        The exit code: that of the remote shell or command, or 128 and the number of the signal that ended ssh.

    Raises:
        KeyboardInterrupt: this program was interrupted; ssh has ended.
    """
    process = subprocess.Popen(list(command))
    try:
        return _wait(process)
    except KeyboardInterrupt:
        process.terminate()  # ssh restores the terminal
        process.wait()
        raise


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Wait for the end of ssh; if it is stopped (``~^Z``), stop this program, so that the user's shell continues."""
    while True:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            code = os.waitstatus_to_exitcode(status)
            process.returncode = code
            return code if code >= 0 else _SIGNAL - code
        os.kill(os.getpid(), signal.SIGSTOP)
        process.send_signal(signal.SIGCONT)
