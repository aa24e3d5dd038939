"""The session of docs/walkthrough.md: its commands, a shell in a pseudo-terminal, and how to compare the output."""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import itertools
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from tests.program import PROGRAM
from tests.screen import Emulator

PAGE = Path(__file__).parents[2] / "docs" / "walkthrough.md"
KILLED = "killed"
"""Marks a block of the page: its last command is killed after these lines of the logs, and its terminal is closed."""

_WIDTH, _HEIGHT = 80, 24
_DEADLINE_S = 180.0
_BLOCK = re.compile(r"```(\w+) ?(\w*)\n(.*?)```", re.DOTALL)
_PROMPT = re.compile(rb"\x1b\]133;D;(\d+)\x07")
_LOG = re.compile(r"(worker-\d|all 2) +\| (.*)")
_HIDDEN = re.compile(r"startup lines hidden|^waiting for SSH")  # printed anywhere; on a loaded machine
_STATE = re.compile(r"(──|TASK|HOST|worker-\d(?=  )|Ctrl-C|job (?=\S+  attempt)).*")


@dataclass(frozen=True)
class Step:
    """A command with its output, as the terminal shows it.

    Attributes:
        command: What the user types.
        lines: Rows of the terminal after the command.
        code: Exit code.
        is_killed: Whether the command is killed.
    """

    command: str
    lines: Sequence[str]
    code: int = 0
    is_killed: bool = False


def read_page() -> tuple[dict[str, str], list[Step]]:
    """Return the files of the page by name, and its commands with the output that it shows."""
    files, steps = {}, list[Step]()
    for language, mark, text in _BLOCK.findall(PAGE.read_text()):
        if language == "python":
            files[text.partition("\n")[0].removeprefix("# ")] = text
        elif language == "console":
            for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                command, *lines = part.splitlines()
                steps.append(Step(command, lines))
            if mark == KILLED:
                steps[-1] = replace(steps[-1], is_killed=True)
    return files, steps


class Shell:
    """A shell in a terminal of 80 columns; the directory of the user's home is the working directory."""

    def __init__(self, home: Path, environment: Mapping[str, str]) -> None:
        self._home = home
        self._environment = {
            **environment,
            "HOME": str(home),
            "PATH": os.pathsep.join((str(PROGRAM.parent), os.environ["PATH"])),
            "PS1": r"\[\e]133;D;$?\a\]$ ",  # the terminal ignores this sequence; it has the exit code
            "TERM": "xterm-256color",
        }
        self._open()

    def _open(self) -> None:
        self._terminal, slave = pty.openpty()
        try:
            fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", _HEIGHT, _WIDTH, 0, 0))
            self._shell = subprocess.Popen(
                ["bash", "--noprofile", "--norc", "--noediting", "-i"],
                cwd=self._home,
                env=self._environment,
                stdin=slave,
                stdout=slave,
                stderr=slave,
                start_new_session=True,
            )
        finally:
            os.close(slave)
        self._clear()
        self._read_until(self._prompts)

    def play(self, step: Step) -> Step:
        """Type a command of the page; return what the terminal shows."""
        self._clear()
        os.write(self._terminal, f"{step.command}\n".encode())
        if step.is_killed:
            lengths = {task: len(log) for task, log in log_lines(step).items()}

            def is_shown() -> bool:
                seen = self._seen(step)
                frame = bool(seen.lines) and _STATE.sub(r"\1", seen.lines[-1]) == _STATE.sub(r"\1", step.lines[-1])
                return frame and all(len(log) >= lengths[task] for task, log in log_lines(seen).items())

            self._read_until(lambda: is_shown() or self._prompts())
            seen = self._seen(step)
            self.close()
            self._open()
            return seen
        self._read_until(self._prompts)
        return self._seen(step)

    def _clear(self) -> None:
        self._output = b""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._emulator = Emulator(_WIDTH, _HEIGHT)

    def _prompts(self) -> list[bytes]:
        return _PROMPT.findall(self._output)

    def _seen(self, step: Step) -> Step:
        """Return the step with the rows between the command and the prompt."""
        rows = self._emulator.lines[1:] if step.is_killed else self._emulator.lines[1:-1]
        return replace(step, lines=rows, code=int((self._prompts() or [b"0"])[0]))

    def _read_until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + _DEADLINE_S
        while not condition():
            left = max(0.0, deadline - time.monotonic())
            assert select.select([self._terminal], [], [], left)[0], "\n".join(self._emulator.lines)
            data = os.read(self._terminal, 65536)
            self._output += data
            self._emulator.feed(self._decoder.decode(data))

    def close(self) -> None:
        """Kill the command that runs in the shell, and the shell; close the terminal."""
        children = psutil.Process(self._shell.pid).children(recursive=True)
        for process in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._shell.kill()
        self._shell.wait()
        psutil.wait_procs(children)
        os.close(self._terminal)


def log_lines(step: Step) -> dict[str, list[str]]:
    """Return the lines of each worker's log; the console shows lines that are equal on all workers once."""
    logs: dict[str, list[str]] = {"worker-0": [], "worker-1": []}
    for line in _unwrap(step.lines):
        if match := _LOG.match(line):
            for worker in logs if match[1] == "all 2" else [match[1]]:
                logs[worker].append(match[2])
    return logs


def difference(page: Step, actual: Step) -> str:
    """Return the first difference between the page and what the terminal shows; empty if they match.

    Numbers, job IDs, directories, and rows of live tables differ between runs, as does the order of lines of
    different workers. They are not compared. Of a killed command, the live table is not compared.
    """
    if actual.code != page.code:
        return f"exit code {actual.code}"
    pairs = itertools.zip_longest(_stable_lines(page), _stable_lines(actual), fillvalue="nothing")
    return next((f"expected {ours!r}, not {theirs!r}" for ours, theirs in pairs if ours != theirs), "")


def _stable_lines(step: Step) -> list[str]:
    # If both models were saved in the same second, one is equal to the other, and the longer line is wrapped.
    text = re.sub(
        r" \([\d,]+ more are equal to those of another task\)(.*, in)\n", r"\1 ", "\n".join(_unwrap(step.lines))
    )
    lines = text.split("\n")
    if step.is_killed:
        lines = list(itertools.takewhile(lambda line: not line.startswith("──"), lines))
    # In log lines, only the numbers differ. The progress of all workers is the same, their order is not.
    logs = [f"{worker} | {line}" for worker, log in log_lines(step).items() for line in log]
    others = [_STATE.sub(r"\1", line) for line in lines if not (_LOG.match(line) or _HIDDEN.search(line))]
    return [_normalize(line) for line in [*others, *logs]]


def _normalize(line: str) -> str:
    for pattern, text in (
        (r"/\S*/(digits|\.local)/", r"~/\1/"),
        (r"\b\d{8}-\d{6}-[a-z0-9]{4}\b", "JOB"),
        (r"\d[\d.:]*", "0"),
        (r"\b[KMGT]iB\b", "MiB"),
        (r"\b0 (min|h)\b", "0 s"),
        (r"\b0ms/(step|epoch)\b", r"0s/\1"),  # longer on a loaded machine
        (r" \(0 more are equal to those of another task\)", ""),  # if both models were saved in the same second
        (r" +", " "),
    ):
        line = re.sub(pattern, text, line)
    return line.rstrip()


def _unwrap(rows: Sequence[str]) -> list[str]:
    """Join the rows of each line that the terminal wrapped."""
    lines: list[str] = []
    previous = ""
    for row in rows:
        if len(previous) == _WIDTH and not _STATE.match(previous):
            lines[-1] += row
        elif previous.endswith(", in"):  # the directory did not fit
            lines[-1] += f" {row}"
        else:
            lines.append(row)
        previous = row
    return lines
