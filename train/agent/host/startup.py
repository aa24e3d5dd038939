"""Prepare the hook: code that runs in a task's interpreter before any user code, and can dump its stacks.

Python imports a module ``sitecustomize`` at the end of its start-up (https://docs.python.org/3/library/site.html), so
a directory with one, first on PYTHONPATH, runs before the script and everything that it imports. The hook removes
every trace of itself and then imports the ``sitecustomize`` that would have been found without it.

If that is not reliable, a task is held before its exec instead, see `hook_for`: user code never runs early. Only an
interpreter that has run the hook on this host with the same variables may be held by it. If a task is another
program, such as a shell or R, the interpreters that it starts use the hook only to dump their stacks.
"""

import os
import signal
from typing import Dict, Mapping, NamedTuple, Optional, Sequence

from train.agent.files.disk import make_directory, read_text, write_atomic
from train.agent.host.adaptations import SOURCE as ADAPTATIONS

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

# For every Python from 3.8 on. It imports nothing that is not there already, and waits when all but the import of the
# next sitecustomize is done. An error of that one goes to the site module, as if we had never been there.
SOURCE = '''\
"""Holds a task of fleet at its gate; without a trace afterwards."""

import os
import sys


def take_out(here, gap):
    cwd = os.getcwd() if gap else ""
    sys.path[:] = [cwd if entry == here else entry for entry in sys.path if cwd or entry != here]
    sys.path_importer_cache.pop(here, None)


def restore(had, path):
    if had == "1":
        os.environ["PYTHONPATH"] = path
    else:
        os.environ.pop("PYTHONPATH", None)


def without(here, entries, gap):
    """What a shell has made of PYTHONPATH, had we not been in it; an empty entry stands for the current directory."""
    left = ["" if entry == here else entry for entry in entries if gap or entry != here]
    return "1" if left else "0", os.pathsep.join(left)


def tell_stacks(number, line):
    known = "faulthandler" in sys.modules
    try:
        import faulthandler

        faulthandler.register(number, line, all_threads=True)
    except Exception:
        pass
    if not known:
        sys.modules.pop("faulthandler", None)


def adapt(here):
    if not os.environ.get("FLEET_ADAPT"):
        return
    try:
        with open(here + "/adaptations.py") as file:
            source = file.read()
        exec(compile(source, "fleet adaptations", "exec"), {"__name__": "fleet_adaptations"})
    except Exception as error:
        os.write(2, ("fleet: the script runs without adaptations: %r\\n" % error).encode())


def hold(gate, line):
    try:
        os.write(line, b"a")
        if gate >= 0:
            if os.read(gate, 1) != b"g":
                os._exit(125)
            os.close(gate)
    except OSError:
        os._exit(125)


def begin():
    here = __file__.rpartition("/")[0]
    word = os.environ.pop("FLEET_HOOK", "")
    if word == "prove":
        os.environ["FLEET_HOOK"] = "proven"
    given = word.split(":", 5)
    if len(given) < 6:
        take_out(here, False)
        return
    pid, gate, line, number = (int(value) for value in given[:4])
    had, path = given[4:]
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    gap = pid == 0 and had == "0" and len(entries) > 1
    take_out(here, gap)
    if pid == 0:
        had, path = without(here, entries, gap)
    restore(had, path)
    if pid in (0, os.getpid()):
        try:
            os.set_inheritable(line, False)
        except OSError:  # who started us has closed it
            return
        tell_stacks(number, line)
        adapt(here)
        if pid:
            hold(gate, line)


begin()
sys.modules.pop("sitecustomize", None)
import sitecustomize
'''


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


def install_hook(directory: str) -> None:
    """Write the hook into `directory`.

    Raises:
        OSError: it cannot be written.
    """
    for name, source in (("adaptations.py", ADAPTATIONS), ("sitecustomize.py", SOURCE)):
        path = os.path.join(directory, name)
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
        return Hook(proof.directory, holds_task=False, for_children=True)
    is_same = all(env.get(name) == session.get(name) for name in _DECISIVE)
    return Hook(proof.directory, holds_task=is_same and proof.program)


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
