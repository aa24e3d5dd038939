"""Start tasks from the warm process of a host; see train.agent.injected.warm."""

from __future__ import annotations

import contextlib
import marshal
import os
import resource
import signal
import socket
import struct
import time
from typing import List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from train.agent.files.disk import list_names, make_directory, read_text, remove_file
from train.agent.host.control import short_path
from train.agent.host.spawn import Spawned
from train.agent.host.warm_process import end_warm
from train.agent.warm.plan import Plan, Process

_ANSWER_S = 2.0  # the supervisor, which sends heartbeats too, waits for it
_LONGEST = 1 << 12
_INHERITED = ("Cap", "NoNewPrivs", "Seccomp", "Speculation", "Mems_allowed_list")  # lines of /proc/PID/status


class WarmTask(NamedTuple):
    """A task that was forked from a warm process."""

    spawned: Spawned
    keeper: int  # its parent process
    connection: socket.socket  # to the keeper, which reports the exit and kills the task when this is closed


def read_process(python: str) -> Process:
    """Return what this process passes on to those that it forks."""
    limits = [number for name, number in vars(resource).items() if name.startswith("RLIMIT_")]
    names = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
    with contextlib.suppress(OSError):
        state = os.stat(python)
        return Process(
            tuple(resource.getrlimit(number) for number in sorted(set(limits))),
            os.nice(0),
            tuple(sorted(os.sched_getaffinity(0))),
            tuple(_namespace(name) for name in names),
            read_text("/proc/self/cgroup"),
            (*os.getresuid(), *os.getresgid(), *sorted(os.getgroups())),
            (state.st_dev, state.st_ino, state.st_mtime_ns),
            _read_status(),
            _read_keys(),
        )
    return Process()


def _read_status() -> Tuple[str, ...]:
    lines = read_text("/proc/self/status").splitlines()
    others = (read_text(f"/proc/self/{name}") for name in ("attr/current", "personality", "oom_score_adj"))
    return (*(line for line in lines if line.startswith(_INHERITED)), *others, str(os.sched_getscheduler(0)))


def _read_keys() -> Tuple[str, ...]:
    """Return the serial numbers of all keys of this user that this process can find; see keyrings(7)."""
    rows = (line.split() for line in read_text("/proc/keys").splitlines())
    return tuple(row[0] for row in rows if len(row) > 7 and row[5] == str(os.getuid()) and row[7] != "keyring")


def _namespace(name: str) -> str:
    try:
        return os.readlink(f"/proc/self/ns/{name}")
    except OSError:
        return ""


def start_warm(
    root: str, plan: Plan, command: Sequence[str], env: Mapping[str, str], directory: str, umask: int
) -> Union[WarmTask, str]:
    """Fork a task from the warm process of a plan, held at its gate; return why it cannot be if there is none.

    Args:
        root: Directory of the warm processes.
        plan: Of the task.
        command: Of the task.
        env: Of the task.
        directory: Working directory of the task.
        umask: Of the task.
    """
    end = time.monotonic() + _ANSWER_S
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _limit(connection, end)
        with short_path(os.path.join(root, plan.key)) as path:
            connection.connect(path)
    except OSError:
        connection.close()
        return read_text(os.path.join(root, f"{plan.key}.obstacle")) or "no process has imported this yet"
    request = {
        "command": [os.fsencode(word) for word in command],
        "environment": [(os.fsencode(name), os.fsencode(value)) for name, value in env.items()],
        "directory": os.fsencode(directory),
        "first_path": os.fsencode(plan.first_path),
        "umask": umask,
    }
    return _request(connection, marshal.dumps(request, 2), end)


def _limit(connection: socket.socket, end: float) -> None:
    """Let the next call end by a time of the monotonic clock."""
    connection.settimeout(max(0.001, end - time.monotonic()))


def _request(connection: socket.socket, data: bytes, end: float) -> Union[WarmTask, str]:
    ours: List[int] = []
    theirs: List[int] = []
    try:
        for is_gate in (False, True, False):  # output, gate, line of the hook
            reads, writes = os.pipe()
            ours.append(writes if is_gate else reads)
            theirs.append(reads if is_gate else writes)
        output, gate, line = ours
        for fd in (output, line, theirs[2]):
            os.set_blocking(fd, False)
        _limit(connection, end)
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(theirs)}i", *theirs))
        connection.sendmsg([b"%d " % len(data)], [rights])
        _limit(connection, end)
        connection.sendall(data)
        kind, _, rest = _receive_line(connection, end).partition(" ")
        if kind == "started":
            task, keeper, line_number = (int(word) for word in rest.split())
            ours = []
            connection.setblocking(False)
            return WarmTask(Spawned(task, output, gate, line, line_number), keeper, connection)
        reason = rest or "the process with its imports does not answer"
    except (OSError, ValueError) as error:
        reason = f"the process with its imports does not answer: {error}"
    finally:
        for fd in [*theirs, *ours]:
            os.close(fd)
    connection.close()
    return reason


def _receive_line(connection: socket.socket, end: float) -> str:
    data = b""
    while b"\n" not in data and time.monotonic() < end:
        _limit(connection, end)
        piece = connection.recv(1)  # what follows is the exit
        if not piece:
            break
        data += piece
    return data.decode("utf-8", "replace").rstrip("\n")


def receive_exit(connection: socket.socket) -> Optional[int]:
    """Return the status of waitpid(2) of a task that has ended; None: nothing was received."""
    try:
        data = connection.recv(_LONGEST)
    except BlockingIOError:
        return None
    except OSError:
        data = b""
    word, _, status = data.decode("utf-8", "replace").strip().partition(" ")
    return int(status) if word == "exit" and status.isdigit() else int(signal.SIGKILL)  # its keeper was killed


def prepare_directory(root: str) -> None:
    """Make the directory for the process that a cold task leaves behind; end the one before, and forget obstacles.

    Raises:
        OSError: it cannot be made.
    """
    make_directory(root)
    end_warm(root, wait_s=0.0)
    for name in list_names(root):
        if name.endswith(".obstacle"):
            remove_file(os.path.join(root, name))
