"""Starts a process that cannot outlive us, held at a gate until it may run."""

import os
import signal
from typing import Dict, NamedTuple, NoReturn, Optional, Sequence

_PR_SET_PDEATHSIG = 1  # prctl(2)
_PR_SET_CHILD_SUBREAPER = 36
_OPEN = b"g"
_NOT_RELEASED = 125
_NOT_RUN = 127

try:
    import ctypes

    _prctl = ctypes.CDLL(None, use_errno=True).prctl
except (ImportError, OSError, AttributeError):  # a Python built without libffi
    _prctl = None  # type: ignore[assignment]


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    if _prctl is not None:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Spawned(NamedTuple):
    """A process that waits, or not, at its gate."""

    pid: int
    output: int  # read end of the pipe that takes its stdout and stderr
    gate: int  # write end; -1 where there is none


def spawn(command: Sequence[str], env: Dict[str, str], folder: str, *, umask: int, gated: bool) -> Spawned:
    """Fork a process that becomes `command` in `folder`, with a session and a process group of its own.

    It gets SIGKILL when we end. A gated one waits for `open_gate`, and ends when the gate is closed instead.

    Raises:
        OSError: no process or pipe can be made.
    """
    output, output_end = os.pipe()
    gate_end, gate = os.pipe() if gated else (None, -1)
    parent = os.getpid()
    blocked = signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _become(command, env, folder, umask, parent, output_end, gate_end)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    os.close(output_end)
    if gate_end is not None:
        os.close(gate_end)
    os.set_blocking(output, False)
    return Spawned(pid, output, gate)


def open_gate(spawned: Spawned) -> bool:
    """Let a gated process run; False if it has ended already."""
    try:
        os.write(spawned.gate, _OPEN)
    except OSError:
        return False
    finally:
        os.close(spawned.gate)
    return True


def _default_signals() -> None:
    # Python ignores SIGPIPE and SIGXFSZ, and what is ignored stays so through exec.
    for number in signal.valid_signals():
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            try:
                signal.signal(number, signal.SIG_DFL)
            except (OSError, ValueError):
                continue
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _keep_descriptors(output_end: int, gate_end: Optional[int]) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    high = [os.dup(fd) for fd in (nothing, output_end)]
    keep = {0, 1, 2} if gate_end is None else {0, 1, 2, gate_end}
    os.dup2(high[0], 0)
    os.dup2(high[1], 1)
    os.dup2(high[1], 2)
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in keep:
            try:
                os.close(int(name))
            except OSError:
                continue


def _become(
    command: Sequence[str],
    env: Dict[str, str],
    folder: str,
    umask: int,
    parent: int,
    output_end: int,
    gate_end: Optional[int],
) -> NoReturn:
    try:
        os.setsid()
        if _prctl is not None:
            _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(_NOT_RELEASED)
        signal.set_wakeup_fd(-1)
        _keep_descriptors(output_end, gate_end)
        _default_signals()
        os.umask(umask)
        if gate_end is not None:
            if os.read(gate_end, 1) != _OPEN:
                os._exit(_NOT_RELEASED)
            os.close(gate_end)
        os.chdir(folder)
        os.execvpe(command[0], list(command), env)  # noqa: S606 - no shell is meant
    except OSError as error:
        os.write(2, f"fleet: cannot run {command[0]}: {error.strerror}\n".encode("utf-8", "surrogateescape"))
    finally:
        os._exit(_NOT_RUN)
