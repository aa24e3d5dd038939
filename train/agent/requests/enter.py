"""Run a program in the directory and the environment of a task, in the session of the user; see train.pack."""

from __future__ import annotations

import os
import pwd
import signal
from typing import Dict, NoReturn, Sequence

from train.agent.files.disk import read_json
from train.agent.files.journal import last_attempt, read_job, states
from train.agent.files.paths import HostPaths, TaskPaths
from train.agent.host.facts import login_environment
from train.agent.host.jobs import find_task, members_of
from train.agent.host.processes import MARK, ProcessId, is_alive
from train.agent.host.spawn import VARIABLE
from train.agent.protocol.errors import RefusedError
from train.agent.protocol.records import Replication, build
from train.agent.supervisor.environment import (
    HostEnvironment,
    TaskIdentity,
    checkpoint_directory,
    program_directories,
    task_environment,
)

REFUSED = 14
_NOT_RUN, _NOT_FOUND = 126, 127  # exit codes of a shell


def enter(host: HostPaths, job: str, slot: str, words: Sequence[str], umask: int) -> NoReturn:
    """Replace this process by a program in the environment of a task.

    Args:
        host: Paths of the fleet on this host.
        job: The job.
        slot: Slot of the task.
        words: The program and its arguments; empty: a shell.
        umask: Of the program.
    """
    os.umask(umask)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and the program would inherit that
    try:
        paths = find_task(host, job, slot)
        env = read_environment(paths)
        os.chdir(paths.source)
    except RefusedError as error:
        _end(error.record.reason, REFUSED)
    except OSError as error:
        _end(f"the directory of {slot} cannot be entered: {error.strerror}", REFUSED)
    command = list(words) or [env.get("SHELL") or pwd.getpwuid(os.geteuid()).pw_shell or "/bin/sh"]
    try:
        os.execvpe(command[0], command, env)  # noqa: S606 - no shell reads it
    except FileNotFoundError:
        _end(f"{command[0]}: command not found", _NOT_FOUND)
    except OSError as error:
        _end(f"{command[0]}: {error.strerror}", _NOT_RUN)


def _end(text: str, code: int) -> NoReturn:
    os.write(2, f"fleet: {text}\n".encode("utf-8", "backslashreplace"))
    os._exit(code)


def read_environment(paths: TaskPaths) -> Dict[str, str]:
    """Return the environment of a task without what marks its processes, for the terminal of this session.

    It is that of the running process; after its end it is computed again, without secrets, which are not stored.

    Raises:
        RefusedError: the task cannot be read.
    """
    running = _running_environment(paths)
    env = without_hook(running) if running else _stored_environment(paths)
    env.pop(MARK, None)  # the agent ends all processes with this variable
    terminal = {name: value for name, value in os.environ.items() if name == "TERM" or name.startswith("SSH_")}
    return {**env, **terminal}


def _running_environment(paths: TaskPaths) -> Dict[str, str]:
    """Return the environment with which the running task was started; empty if none runs."""
    task = (read_json(paths.processes) or {}).get("task")
    if not task or not is_alive(ProcessId(*task)):
        return {}
    try:
        with open(f"/proc/{int(task[0])}/environ", "rb") as file:
            pairs = [item.partition(b"=") for item in file.read().split(b"\0") if item]
    except OSError:
        return {}
    env = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
    return env if env.get(MARK) == paths.directory else {}  # otherwise it is held before its exec


def without_hook(env: Dict[str, str]) -> Dict[str, str]:
    """Return the environment of a task as its script gets it, see train.agent.host.spawn."""
    kept = {name: value for name, value in env.items() if name != VARIABLE}
    had, is_hooked, _ = env.get(VARIABLE, "").partition(":")
    if is_hooked:
        path = kept.pop("PYTHONPATH").partition(os.pathsep)[2]
        kept.update({"PYTHONPATH": path} if had == "1" else {})
    return kept


def _stored_environment(paths: TaskPaths) -> Dict[str, str]:
    job = read_job(paths) or {}
    attempt = last_attempt(paths)
    history = states(paths, attempt)
    slot, members = str(job.get("slot", "")), members_of(job)
    task = history[-1].task if history else next((item.task for item in members if item.slot == slot), "")
    session, user = login_environment(), {str(name): str(value) for name, value in (job.get("env") or {}).items()}
    ranked = [item for item in members if item.task]
    if task not in [item.task for item in ranked]:  # a spare, or the task of a host that was lost
        return {**session, **user}
    python = str(job.get("python", ""))
    replication: Replication = build(Replication, job.get("replication") or {})
    return task_environment(
        session,
        user,
        identity=TaskIdentity(str(job.get("fleet", "")), str(job.get("job", "")), task, max(1, attempt), ranked),
        paths=paths,
        checkpoints=checkpoint_directory(paths, replication.directory),
        host_environment=HostEnvironment(python, (paths.programs, *program_directories(python))),
    )
