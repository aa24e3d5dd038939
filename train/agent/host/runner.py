"""Run a program for a request: read its lines, report progress to the client, and end it with the client."""

from __future__ import annotations

import os
import select
import signal
import time
from typing import Callable, Dict, List, Optional, Sequence, Tuple

from train.agent.host.processes import decode_exit, signal_group
from train.agent.host.spawn import spawn
from train.agent.protocol.channel import Channel
from train.agent.protocol.errors import RefusedError
from train.agent.protocol.records import BootstrapStep, Exit, Refusal

BEAT_S = 5.0  # the client hears of us at least so often
_SPACING_S = 0.2  # between two steps that differ only in numbers
_TICK_S = 0.2
_AT_ONCE = 1 << 16
_LONGEST = 1 << 16  # bytes of a line; what follows is another one


class OverdueError(Exception):
    """A program made no progress in time."""


class Steps:
    """Report the progress of a request to the client.

    Args:
        channel: To the client.
    """

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.step = ""
        self._newest = BootstrapStep("")
        self._sent = self._newest
        self._sent_at = 0.0

    def report_step(self, step: str, detail: str = "", part: int = 0, whole: int = 0) -> None:
        """Set the current step; it is sent at once if `step` is new, otherwise within a few ticks.

        Raises:
            ClientGoneError: the client disconnected.
        """
        self.step = step
        self._newest = BootstrapStep(step, detail, part, whole)
        if step != self._sent.step:
            self._send()
        else:
            self.tick()

    def tick(self) -> None:
        """Send a new step, or a sign of life; must be called often.

        Raises:
            ClientGoneError: the client disconnected.
        """
        since = time.monotonic() - self._sent_at
        if since >= (BEAT_S if self._newest == self._sent else _SPACING_S):
            self._send()

    def pause(self, seconds: float) -> None:
        """Sleep, and keep reporting.

        Raises:
            ClientGoneError: the client disconnected.
            RefusedError: the client sends another request.
        """
        poll = select.poll()
        poll.register(self.channel.fileno(), select.POLLIN)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if poll.poll(min(_TICK_S, seconds) * 1000):
                self.handle_input()
            self.tick()

    def handle_input(self) -> None:
        """Handle input that arrives while the client should only listen.

        Raises:
            ClientGoneError: it is gone.
            RefusedError: it sends another request.
        """
        if self.channel.received() is not None:
            raise RefusedError(Refusal.REQUEST, f"something else came while {self.step}")

    def _send(self) -> None:
        self.channel.send(self._newest)
        self._sent, self._sent_at = self._newest, time.monotonic()


def run(
    command: Sequence[str],
    env: Dict[str, str],
    directory: str,
    steps: Steps,
    *,
    deadline_s: float,
    on_lines: Callable[[List[str]], Optional[bool]],
) -> Exit:
    """Run `command` in `directory` to its end, in its own process group that ends with this call.

    Args:
        command: What to run.
        env: All of its environment.
        directory: Its working directory.
        steps: Reports the progress.
        deadline_s: Longest time without progress.
        on_lines: Called at least every 0.2 s with the new lines of output; returns True on progress.

    Raises:
        OverdueError: the deadline has passed.
        ClientGoneError: the client is gone.
        RefusedError: the client sends another request.
        OSError: it cannot be started.
    """
    spawned = spawn(command, env, directory, umask=0o077, gated=False)
    poll, client = select.poll(), steps.channel.fileno()
    for fd in (spawned.output, client):
        poll.register(fd, select.POLLIN)
    rest, status = b"", None
    try:
        end = time.monotonic() + deadline_s
        while True:
            ready = dict(poll.poll((_TICK_S if status is None else _TICK_S / 20) * 1000))
            if client in ready:
                steps.handle_input()
            data = _read(spawned.output, poll) if spawned.output in ready else b""
            is_over = status is not None and not data
            status = _poll_status(spawned.pid) if status is None else status
            lines, rest = _split(rest + data, is_over=is_over)
            if on_lines(lines):
                end = time.monotonic() + deadline_s
            if is_over and status is not None:
                return decode_exit(status)
            if time.monotonic() > end:
                raise OverdueError
            steps.tick()
    finally:
        signal_group(spawned.pid, signal.SIGKILL)
        if status is None:
            os.waitpid(spawned.pid, 0)
        os.close(spawned.output)


def _read(output: int, poll: select.poll) -> bytes:
    """Return output that has come; at its end, stop waiting for more."""
    data = os.read(output, _AT_ONCE)
    if not data:
        poll.unregister(output)
    return data


def _poll_status(pid: int) -> Optional[int]:
    """Return the status of a process that has ended."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    return status if ended else None


def _split(data: bytes, *, is_over: bool) -> Tuple[List[str], bytes]:
    """Return the lines in output, and the beginning of a line that is not complete."""
    *lines, rest = data.replace(b"\r", b"\n").split(b"\n")
    if rest and (is_over or len(rest) > _LONGEST):
        lines.append(rest)
        rest = b""
    return [line.decode("utf-8", "replace") for line in lines], rest


def run_quietly(
    command: Sequence[str], env: Dict[str, str], steps: Steps, deadline_s: float
) -> Tuple[Optional[Exit], List[str]]:
    """Run `command` for at most `deadline_s`; return its end, None if it took longer, and its output.

    Raises:
        ClientGoneError: the client is gone.
        RefusedError: the client sends another request.
        OSError: it cannot be started.
    """
    lines: List[str] = []
    try:
        # list.extend returns None: output is not progress.
        return run(command, env, "/", steps, deadline_s=deadline_s, on_lines=lines.extend), lines
    except OverdueError:
        return None, lines
