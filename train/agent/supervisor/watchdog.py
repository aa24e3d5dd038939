"""Watchdog: restart the supervisor of a slot and end its processes if it is killed or stopped.

The watchdog does nothing else, so that nothing else can end it. It exits last.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from functools import partial
from typing import TYPE_CHECKING, Callable, List, NoReturn, Optional

from train.agent.files.disk import remove_scratch
from train.agent.files.paths import TaskPaths
from train.agent.gang.states import DesiredState, from_line, to_line
from train.agent.host.processes import end_leftovers, read_stat, receive_signals
from train.agent.host.spawn import adopt_orphans, end_with, fork_released
from train.agent.protocol.records import NO_REASON, Reason, ReasonKind

if TYPE_CHECKING:
    from typing import TypeAlias

_LONGEST = 1 << 20
_MAX_SUPERVISORS = 20
_AT_ONCE = 1 << 16


class Watchdog:
    """Connection of the supervisor to its watchdog.

    Args:
        pid: Of the watchdog.
        line: To it.
    """

    def __init__(self, pid: int, line: socket.socket) -> None:
        self.pid = pid
        self._line = line
        self._last: Optional[DesiredState] = None

    def remember(self, order: DesiredState) -> None:
        """Store the last desired state for the next supervisor."""
        if order != self._last:
            self._last = order
            self._send(b"order " + to_line(order), [])

    def keep(self, output: int, log: str) -> None:
        """Store the pipe of a task's output, and the log to which unread output belongs."""
        self._send(b"output " + os.fsencode(log), [output])

    def _send(self, data: bytes, descriptors: List[int]) -> None:
        with contextlib.suppress(OSError):
            socket.send_fds(self._line, [data], descriptors)


class _SupervisorState:
    """State of the supervisor that the watchdog keeps."""

    def __init__(self) -> None:
        self.order: Optional[DesiredState] = None
        self._output = -1
        self._log = ""

    def receive(self, line: socket.socket) -> bool:
        """Handle a message of the supervisor; return False if it has ended."""
        try:
            data, descriptors, _, _ = socket.recv_fds(line, _LONGEST, 1)
        except OSError:
            return False
        kind, _, rest = data.partition(b" ")
        if kind == b"order":
            self.order = from_line(rest)
        elif kind == b"output" and descriptors:
            self.close()
            self._output, self._log = descriptors[0], os.fsdecode(rest)
        return bool(data)

    def save(self) -> None:
        """Append the unread output of the task to its log."""
        if self._output < 0:
            return
        os.set_blocking(self._output, False)
        with open(self._log, "ab", opener=partial(os.open, mode=0o600)) as log, contextlib.suppress(BlockingIOError):
            while data := os.read(self._output, _AT_ONCE):
                log.write(data)
        self.close()

    def close(self) -> None:
        """Close the pipe."""
        if self._output >= 0:
            os.close(self._output)
            self._output = -1


Supervise: TypeAlias = "Callable[[Watchdog, Optional[DesiredState], Reason], None]"


def watch(paths: TaskPaths, slot: str, stopped_s: float, supervise: Supervise, release: Callable[[], None]) -> None:
    """Run a supervisor until it ends by itself; replace one that is killed or stopped for too long.

    Args:
        paths: Paths of the slot.
        slot: Its name.
        stopped_s: For how long a supervisor may be stopped, as by SIGSTOP.
        supervise: Called in a process of its own with its line to us, the last order that the one before had, and why
            it is gone.
        release: Called here before a supervisor begins; closes what only the supervisor may hold.
    """
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    adopt_orphans()
    changes = receive_signals([signal.SIGCHLD])
    state = _SupervisorState()
    reason = NO_REASON
    for _ in range(_MAX_SUPERVISORS):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        watchdog = os.getpid()
        pid = fork_released(release)
        if pid == 0:
            ours.close()
            state.close()
            _run_supervisor(Watchdog(watchdog, theirs), state.order, reason, supervise)
        theirs.close()
        signal.signal(signal.SIGTERM, partial(_forward_signal, pid))
        with ours:
            status = _await_end(pid, ours, changes, state, stopped_s)
        if status == 0 or state.order is None:
            remove_scratch(paths.scratch)
            return
        end_leftovers(paths)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # what the supervisor left behind
                continue
        state.save()
        if os.WIFSIGNALED(status):
            reason = Reason(f"the agent of {slot} was killed", ReasonKind.AGENT_KILLED)
        else:
            reason = Reason(f"the agent of {slot} broke off")
        os.write(2, f"{reason.text}, with status {status}\n".encode())


def _forward_signal(pid: int, number: int, _: object) -> None:
    os.kill(pid, number)


def _run_supervisor(
    watchdog: Watchdog, last: Optional[DesiredState], reason: Reason, supervise: Supervise
) -> NoReturn:
    code = 1
    try:
        if end_with(watchdog.pid):
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            supervise(watchdog, last, reason)
            code = 0
    except BaseException:  # noqa: BLE001 - report the error of a process without a parent that could
        import traceback

        os.write(2, traceback.format_exc().encode("utf-8", "backslashreplace"))
    finally:
        os._exit(code)


def _await_end(pid: int, line: socket.socket, changes: int, state: _SupervisorState, stopped_s: float) -> int:
    """Handle the messages of a supervisor until it ends, and kill it if it is stopped for too long.

    Args:
        pid: Of the supervisor.
        line: To it.
        changes: Readable after SIGCHLD, which the kernel also sends when a child is stopped or continues.
        state: Of the supervisor.
        stopped_s: For how long it may be stopped.

    Returns:
        Its status, as waitpid(2) returns it.
    """
    poll = select.poll()
    poll.register(line, select.POLLIN)
    poll.register(changes, select.POLLIN)
    kill_at: Optional[float] = None
    while True:
        left_s = None if kill_at is None else max(0.0, kill_at - time.monotonic())
        ready = [fd for fd, _ in poll.poll(None if left_s is None else left_s * 1000)]
        if changes in ready:
            os.read(changes, _AT_ONCE)
        if line.fileno() in ready and not state.receive(line):
            return os.waitpid(pid, 0)[1]
        stat = read_stat(pid)
        if stat is None or stat.state != "T":
            kill_at = None
        elif kill_at is None:
            kill_at = time.monotonic() + stopped_s
        elif time.monotonic() >= kill_at:
            kill_at = None
            os.kill(pid, signal.SIGKILL)
