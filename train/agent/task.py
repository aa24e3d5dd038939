"""The task's process as its supervisor holds it: started, read, stopped, buried with all its descendants."""

import os
import signal
from typing import Callable, Dict, Optional, Sequence, Set

from train.agent.loop import READ, Loop
from train.agent.processes import descendants, everybody, signal_all, signal_group
from train.agent.records import Exit
from train.agent.spawn import open_gate, spawn

# How long what is left of a task may go on writing after the task itself has ended.
LINGER_S = 2.0
_AGAIN_S = 0.02  # nobody tells of the end of a grandchild
_BURY_S = 5.0
_AT_ONCE = 1 << 18
_PIPE_SIZE = 1 << 20
_SET_PIPE_SIZE = 1031  # F_SETPIPE_SZ, fcntl(2)


def exit_of(status: int) -> Exit:
    """How a process ended, from what waitpid(2) tells."""
    if os.WIFSIGNALED(status):
        return Exit(signal=os.WTERMSIG(status))
    return Exit(code=os.WEXITSTATUS(status))


class TaskProcess:
    """One process of one task.

    Args:
        loop: In which it is served.
        on_output: Called with its output as it comes.
        on_exit: Called once when it has ended.
        on_closed: Called once when it has ended, all of its output was read, and nothing descends from it any more.
    """

    def __init__(
        self,
        loop: Loop,
        *,
        on_output: Callable[[bytes], None],
        on_exit: Callable[[Exit], None],
        on_closed: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._on_output = on_output
        self._on_exit = on_exit
        self._on_closed = on_closed
        self._strays: Set[int] = set()
        self._output = -1
        self._gate = -1
        self._burials = 0
        self.pid = 0
        self.exit: Optional[Exit] = None
        self.closed = False
        self.killed = False

    def start(self, command: Sequence[str], env: Dict[str, str], folder: str, umask: int) -> None:
        """Start it, held at its gate.

        Raises:
            OSError: no process can be made.
        """
        self._spawned = spawn(command, env, folder, umask=umask, gated=True)
        self.pid, self._output, self._gate = self._spawned
        _widen(self._output)
        self._loop.watch(self._output, READ, lambda _: self._read())

    def release(self) -> None:
        """Open the gate."""
        if self._gate >= 0 and self.exit is None:
            self._gate = -1
            open_gate(self._spawned)

    @property
    def held(self) -> bool:
        """Whether it still waits at its gate."""
        return self._gate >= 0

    def stop(self, grace_s: float) -> None:
        """TERM to its whole group, and KILL to all that descends from it in `grace_s` seconds."""
        if self.closed:
            return
        if self.held or grace_s <= 0:
            self.kill()
            return
        signal_group(self.pid, signal.SIGTERM)
        signal_group(self.pid, signal.SIGCONT)
        self._loop.after("kill", grace_s, self.kill)

    def kill(self) -> None:
        """KILL to its whole group and to all that descends from it, until nothing does."""
        if self.closed:
            return
        self.killed = True
        if self.exit is None:
            signal_group(self.pid, signal.SIGKILL)
        signal_all(self._descendants(), signal.SIGKILL)
        self._loop.after("kill", _AGAIN_S, self.kill)

    def reaped(self, status: int) -> None:
        """It has ended, with what waitpid(2) tells."""
        self.exit = exit_of(status)
        if self._gate >= 0:
            os.close(self._gate)
            self._gate = -1
        self._drain()
        self._on_exit(self.exit)
        if self._output >= 0 and self._descendants():
            self._loop.after("bury", LINGER_S, self._bury)
        else:
            self._bury()

    def give_up(self) -> None:
        """Wait no longer for its end or its output."""
        if not self.closed:
            self._close()

    def _descendants(self) -> Set[int]:
        return {pid for pid in descendants(os.getpid(), everybody()) if pid not in self._strays}

    def spare(self, pid: int) -> None:
        """Never kill this child of ours: it is no part of the task."""
        self._strays.add(pid)

    def _bury(self) -> None:
        left = self._descendants()
        if left and self._burials * _AGAIN_S < _BURY_S:
            self._burials += 1
            self.killed = signal_all(left, signal.SIGKILL) or self.killed
            self._loop.after("bury", _AGAIN_S, self._bury)
            return
        self._close()

    def _read(self) -> None:
        try:
            data = os.read(self._output, _AT_ONCE)
        except BlockingIOError:
            return
        if data:
            self._on_output(data)
            return
        self._end_output()
        if self.exit is not None and not self.closed:
            self._bury()

    def _drain(self) -> None:
        for _ in range(2 * _PIPE_SIZE // _AT_ONCE):  # more only comes from somebody who goes on writing
            if self._output < 0:
                return
            try:
                data = os.read(self._output, _AT_ONCE)
            except BlockingIOError:
                return
            if not data:
                self._end_output()
                return
            self._on_output(data)

    def _end_output(self) -> None:
        self._loop.unwatch(self._output)
        os.close(self._output)
        self._output = -1

    def _close(self) -> None:
        self._drain()
        if self._output >= 0:
            self._end_output()
        self._loop.cancel("kill")
        self._loop.cancel("bury")
        self.closed = True
        self._on_closed()


def _widen(pipe: int) -> None:
    import fcntl

    try:
        fcntl.fcntl(pipe, _SET_PIPE_SIZE, _PIPE_SIZE)
    except OSError:  # over the user's limit for pipes
        return
