"""Run a command with a time limit, and measure it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PEERS = {"ansible-playbook": "ansible-core", "rsync": "rsync", "pdsh": "pdsh", "ip": "iproute2", "tc": "iproute2"}
"""Programs to compare with, and their packages: of PyPI for ansible, of Debian for the others."""
TIMEOUT_S = 240.0
_PYTHON_PEERS = ROOT / ".bench"
_PROGRAMS = os.pathsep.join((os.environ.get("PATH", os.defpath), str(_PYTHON_PEERS / "bin"), "/usr/sbin", "/sbin"))


class MeasureError(Exception):
    """A program is missing, failed, or exceeded its time limit."""


@dataclass(frozen=True)
class Run:
    """Values of one run of a command.

    Attributes:
        seconds: Wall time.
        memory_mb: Peak of its memory.
        lines_per_s: Lines of its output, from the first to the last byte.
    """

    seconds: float
    memory_mb: float
    lines_per_s: float


def find(name: str) -> str:
    """Return the path of a program.

    Raises:
        MeasureError: it is not installed.
    """
    path = shutil.which(name, path=_PROGRAMS)
    if path is None:
        raise MeasureError(f"{name} is not installed")
    return path


def install_peers() -> None:
    """Install the programs that are missing; rows report those that could not be installed."""
    missing = {package for name, package in PEERS.items() if shutil.which(name, path=_PROGRAMS) is None}
    commands = []
    if "ansible-core" in missing:
        pip = [str(_PYTHON_PEERS / "bin" / "python"), "-m", "pip", "install", "--quiet", "ansible-core"]
        commands += [[sys.executable, "-m", "venv", "--clear", str(_PYTHON_PEERS)], pip]
    if packages := sorted(missing - {"ansible-core"}):
        root = ["sudo", "-n"] if os.geteuid() else []
        apt = [*root, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq"]
        commands += [[*apt, "update"], [*apt, "install", "-y", "--no-install-recommends", *packages]]
    for command in commands:
        print(f"installing: {' '.join(command)}", flush=True)
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(command, check=False, stdout=subprocess.DEVNULL, timeout=300)


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return this environment with other variables, and without those that change how programs start."""
    dropped = ("PYTHONDONTWRITEBYTECODE", "FLEET_NAME", "SSH_AUTH_SOCK")
    return {**{key: value for key, value in os.environ.items() if key not in dropped}, **variables}


def end(process: subprocess.Popen[bytes]) -> None:
    """End the session of a process: SIGTERM, after 2 seconds SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(2)
            return
    process.wait()


@contextlib.contextmanager
def started(
    commands: Sequence[Sequence[str]], variables: Sequence[Mapping[str, str]]
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run commands in the background, each in a session of its own, as in a terminal; end them after the block."""
    nothing = subprocess.DEVNULL
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for command, more in zip(commands, variables, strict=True):
            processes.append(
                subprocess.Popen(
                    command, env=environment(more), stdin=nothing, stdout=nothing, stderr=nothing,
                    start_new_session=True,
                )
            )  # fmt: skip
        yield processes
    finally:
        for process in processes:
            end(process)


def run(command: Sequence[str], variables: Mapping[str, str], *, codes: Sequence[int] = (0,), lines: int = 0) -> Run:
    """Run a command to its end.

    Args:
        command: The command.
        variables: Variables of its environment.
        codes: Exit codes of success.
        lines: Number of lines that its output must have at least.

    Raises:
        MeasureError: it failed, exceeded the time limit, or wrote too few lines.
    """
    with tempfile.TemporaryFile() as errors:
        begin = time.perf_counter()
        process = subprocess.Popen(
            command, env=environment(variables), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
            start_new_session=True,
        )  # fmt: skip
        timer = threading.Timer(TIMEOUT_S, os.killpg, (process.pid, signal.SIGKILL))
        timer.start()
        assert process.stdout is not None
        try:
            count, output_s = _count_lines(process.stdout.fileno())
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        finally:
            timer.cancel()
            process.stdout.close()
            if process.returncode is None:
                end(process)
        seconds = time.perf_counter() - begin
        if process.returncode not in codes:
            errors.seek(0)
            text = " ".join(errors.read()[-400:].decode(errors="replace").split())
            raise MeasureError(
                f"{Path(command[0]).name} ended with {process.returncode} after {seconds:.0f} s: {text}"
            )
    if count < lines:
        raise MeasureError(f"{count} of {lines} lines arrived")
    return Run(seconds, usage.ru_maxrss / 1024, count / output_s)


def _count_lines(descriptor: int) -> tuple[int, float]:
    """Read until the end; return the number of lines, and the seconds from the first to the last byte."""
    count, first, last = 0, 0.0, 0.0
    while data := os.read(descriptor, 1 << 20):
        last = time.perf_counter()
        first = first or last
        count += data.count(b"\n")
    return count, max(last - first, 1e-3)


def wait_until(is_true: Callable[[], bool], description: str, pause_s: float = 0.002) -> None:
    """Wait for a state, which is read again after a pause.

    Raises:
        MeasureError: it did not occur.
    """
    deadline = time.monotonic() + TIMEOUT_S
    while not is_true():
        if time.monotonic() > deadline:
            raise MeasureError(f"waited {TIMEOUT_S:.0f} s for {description}")
        time.sleep(pause_s)
