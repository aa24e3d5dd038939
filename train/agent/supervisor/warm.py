"""Fork a task from a process that has imported what its script imports; see train.agent.injected.warm."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
import socket
import time
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from train.agent.files.disk import list_names, make_directory, read_text, remove_file
from train.agent.host.control import short_path
from train.agent.host.processes import MARK, is_marked, list_processes, signal_all
from train.agent.host.spawn import STACKS_SIGNAL, Spawned, spawn
from train.agent.supervisor.environment import Start

if TYPE_CHECKING:
    import ast

_ANSWER_S = 2.0  # the supervisor, which sends heartbeats too, waits for it
_LONGEST = 1 << 10
_SILENT = "the process with its imports does not answer"
_KERAS = ("tensorflow", "tf_keras", "keras")
_MODULES = (*_KERAS, "numpy", "h5py", "pandas", "scipy", "sklearn")
_STATEFUL = ("jax", "torch")  # a fork of a process that has imported them was not tried
# Variables of a session or a job that no import reads.
_VOLATILE = re.compile(
    r"TF_CONFIG|TMPDIR|FLEET_(?!ADAPT$|INSTANCE$)\w*|AIP_\w+|PWD|OLDPWD|SHLVL|_|SSH_\w+|XDG_SESSION_ID|TERM|COLUMNS|"
    r"LINES|no_proxy|NO_PROXY|no_grpc_proxy"
)
_SESSION_SCOPE = re.compile(r"session-[^/]+\.scope")


class WarmProgram(NamedTuple):
    """The modules that a script imports before it does anything else."""

    modules: Tuple[str, ...] = ()
    first_path: str = ""  # the directory from which Python imports first
    obstacle: str = ""  # why its task is not forked


class WarmTask(NamedTuple):
    """A task that was forked, and is not our child."""

    spawned: Spawned
    connection: socket.socket  # to its parent process, which reports the exit, and kills the task when this is closed


def start_warm(start: Start, command: Sequence[str], env: Mapping[str, str]) -> Union[WarmTask, str]:
    """Fork a task, held at its gate; else return why it is a new process, and prepare to fork the next one."""
    is_script = len(command) > 1 and (not command[1].startswith("-") or (command[1] == "-m" and len(command) > 2))
    is_script = is_script and command[0] == start.host_environment.python
    obstacles = {
        "the host has no Python that imports sitecustomize": not start.hook,
        "the command does not run a script with the fleet's interpreter": not is_script,
        "the host runs several tasks": bool(start.host.shared),
        "the host has GPUs": bool(start.facts.gpus),
        "the job has secrets": bool(start.commit.secret_env),
    }
    obstacle = next((text for text, is_true in obstacles.items() if is_true), "")
    program = read_program(command, start.paths.source) if not obstacle else WarmProgram(obstacle=obstacle)
    if program.obstacle:
        return program.obstacle
    kept = {name: value for name, value in env.items() if not _VOLATILE.fullmatch(name)}
    path = os.path.join(start.host.warm, _make_key(command[0], program.modules, kept, start.paths.directory))
    values = {"command": list(command), "environment": dict(env), "directory": start.paths.source}
    task = _fork_task(path, {**values, "path": program.first_path, "umask": start.umask})
    if isinstance(task, str):
        with contextlib.suppress(OSError):
            _start_server(path, command[0], kept, program.modules, start.hook)
    return task


def read_program(command: Sequence[str], directory: str) -> WarmProgram:
    """Return what the script of a command imports before any other code, and before a module of the job, runs."""
    import ast  # no other job needs it

    if command[1] == "-m":
        first_path, path = directory, os.path.join(directory, *command[2].split(".")) + ".py"
    else:
        path = os.path.join(directory, command[1])
        first_path = os.path.dirname(os.path.realpath(path))
    try:
        with open(path, "rb") as file:
            body = ast.parse(file.read()).body
    except (OSError, SyntaxError, ValueError, RecursionError):
        return WarmProgram(obstacle="the script cannot be parsed")
    files = {name.partition(".")[0] for name in list_names(first_path)}
    names: List[str] = []
    for node in body[1:] if ast.get_docstring(ast.Module(body, [])) is not None else body:
        imported = _imported_modules(node)
        if not imported or files.intersection(imported):
            break
        names += imported
    obstacle = next((f"the script imports {name}" for name in names if name in _STATEFUL), "")
    if not obstacle and not set(_KERAS).intersection(names):
        obstacle = "the script does not import tensorflow, tf_keras, or keras before it does anything else"
    return WarmProgram(tuple(dict.fromkeys(name for name in names if name in _MODULES)), first_path, obstacle)


def _imported_modules(node: ast.stmt) -> List[str]:
    """Return the top-level modules that a statement imports; none if it imports none."""
    import ast

    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    if isinstance(node, ast.ImportFrom) and not node.level and node.module:
        return [node.module.partition(".")[0]]
    return []


def _make_key(python: str, modules: Sequence[str], kept: Mapping[str, str], task: str) -> str:
    """Return the name of the process that may fork a task: it has the same imports, variables, and limits.

    Args:
        python: The interpreter.
        modules: To be imported.
        kept: Variables of the task that an import may read.
        task: Directory of the task, which differs between jobs.
    """
    variables = sorted((name, value.replace(task, "")) for name, value in kept.items())
    group = _SESSION_SCOPE.sub("session.scope", read_text("/proc/self/cgroup"))
    state = (python, modules, variables, group, read_text("/proc/self/limits"))
    return hashlib.sha256(repr(state).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _fork_task(path: str, request: Dict[str, Any]) -> Union[WarmTask, str]:
    """Fork a task from the process that listens at `path`; return why that is not possible."""
    data = json.dumps(request).encode() + b"\n"
    (output, output_end), (gate_end, gate), (line, line_end) = os.pipe(), os.pipe(), os.pipe()
    for fd in (output, line, line_end):
        os.set_blocking(fd, False)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    kind, reason = "", _SILENT
    try:
        with short_path(path) as short:
            connection.connect(short)
        connection.settimeout(_ANSWER_S)
        socket.send_fds(connection, [data[:1]], [output_end, gate_end, line_end])
        connection.sendall(data[1:])
        kind, _, reason = connection.recv(_LONGEST).decode("utf-8", "replace").strip().partition(" ")
    except (FileNotFoundError, ConnectionRefusedError):
        reason = "no process has imported its modules yet"
    except OSError as error:
        reason += f": {error}"
    for fd in (output_end, gate_end, line_end):
        os.close(fd)
    if kind == "started":
        task, number = map(int, reason.split())
        connection.setblocking(False)
        return WarmTask(Spawned(task, output, gate, line, number), connection)
    for fd in (output, gate, line):
        os.close(fd)
    connection.close()
    return reason or _SILENT


def receive_exit(connection: socket.socket) -> Optional[int]:
    """Return the status of waitpid(2) of a task that has ended; None: not yet; negative: its parent is gone."""
    try:
        words = connection.recv(_LONGEST).split()
    except BlockingIOError:
        return None
    except OSError:
        words = []
    return int(words[1]) if len(words) == 2 and words[0] == b"exit" else -1


def _start_server(path: str, python: str, kept: Mapping[str, str], modules: Sequence[str], hook: str) -> None:
    """Start the process from which later tasks are forked, unless it exists; it ends the one before.

    Raises:
        OSError: it cannot be started.
    """
    root, key = os.path.split(path)
    if os.path.exists(path) and any(is_marked(pid, root) for pid in list_processes()):
        return
    end_server(root)
    make_directory(root)
    command = [python, os.path.join(hook, "warm.py"), root, key, str(int(STACKS_SIGNAL)), *modules]
    spawned = spawn(command, {**kept, MARK: root}, "/", umask=0o077, gated=False, hook=hook)
    os.close(spawned.output)
    os.close(spawned.line)


def end_server(root: str) -> None:
    """End the process from which tasks are forked, and remove its files."""
    for _ in range(2):
        if not signal_all([pid for pid in list_processes() if is_marked(pid, root)], signal.SIGKILL):
            break
        time.sleep(0.02)
    for name in list_names(root):
        with contextlib.suppress(OSError):
            remove_file(os.path.join(root, name))
