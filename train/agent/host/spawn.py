"""Start a process that cannot outlive its parent and waits at a gate before it runs, with the hook in its Python.

The hook is code that runs in a task's interpreter before any user code, and can dump its stacks. Python imports a
module ``sitecustomize`` at the end of its start-up (https://docs.python.org/3/library/site.html), so a directory with
one, first on PYTHONPATH, runs before the script and everything that it imports. The hook removes every trace of
itself and then imports the ``sitecustomize`` that would have been found without it.

If that is not reliable, a task is held before its exec instead, see `hook_for`: user code never runs early. Only an
interpreter that has run the hook on this host with the same variables may be held by it. If a task is another
program, such as a shell or R, the interpreters that it starts use the hook only to dump their stacks.
"""

from __future__ import annotations

import gc
import os
import signal
import time
from typing import AbstractSet, Callable, Dict, Mapping, NamedTuple, NoReturn, Optional, Sequence

from train.agent.files.disk import make_directory, read_text, write_atomic
from train.agent.injected import read_source

_PR_SET_PDEATHSIG = 1  # prctl(2)
_PR_SET_CHILD_SUBREAPER = 36
_OPEN = b"g"  # before the time from which the process may run
_LONGEST_OPEN = 64  # bytes
_NOT_RELEASED = 125
_NOT_RUN = 127
_FIRST_LINE = 256  # bytes of a script's first line, which names its interpreter
# Where the ends of a hook's pipes are in its process: out of the way of all that a script opens or counts on.
_HIGHEST = 1023
VARIABLE = "FLEET_HOOK"
PROVE = "prove"
PROVEN = "proven"
# Of the real-time signals, those at both ends are taken by threads libraries and by the Java runtime.
STACKS_SIGNAL = signal.SIGRTMIN + 13
# What decides which code an interpreter runs before the hook.
_DECISIVE = (
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONUSERBASE",
    "PYTHONNOUSERSITE",
    "PYTHONPLATLIBDIR",
    "PYTHONWARNINGS",
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
    "HOME",
)
_ELF = b"\x7fELF"

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


class _Ends(NamedTuple):
    """The child's ends of all pipes; -1 if there is none."""

    output: int
    gate: int
    line: int


def spawn(
    command: Sequence[str],
    env: Dict[str, str],
    directory: str,
    *,
    umask: int,
    gated: bool,
    hook: Optional[Hook] = None,
) -> Spawned:
    """Start `command` in `directory`, in its own session and process group.

    It gets SIGKILL when we end. A gated one waits for `open_gate`, and ends when the gate is closed instead: before
    its exec, or in the hook where that is a warm one.

    Raises:
        OSError: no process or pipe can be made.
    """
    output, output_end = os.pipe()
    gate_end, gate = os.pipe() if gated else (-1, -1)
    line, line_end = os.pipe() if hook else (-1, -1)
    ends = _Ends(output_end, gate_end, line_end)
    if hook:
        os.set_blocking(line, False)
        os.set_blocking(line_end, False)  # unread stacks are lost; they never block the task
    parent = os.getpid()
    blocked = signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _run_child(command, env, directory, umask, parent, ends, hook)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    for end in ends:
        if end >= 0:
            os.close(end)
    os.set_blocking(output, False)
    return Spawned(pid, output, gate, line, _high_descriptor(0) if hook else -1)


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


def _high_descriptor(index: int) -> int:
    """Return the highest usable descriptor minus `index`, within reason: the kernel's table grows with it."""
    most = os.sysconf("SC_OPEN_MAX")
    return (min(most - 1, _HIGHEST) if most > 0 else _HIGHEST) - index


def _keep_descriptors(ends: _Ends) -> _Ends:
    """Keep the standard descriptors, the gate, and the line; return their new numbers."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    high = [os.dup(fd) for fd in (nothing, ends.output)]
    os.dup2(high[0], 0)
    os.dup2(high[1], 1)
    os.dup2(high[1], 2)
    line = os.dup2(ends.line, _high_descriptor(0)) if ends.line >= 0 else -1
    gate = os.dup2(ends.gate, _high_descriptor(1)) if ends.gate >= 0 else -1
    close_descriptors({gate, line})
    return _Ends(1, gate, line)


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
    ends: _Ends,
    hook: Optional[Hook],
) -> NoReturn:
    try:
        os.setsid()
        if not end_with(parent):
            os._exit(_NOT_RELEASED)
        signal.set_wakeup_fd(-1)
        _, gate, line = _keep_descriptors(ends)
        _default_signals()
        os.umask(umask)
        if gate >= 0 and not (hook and hook.holds_task):
            if not _pass_gate(gate):
                os._exit(_NOT_RELEASED)
            gate = -1
        os.chdir(directory)
        if hook:
            env = hook_environment(hook, env, os.getpid(), gate, line)
        os.execvpe(command[0], list(command), env)  # noqa: S606 - no shell is meant
    except OSError as error:
        reason = _explain_failure(command[0], error)
        os.write(2, f"fleet: cannot run {command[0]}: {reason}\n".encode("utf-8", "surrogateescape"))
    finally:
        os._exit(_NOT_RUN)


# --- the hook ------------------------------------------------------------------------------------------------------


class Proof(NamedTuple):
    """Evidence that an interpreter of this host runs the hook."""

    python: str  # as it is named in commands
    directory: str  # of the hook
    program: bool  # it is one itself, and no script that may do something else the next time


class Hook(NamedTuple):
    """The way in which a task uses the hook."""

    directory: str
    holds_task: bool  # it holds the task; else the task is held before its exec
    for_children: bool = False  # it is for the interpreters that the task starts, whichever program the task is
    obstacle: str = ""  # why it does not hold the task


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


def is_program(path: str) -> bool:
    """Return True if a file is a binary program, not a script."""
    try:
        with open(path, "rb") as file:
            return file.read(len(_ELF)) == _ELF
    except OSError:
        return False


def proof_environment(directory: str, environment: Mapping[str, str]) -> Dict[str, str]:
    """Return an environment in which an interpreter that runs the hook sets `VARIABLE` to `PROVEN`."""
    return {**environment, "PYTHONPATH": _with_directory(directory, environment), VARIABLE: PROVE}


def hook_for(
    command: Sequence[str], env: Mapping[str, str], session: Mapping[str, str], proof: Optional[Proof]
) -> Optional[Hook]:
    """Return how `command` uses the hook, or None if the host's interpreter has not run it.

    Args:
        command: Of the task.
        env: Of the task.
        session: In which the proof was made.
        proof: Of the host's interpreter.
    """
    if proof is None:
        return None
    is_script = len(command) > 1 and (not command[1].startswith("-") or (command[1] == "-m" and len(command) > 2))
    if command[0] != proof.python or not is_script:
        obstacle = "the command does not run a script with the fleet's interpreter"
        return Hook(proof.directory, holds_task=False, for_children=True, obstacle=obstacle)
    changed = next((name for name in _DECISIVE if env.get(name) != session.get(name)), "")
    obstacle = f"{changed} is not that of the host" if changed else ""
    if not proof.program:
        obstacle = "the fleet's interpreter is a script"
    return Hook(proof.directory, holds_task=not obstacle, obstacle=obstacle)


def hook_environment(hook: Hook, env: Mapping[str, str], pid: int, gate: int, line: int) -> Dict[str, str]:
    """Return the environment in which the process `pid` starts with the hook.

    Args:
        hook: Its directory.
        env: Of the task.
        pid: Of the process; in any other the hook only removes itself, unless it is one for those below.
        gate: Descriptor from which it reads that it may run; negative where it was held already.
        line: Descriptor to which it writes that it has arrived, and its stacks.
    """
    had, before = ("1", env["PYTHONPATH"]) if "PYTHONPATH" in env else ("0", "")
    value = f"{0 if hook.for_children else pid}:{gate}:{line}:{int(STACKS_SIGNAL)}:{had}:{before}"
    return {**env, "PYTHONPATH": _with_directory(hook.directory, env), VARIABLE: value}


def _with_directory(directory: str, env: Mapping[str, str]) -> str:
    before = env.get("PYTHONPATH", "")
    return directory + os.pathsep + before if before else directory
