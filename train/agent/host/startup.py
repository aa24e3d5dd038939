"""Prepare the hook: code that runs in a task's interpreter before any user code, and can dump its stacks.

Python imports a module ``sitecustomize`` at the end of its start-up (https://docs.python.org/3/library/site.html), so
a directory with one, first on PYTHONPATH, runs before the script and everything that it imports. The hook removes
every trace of itself and then imports the ``sitecustomize`` that would have been found without it.

If that is not reliable, a task is held before its exec instead, see `hook_for`: user code never runs early. Only an
interpreter that has run the hook on this host with the same variables may be held by it. If a task is another
program, such as a shell or R, the interpreters that it starts use the hook only to dump their stacks.
"""

from __future__ import annotations

import os
import signal
from typing import Dict, Mapping, NamedTuple, Optional, Sequence

from train.agent.files.disk import make_directory, read_text, write_atomic
from train.agent.injected import read_source

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
