"""The installed program `fleet`, run as a user runs it, with a separate state directory for each test."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil

from provision.local.sshd import AGENTS_VARIABLE
from tests.fork_server import PROGRAM, start_command

__all__ = [
    "PROGRAM",
    "PYTHON",
    "THREADS",
    "CommandResult",
    "Program",
    "agents_environment",
    "catches_signals",
    "find_paths",
    "has_ended",
    "lines_of",
    "read_files",
    "set_default_signals",
    "task_config",
    "wait_for",
]

PYTHON = shlex.quote(sys.executable)
"""The interpreter of the tests, as it is written in a shell."""
DEADLINE_S = 90.0
"""Time limit of a wait. It only ends broken tests, so it is generous: the machine may be loaded."""
THREADS = tuple(
    word
    for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
    for word in ("--env", f"{name}=1")
)
"""Options of `fleet train` for one thread of each kind: the threads of several TensorFlow processes wait actively."""
T = TypeVar("T")


def agents_environment() -> dict[str, str]:
    """Return the variable for hosts that share the compiled agents of all tests; compiling one takes 0.4 s."""
    return {key: value for key, value in os.environ.items() if key == AGENTS_VARIABLE}


def wait_for(description: str, probe: Callable[[], T | None], deadline_s: float = DEADLINE_S) -> T:
    """Return the first value of `probe` that is neither None nor False; fail after the deadline.

    Args:
        description: Names the awaited state in the failure.
        probe: Called repeatedly; the pauses are longer the more a call costs, because tests run in parallel.
        deadline_s: Time limit.

    """
    deadline = time.monotonic() + deadline_s
    while (begun := time.monotonic()) < deadline:
        value = probe()
        if value is not None and value is not False:
            return value
        time.sleep(max(0.02, min(0.5, 10 * (time.monotonic() - begun))))
    raise AssertionError(f"waited {deadline_s} s for {description}")


def set_default_signals() -> None:
    """Let the processes that tests start have default signal handling.

    `nohup`, and a shell that starts a command in the background, make it ignore some signals. Processes inherit that
    through exec. They do not inherit a handler.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


def catches_signals(process: subprocess.Popen[Any]) -> bool:
    """Return whether a command, which was not waited for yet, has installed the last of its signal handlers."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")), "0")
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


def has_ended(process: psutil.Process) -> bool:
    """Return whether a process has ended, although its parent may not have waited for it yet."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def find_paths(directory: Path, pattern: str) -> list[Path]:
    """Return the sorted paths below a directory that match a pattern, while programs may remove directories."""
    while True:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return sorted(directory.glob(pattern))


def read_files(directory: Path) -> Iterator[tuple[Path, bytes]]:
    """Yield each file below a directory with its content, without those that programs remove meanwhile."""
    for path in find_paths(directory, "**/*"):
        content = None
        with contextlib.suppress(FileNotFoundError):
            content = path.read_bytes() if path.is_file() else None
        if content is not None:
            yield path, content


def _arguments_and_environment(pid: int) -> bytes:
    """Return what a process was started with; nothing if it has ended. psutil takes ten times the CPU time."""
    data = b""
    for name in ("cmdline", "environ"):
        with contextlib.suppress(OSError):
            data += Path(f"/proc/{pid}/{name}").read_bytes()
    return data


@dataclass(frozen=True)
class CommandResult:
    """The exit code and the output of one command."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode("utf-8", "replace")

    @property
    def messages(self) -> str:
        """Return the messages without those that name what takes more than 1.5 s on a busy computer."""
        return "".join(line for line in self.err.splitlines(True) if not line.startswith("waiting for "))

    @property
    def events(self) -> list[dict[str, Any]]:
        """Return the objects of ``-o json``, one per line; each must match the published schema."""
        from tests.docs.schema import check_event

        events = [json.loads(line) for line in self.out.splitlines()]
        for event in events:
            check_event(event)
        return events


@dataclass
class Program:
    """The program with its state directory.

    Attributes:
        state: FLEET_STATE_DIR.
        directory: Working directory of the commands.
        env: Variables in addition to those of the tests.
        started: The commands; those that still run at the end of a test are reported and ended.
    """

    state: Path
    directory: Path
    env: dict[str, str] = field(default_factory=dict)
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("FLEET_", "GOOGLE_"))}
        settings = {"FLEET_STATE_DIR": str(self.state), "PYTHONFAULTHANDLER": "1"}
        return {**inherited, **agents_environment(), **settings, **self.env, **(more or {})}

    def start(self, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        process = start_command(arguments, directory=self.directory, environment=self.environment(env))
        self.started.append(process)
        return process

    def run(
        self, *arguments: str, code: int | None = 0, timeout: float = 120, env: Mapping[str, str] | None = None
    ) -> CommandResult:
        """Run a command to its end; `code` is the expected exit code, None for any."""
        process = self.start(*arguments, env=env)
        return self.finish(process, code=code, timeout=timeout)

    @staticmethod
    def finish(process: subprocess.Popen[bytes], *, code: int | None = 0, timeout: float = 120) -> CommandResult:
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # faulthandler prints the stack of every thread
            out, err = process.communicate()
            raise AssertionError(f"no end within {timeout} s\n{err.decode()[-3000:]}") from None
        ran = CommandResult(process.returncode, out, err.decode("utf-8", "replace"))
        assert "Traceback (most recent call last)" not in ran.err, ran.err
        if code is not None:
            assert ran.code == code, f"exit code {ran.code}, not {code}\n{ran.text[-2000:]}\n{ran.err[-3000:]}"
        return ran

    def script(self, name: str, text: str) -> Path:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def host_file(self, pattern: str) -> Path:
        """Return the only file in the local hosts' directories that matches `pattern`."""
        matches = find_paths(self.state / "local", pattern)
        assert len(matches) == 1, f"{pattern}: {matches}"
        return matches[0]

    def log_of(self, task: str) -> Path:
        """Return the log of a task of the newest job, on its local host."""
        logs = find_paths(self.state / "local", f"*-{task}/fleet/jobs/*/{task}/attempt-1/log")
        return max(logs, key=lambda path: path.parent.stat().st_mtime)

    def processes(self) -> list[psutil.Process]:
        """Return all processes that belong to an instance of this state directory."""
        state = os.fsencode(self.state)
        processes = []
        for pid in psutil.pids():
            with contextlib.suppress(psutil.Error):
                if pid != os.getpid() and state in _arguments_and_environment(pid):
                    processes.append(psutil.Process(pid))
        return processes

    def tasks(self, task: str = "") -> list[psutil.Process]:
        """Return the running processes of user code, of one task if it is named."""
        processes = []
        for process in self.processes():
            try:
                env = process.environ()
                name = f"{env.get('FLEET_TASK_TYPE')}-{env.get('FLEET_TASK_INDEX')}"
                if "TF_CONFIG" in env and (not task or name == task):
                    processes.append(process)
            except psutil.Error:
                continue
        return processes

    def listeners(self, task: str = "") -> list[psutil.Process]:
        """Return the OpenSSH servers of the local fleet, without their sessions."""
        processes = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error):  # it may end meanwhile
                command = " ".join(process.cmdline())
                if "[listener]" in command and (not task or f"-{task}/" in command):
                    processes.append(process)
        return processes

    def end_clients(self) -> None:
        """End the commands that a failed test left running, and print their stacks."""
        for client in self.started:
            if not client.stdout or client.stdout.closed:
                continue
            client.send_signal(signal.SIGABRT)  # faulthandler prints the stack of every thread
            out, err = client.communicate()
            sys.stderr.write(
                f"{client.args!r} was left running, code {client.returncode}\n{out.decode()}\n{err.decode()}\n"
            )

    def close(self) -> None:
        """Delete all fleets; end all processes that a failed test left running."""
        self.end_clients()
        for name in [path.name for path in (self.state / "fleets").glob("*") if path.is_dir()]:
            self.run("down", "--yes", "--fleet", name, code=None)
        left = self.processes()
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        assert not left, f"left behind: {left}"


def task_config(env_dump: str) -> dict[str, Any]:
    """Return the TF_CONFIG of a line ``TF_CONFIG=…`` in a task's output."""
    line = next(line for line in env_dump.splitlines() if line.startswith("TF_CONFIG="))
    config: dict[str, Any] = json.loads(line.partition("=")[2])
    return config


def lines_of(ran: CommandResult, task: str) -> Sequence[str]:
    """Return the lines that one task printed, alone or with all others, from a merged log with prefixes."""
    lines = [line.partition(" | ") for line in ran.text.split("\n")]
    return [text for name, _, text in lines if name == task or (name.startswith("all ") and name[4:].isdigit())]
