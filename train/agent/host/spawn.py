"""Start a process that cannot outlive its parent and waits at a gate before it runs, with the hook in its Python.

The hook is code that runs in a task's interpreter before any user code: it dumps stacks, and observes TensorFlow.
Python imports a module ``sitecustomize`` at the end of its start-up (https://docs.python.org/3/library/site.html), so
a directory with one, first on PYTHONPATH, runs before the script and everything that it imports. The hook removes
every trace of itself and then imports the ``sitecustomize`` that would have been found without it. It is used if the
fleet's interpreter on this host has run it. If a task is another program, such as a shell or R, the interpreters that
it starts run the hook.
"""

from __future__ import annotations

import gc
import os
import signal
import time
from typing import AbstractSet, Callable, Dict, Mapping, NamedTuple, NoReturn, Sequence, Tuple

from train.agent.files.disk import make_directory, read_text, write_atomic
from train.agent.injected import read_source

_PR_SET_PDEATHSIG = 1  # prctl(2)
_PR_SET_CHILD_SUBREAPER = 36
_OPEN = b"g"  # before the time from which the process may run
_LONGEST_OPEN = 64  # bytes
_NOT_RELEASED = 125
_NOT_RUN = 127
_FIRST_LINE = 256  # bytes of a script's first line, which names its interpreter
# Where the end of the hook's pipe is in its process: out of the way of all that a script opens or counts on.
_HIGHEST = 1023
VARIABLE = "FLEET_HOOK"
PROVE = "prove"
PROVEN = "proven"
# Of the real-time signals, those at both ends are taken by threads libraries and by the Java runtime.
STACKS_SIGNAL = signal.SIGRTMIN + 13

try:
    import ctypes  # Python has no other way to prctl(2): to end with the parent, and to adopt orphans

    _prctl = ctypes.CDLL(None).prctl
except (ImportError, OSError, AttributeError):  # a Python built without libffi
    _prctl = None  # type: ignore[assignment]


def close_descriptors(keep: AbstractSet[int]) -> None:
    """Close all file descriptors but the standard ones and those in `keep`."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in keep:
            try:
                os.close(int(name))
            except OSError:
                continue


def fork_released(release: Callable[[], None]) -> int:
    """Fork a process that begins after `release` was called in this one, which closes what only the new one may hold.

    A task could otherwise start before a process that gets no CPU time has closed its copy of the task's port.

    Returns:
        The process ID; 0 in the new process.

    Raises:
        OSError: no process can be made.
    """
    reads, writes = os.pipe()
    try:
        pid = os.fork()
        if pid:
            release()
        else:
            os.close(writes)
            writes = -1
            os.read(reads, 1)  # returns when the other process closes the pipe or ends
        return pid
    finally:
        os.close(reads)
        if writes >= 0:
            os.close(writes)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    if _prctl is not None:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with(parent: int) -> bool:
    """Arrange to be killed when `parent`, which forked this process, ends; return False if it has ended."""
    if _prctl is not None:
        _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    return os.getppid() == parent


def fork_helper(run: Callable[[], None], keep: AbstractSet[int]) -> int:
    """Fork a process that runs `run` and ends with this one; return its process ID.

    Args:
        run: Called in the new process, with default signals and without the event loop of this one.
        keep: Descriptors that stay open, besides the standard ones.

    Raises:
        OSError: no process can be made.
    """
    parent = os.getpid()
    blocked = signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _run_helper(run, keep, parent)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return pid


def _run_helper(run: Callable[[], None], keep: AbstractSet[int], parent: int) -> NoReturn:
    code = 1
    try:
        gc.freeze()  # sockets of the parent must never be closed by their number, which may be another's here
        os.setsid()
        if end_with(parent):
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            close_descriptors(keep)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            run()
            code = 0
    except BaseException:  # noqa: BLE001 - reported in agent.log, and by the exit code
        import traceback

        os.write(2, traceback.format_exc().encode("utf-8", "backslashreplace"))
    finally:
        os._exit(code)


class Spawned(NamedTuple):
    """A process that may wait at its gate."""

    pid: int
    output: int  # read end of the pipe that takes its stdout and stderr
    gate: int  # write end; -1 where there is none
    line: int = -1  # read end of the hook's pipe; -1 if there is none
    line_end: int = -1  # its other end, by its number in the process


def spawn(
    command: Sequence[str],
    env: Dict[str, str],
    directory: str,
    *,
    umask: int,
    gated: bool,
    hook: str = "",
) -> Spawned:
    """Start `command` in `directory`, in its own session and process group, with the hook in that directory.

    It gets SIGKILL when we end. A gated one waits before its exec for `open_gate`, and ends when the gate is closed
    instead.

    Raises:
        OSError: no process or pipe can be made.
    """
    output, output_end = os.pipe()
    gate_end, gate = os.pipe() if gated else (-1, -1)
    line, line_end = os.pipe() if hook else (-1, -1)
    if hook:
        os.set_blocking(line, False)
        os.set_blocking(line_end, False)  # unread stacks are lost; they never block the task
    parent = os.getpid()
    blocked = signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _run_child(command, env, directory, umask, parent, (output_end, gate_end, line_end), hook)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    for end in (output_end, gate_end, line_end):
        if end >= 0:
            os.close(end)
    os.set_blocking(output, False)
    return Spawned(pid, output, gate, line, _line_number() if hook else -1)


def open_gate(spawned: Spawned, start_at: float = 0.0) -> bool:
    """Let a gated process run from a time of the monotonic clock; return False if it has ended."""
    try:
        os.write(spawned.gate, _OPEN + b"%.6f" % start_at)
    except OSError:
        return False
    finally:
        os.close(spawned.gate)
    return True


def _pass_gate(gate: int) -> bool:
    """Wait until the gate is open and the start time has come; return False if the gate was closed instead."""
    text = os.read(gate, _LONGEST_OPEN)
    if text[:1] != _OPEN:
        return False
    time.sleep(max(0.0, float(text[1:]) - time.monotonic()))
    os.close(gate)
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


def _line_number() -> int:
    """Return the highest usable descriptor, within reason: the kernel's table grows with it."""
    most = os.sysconf("SC_OPEN_MAX")
    return min(most - 1, _HIGHEST) if most > 0 else _HIGHEST


def _explain_failure(program: str, error: OSError) -> str:
    """Return why a program could not be run; for an existing script, what is wrong with its interpreter."""
    if isinstance(error, FileNotFoundError) and os.path.isfile(program):
        with open(program, "rb") as file:
            first = file.readline(_FIRST_LINE)
        if first.startswith(b"#!") and first.rstrip(b"\n").endswith(b"\r"):
            return "its lines end with CR LF, as on Windows; Linux needs LF"
        words = first[2:].split() if first.startswith(b"#!") else []
        if words:
            return f"its interpreter {words[0].decode('utf-8', 'replace')} is not on this host"
    return str(error.strerror)


def _run_child(
    command: Sequence[str],
    env: Dict[str, str],
    directory: str,
    umask: int,
    parent: int,
    ends: Tuple[int, int, int],
    hook: str,
) -> NoReturn:
    output, gate, line = ends
    try:
        os.setsid()
        if not end_with(parent):
            os._exit(_NOT_RELEASED)
        signal.set_wakeup_fd(-1)
        close_descriptors(set(ends))
        _default_signals()
        os.umask(umask)
        if gate >= 0 and not _pass_gate(gate):
            os._exit(_NOT_RELEASED)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(directory)
        if hook:
            env = hook_environment(hook, env, os.dup2(line, _line_number()))
        os.execvpe(command[0], list(command), env)  # noqa: S606 - no shell is meant
    except OSError as error:
        reason = _explain_failure(command[0], error)
        os.write(2, f"fleet: cannot run {command[0]}: {reason}\n".encode("utf-8", "surrogateescape"))
    finally:
        os._exit(_NOT_RUN)


# --- the hook ------------------------------------------------------------------------------------------------------


def install_hook(directory: str) -> None:
    """Write the hook into `directory`.

    Raises:
        OSError: it cannot be written.
    """
    for name in ("adaptations", "observer", "sitecustomize", "warm"):
        path, source = os.path.join(directory, name + ".py"), read_source(name)
        if read_text(path) != source:
            make_directory(directory)
            write_atomic(path, source.encode())


def proof_environment(directory: str, environment: Mapping[str, str]) -> Dict[str, str]:
    """Return an environment in which an interpreter that runs the hook sets `VARIABLE` to `PROVEN`."""
    return {**environment, "PYTHONPATH": _with_directory(directory, environment), VARIABLE: PROVE}


def hook_environment(directory: str, env: Mapping[str, str], line: int) -> Dict[str, str]:
    """Return the environment in which a process starts with the hook.

    Args:
        directory: Of the hook.
        env: Of the task.
        line: Descriptor to which the hook writes its reports, and stacks.
    """
    value = f"{int('PYTHONPATH' in env)}:{line}:{int(STACKS_SIGNAL)}"
    return {**env, "PYTHONPATH": _with_directory(directory, env), VARIABLE: value}


def _with_directory(directory: str, env: Mapping[str, str]) -> str:
    before = env.get("PYTHONPATH", "")
    return directory + os.pathsep + before if before else directory
