"""The process of a task: start, read, stop, and reap it with all of its descendants."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import time
from typing import AbstractSet, Callable, Dict, List, NamedTuple, Optional, Sequence, Set

from train.agent.host import processes
from train.agent.host.loop import READ, Loop
from train.agent.host.spawn import STACKS_SIGNAL, Spawned, open_gate, spawn
from train.agent.protocol.records import NO_REASON, Exit, HangInspection, Reason, ReasonKind
from train.agent.supervisor.inspection import inspect_process
from train.agent.supervisor.observations import split_reports
from train.agent.supervisor.oom import OomWatch
from train.agent.supervisor.warm import WarmTask, receive_exit

# Descendants of a task may write for this time after the task itself has ended.
LINGER_S = 2.0
# From the signal until all stacks are there, and after the last byte of them: faulthandler writes many small parts.
STACKS_S = 2.0
_QUIET_S = 0.5
# From SIGTERM until SIGKILL for a process that handles the signal only because TensorFlow does.
UNHANDLED_S = 2.0
_MOST_STACKS = 1 << 18  # bytes
_AGAIN_S = 0.02  # the kernel does not report the end of a grandchild
_REAP_S = 5.0
_AT_ONCE = 1 << 18
_PIPE_SIZE = 1 << 20
_SET_PIPE_SIZE = 1031  # F_SETPIPE_SZ, fcntl(2)


class TaskEvents(NamedTuple):
    """Called when something happens to a task."""

    output: Callable[[bytes], None]  # as it comes
    exit: Callable[[Exit], None]  # once when it has ended
    closed: Callable[[], None]  # once when all output is read after that, and no process descends from it
    held: Callable[[], None]  # once when it waits at its gate
    report: Callable[[bytes], None]  # of the hook, see train.agent.injected.observer


class TaskProcess:
    """One process of one task.

    Args:
        loop: Event loop that serves it.
        events: Called when something happens.
        directory: Of the task.
        is_helper: Returns True for a child process of this process that is not part of the task.

    Attributes:
        output: Read end of the output pipe; negative after its end.
        forked: A task that was forked from another process, and is not our child; None: it is.
        reason: The cause of its end if it is known, as a completion of "it was …"; set before `events.exit`.
        killed: SIGKILL was sent to it, or to another process of the task.
    """

    def __init__(
        self, loop: Loop, events: TaskEvents, directory: str = "", is_helper: Callable[[int], bool] = lambda _: False
    ) -> None:
        self._loop = loop
        self._events = events
        self._directory = directory
        self._is_helper = is_helper
        self.output = self._gate = self._hook_pipe = -1
        self._cut_report = b""
        self._stack_requests: List[Callable[[str], None]] = []
        self._stacks = bytearray()
        self._reap_attempts = 0
        self._kill_at = 0.0
        self._is_ended = False  # by SIGKILL in place of SIGTERM
        self.pid = 0
        self.forked: Optional[WarmTask] = None
        self.exit: Optional[Exit] = None
        self.closed = False
        self.killed = False
        self.released = False
        self.reason = NO_REASON

    def start(self, command: Sequence[str], env: Dict[str, str], directory: str, umask: int, hook: str = "") -> None:
        """Start the process and hold it before its exec; its interpreters run the hook in that directory.

        Raises:
            OSError: no process can be made.
        """
        self._take(spawn(command, env, directory, umask=umask, gated=True, hook=hook))

    def adopt(self, task: WarmTask) -> None:
        """Take over a task that was forked and comes to its gate."""
        self.forked = task
        self._loop.watch(task.connection.fileno(), READ, lambda _: self._read_exit(task.connection))
        self._take(task.spawned)

    def _read_exit(self, connection: socket.socket) -> None:
        status = receive_exit(connection)
        if status is None:
            return
        self._loop.unwatch(connection.fileno())
        if status < 0:  # the parent process of the task was killed
            processes.signal_group(self.pid, signal.SIGKILL)
            status = int(signal.SIGKILL)
        if self.exit is None:
            self.record_exit(status)

    def _take(self, spawned: Spawned) -> None:
        self._spawned = spawned
        self.pid, self.output, self._gate, self._hook_pipe, _ = spawned
        self._oom = OomWatch(self.pid)
        with contextlib.suppress(OSError):  # over the user's limit for pipes
            fcntl.fcntl(self.output, _SET_PIPE_SIZE, _PIPE_SIZE)
        self._loop.watch(self.output, READ, lambda _: self._read())
        if self._hook_pipe >= 0:
            self._loop.watch(self._hook_pipe, READ, lambda _: self._read_hook())
        self._loop.after("held", 0.0, self._events.held)

    def release(self, start_at: float = 0.0) -> None:
        """Open the gate at a time of the monotonic clock; at once if it is past."""
        if self.held and self.exit is None:
            self._gate = -1
            self.released = True
            open_gate(self._spawned, start_at)

    @property
    def held(self) -> bool:
        """Return True if the process waits at its gate."""
        return self._gate >= 0

    @property
    def never_ran(self) -> bool:
        """Return True if the process was killed before its gate was opened: no user code ran."""
        return self.killed and not self.released

    @property
    def needed_sigkill(self) -> bool:
        """Return True if user code ran until SIGKILL; False if only other processes of the task were killed."""
        return self.killed and self.released and self.exit is not None and self.exit.signal == signal.SIGKILL

    # --- stacks -----------------------------------------------------------------------------------------------------

    def inspect(self, on_done: Callable[[HangInspection], None]) -> None:
        """Inspect what the task is doing; `on_done` is called once, within little more than two seconds."""
        pid, began = self._find_stack_process(), time.monotonic()
        before = processes.read_stat(pid)
        self.dump_stacks(lambda stacks: on_done(inspect_process(pid, stacks, before, time.monotonic() - began)))

    def dump_stacks(self, on_done: Callable[[str], None]) -> None:
        """Request the stacks of all Python threads; `on_done` is called once, within two seconds.

        The text is faulthandler's, and empty if the process cannot answer: it has no hook, is stopped, or is
        stuck in the kernel.
        """
        self._stack_requests.append(on_done)
        if len(self._stack_requests) == 1:
            self._stacks.clear()
            target = self._find_stack_process()
            is_requested = self._can_dump_stacks(target) and processes.signal_all([target], STACKS_SIGNAL)
            self._loop.after("stacks", STACKS_S if is_requested else 0.0, self._deliver_stacks)

    def _find_stack_process(self) -> int:
        """Return the process whose stacks to read: the task's own, or the busiest interpreter below it."""
        if self._can_dump_stacks(self.pid):
            return self.pid
        table = processes.list_processes()
        candidates = [pid for pid in processes.descendants(self.pid, table) if self._can_dump_stacks(pid)]
        return max(candidates, key=lambda pid: table[pid].ticks, default=self.pid)

    def _can_dump_stacks(self, pid: int) -> bool:
        """Return True if the process handles our signal, which would end any other process, and has our pipe."""
        stat = processes.read_stat(pid)
        if self._hook_pipe < 0 or self.exit is not None or stat is None or stat.state not in "RSD":
            return False
        try:
            their_pipe = os.readlink(f"/proc/{pid}/fd/{self._spawned.line_end}")
        except OSError:
            return False
        return their_pipe == os.readlink(f"/proc/self/fd/{self._hook_pipe}") and processes.handles_signal(
            pid, STACKS_SIGNAL
        )

    def _read_hook(self) -> None:
        try:
            data = os.read(self._hook_pipe, _AT_ONCE)
        except BlockingIOError:
            return
        if not data:
            self._close_hook_pipe()
            return
        reports, stacks, self._cut_report = split_reports(self._cut_report + data)
        for report in reports:
            self._events.report(report)
        if stacks and self._stack_requests and len(self._stacks) < _MOST_STACKS:
            self._stacks += stacks
            self._loop.after("stacks", _QUIET_S, self._deliver_stacks)

    def _deliver_stacks(self) -> None:
        self._loop.cancel("stacks")
        requests, self._stack_requests = self._stack_requests, []
        for on_done in requests:
            on_done(self._stacks.decode("utf-8", "replace"))

    def _close_hook_pipe(self) -> None:
        if self._hook_pipe >= 0:
            self._loop.unwatch(self._hook_pipe)
            os.close(self._hook_pipe)
            self._hook_pipe = -1

    # --- the end ----------------------------------------------------------------------------------------------------

    def stop(self, grace_s: float, unending: AbstractSet[int] = frozenset()) -> None:
        """Send SIGTERM to the process group, and SIGKILL to all processes.descendants after `grace_s` seconds.

        Args:
            grace_s: The grace period.
            unending: Processes that SIGTERM does not end, although the script does not handle it: they have only
                `UNHANDLED_S` seconds.
        """
        if self.closed:
            return
        if self.held or grace_s <= 0:
            self.kill()
            return
        self._kill_at = time.monotonic() + grace_s
        processes.signal_group(self.pid, signal.SIGTERM)
        processes.signal_group(self.pid, signal.SIGCONT)
        self._loop.after("kill", grace_s, self.kill)
        if unending:
            self._loop.after("end", UNHANDLED_S, lambda: self._end(unending))

    def _end(self, pids: AbstractSet[int]) -> None:
        """End processes as SIGTERM would have ended them."""
        self._is_ended = self.exit is None and self.pid in pids
        processes.signal_all(self._members() & pids, signal.SIGKILL)

    def kill(self) -> None:
        """Send SIGKILL to the process group and all processes.descendants until none is left."""
        if self.closed:
            return
        self.killed = True
        if self.exit is None:
            processes.signal_group(self.pid, signal.SIGKILL)
        processes.signal_all(self._members(), signal.SIGKILL)
        self._loop.after("kill", _AGAIN_S, self.kill)

    def record_exit(self, status: int) -> None:
        """Record that the process ended with the given status of waitpid(2)."""
        self.exit = processes.decode_exit(status)
        if self._is_ended and self.exit.signal == signal.SIGKILL:
            self.exit = Exit(signal=signal.SIGTERM)
        if self._gate >= 0:
            os.close(self._gate)
            self._gate = -1
        self._drain()
        for name in ("held", "kill"):
            self._loop.cancel(name)
        if self.exit.signal == signal.SIGKILL and not self.killed:
            verdict = self._oom.verdict()
            self.reason = Reason(verdict, ReasonKind.OUT_OF_MEMORY) if verdict else NO_REASON
        self._deliver_stacks()
        self._close_hook_pipe()
        self._events.exit(self.exit)
        if self.output >= 0 and self._members():
            # A script that a shell started has the whole grace period, although the shell ends immediately.
            self._loop.after("reap", max(LINGER_S, self._kill_at - time.monotonic()), self._reap)
        else:
            self._reap()

    def _members(self) -> Set[int]:
        """Return all processes that belong to the task."""
        table = processes.list_processes()
        if self.forked is None:
            return {pid for pid in processes.descendants(os.getpid(), table) if not self._is_helper(pid)}
        # Its orphans have other parents.
        marked = {
            pid for pid, stat in table.items() if stat.group == self.pid or processes.is_marked(pid, self._directory)
        }
        return marked | processes.descendants(self.pid, table)

    def read_processes(self) -> Dict[int, processes.Stat]:
        """Return the processes of the task without reading all processes of the host; orphans may be missing."""
        if self.forked is None:
            stats = processes.read_descendants(os.getpid())
            return {pid: stat for pid, stat in stats.items() if not self._is_helper(pid)}
        stat = processes.read_stat(self.pid)
        return {**processes.read_descendants(self.pid), **({} if stat is None else {self.pid: stat})}

    def _reap(self) -> None:
        left = self._members()
        if left and self._reap_attempts * _AGAIN_S < _REAP_S:
            self._reap_attempts += 1
            self.killed = processes.signal_all(left, signal.SIGKILL) or self.killed
            self._loop.after("reap", _AGAIN_S, self._reap)
            return
        self._drain()
        if self.output >= 0:
            self._end_output()
        if self.forked is not None:
            self._loop.unwatch(self.forked.connection.fileno())
            self.forked.connection.close()
        for name in ("kill", "end", "reap"):
            self._loop.cancel(name)
        self.closed = True
        self._events.closed()

    # --- output -----------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        self._read_once()
        if self.output < 0 and self.exit is not None and not self.closed:
            self._reap()

    def _drain(self) -> None:
        for _ in range(2 * _PIPE_SIZE // _AT_ONCE):  # more output comes only from a process that keeps writing
            if self.output < 0 or not self._read_once():
                return

    def _read_once(self) -> bool:
        """Read some output; return False if there is none now, or none will come."""
        try:
            data = os.read(self.output, _AT_ONCE)
        except BlockingIOError:
            return False
        if data:
            self._events.output(data)
        else:
            self._end_output()
        return bool(data)

    def _end_output(self) -> None:
        self._loop.unwatch(self.output)
        os.close(self.output)
        self.output = -1
