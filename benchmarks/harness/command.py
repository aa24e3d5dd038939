"""Runs a command with a time limit, and measures it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from benchmarks.harness.model import Sample

TIMEOUT_S = 120.0
_MEMORY_S = 0.03
_TICKS = os.sysconf("SC_CLK_TCK")
_CORES = os.cpu_count() or 1


class CommandError(Exception):
    """A command failed, or exceeded its time limit."""


class Reader(Protocol):
    """Receives the output of a command while it runs."""

    def feed(self, data: bytes, now: float) -> None:
        """Take bytes that arrived at `now`, in seconds since the epoch."""

    def sample(self) -> Sample:
        """Return what was measured."""


def environment(**variables: str) -> dict[str, str]:
    """Return this environment with other variables, and without those that change how programs start."""
    dropped = ("PYTHONDONTWRITEBYTECODE", "FLEET_NAME", "SSH_AUTH_SOCK")
    return {**{key: value for key, value in os.environ.items() if key not in dropped}, **variables}


def end(process: subprocess.Popen[bytes], grace_s: float = 2.0) -> None:
    """End the session of a process: SIGTERM, then SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except (ProcessLookupError, PermissionError):
            break
        try:
            process.wait(grace_s)
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def busy_s() -> float:
    """Return the CPU seconds that all programs of this computer have used."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _, _, interrupts, soft = (int(field) for field in fields[:7])
    return (user + nice + system + interrupts + soft) / _TICKS


def run(
    arguments: Sequence[str],
    *,
    env: Mapping[str, str],
    codes: Sequence[int] = (0,),
    timeout_s: float = TIMEOUT_S,
    host_cpu: Callable[[], float] | None = None,
    reader: Reader | None = None,
) -> Sample:
    """Run a command; return its wall time, CPU time, memory, and the values of `reader`.

    Args:
        arguments: The command.
        env: Its environment.
        codes: Exit codes of success.
        timeout_s: Time limit.
        host_cpu: Returns the CPU seconds of the hosts.
        reader: Receives standard output.

    Raises:
        CommandError: The command failed, or exceeded the time limit.
    """
    with tempfile.TemporaryFile() as errors:
        host_before, busy_before = host_cpu() if host_cpu else 0.0, busy_s()
        begin = time.perf_counter()
        process = subprocess.Popen(
            arguments,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if reader else subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
        expired, ended = threading.Event(), threading.Event()
        peak_kb = [0]
        threading.Thread(target=_watch_memory, args=(process.pid, ended, peak_kb), daemon=True).start()
        timer = threading.Timer(timeout_s, _kill, (process.pid, expired))
        timer.start()
        try:
            if reader and process.stdout:
                _read(process.stdout.fileno(), reader)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        finally:
            timer.cancel()
            ended.set()
            if process.returncode is None:
                end(process)
            if process.stdout:
                process.stdout.close()
        wall = time.perf_counter() - begin
        busy = busy_s() - busy_before
        if expired.is_set() or process.returncode not in codes:
            end_of = f"exceeded {timeout_s:g} s" if expired.is_set() else f"ended with {process.returncode}"
            errors.seek(0)
            text = " ".join(errors.read()[-400:].decode(errors="replace").split())
            raise CommandError(f"{Path(arguments[0]).name} {end_of}: {text}")
    cpu = usage.ru_utime + usage.ru_stime
    sample = {"wall": wall, "client_cpu": cpu, "memory": peak_kb[0] / 1024}
    if host_cpu:
        sample["host_cpu"] = host_cpu() - host_before
        sample["other"] = max(0.0, 100 * (busy - cpu - sample["host_cpu"]) / wall / _CORES)
    return {**sample, **(reader.sample() if reader else {})}


def _kill(group: int, expired: threading.Event) -> None:
    expired.set()
    os.killpg(group, signal.SIGKILL)


def _watch_memory(pid: int, ended: threading.Event, peak_kb: list[int]) -> None:
    """Follow the peak of a process's memory. The one in its resource usage begins with that of this program."""
    pattern = re.compile(r"^VmHWM:\s+(\d+)", re.MULTILINE)
    while not ended.wait(_MEMORY_S):
        with contextlib.suppress(OSError):
            if match := pattern.search(Path(f"/proc/{pid}/status").read_text()):
                peak_kb[0] = int(match[1])


def _read(descriptor: int, reader: Reader) -> None:
    while data := os.read(descriptor, 1 << 20):
        reader.feed(data, time.time())
