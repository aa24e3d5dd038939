"""Fork commands of `fleet` from a process that has imported them, which saves 0.5 s of CPU time per command.

A forked command has its own arguments, environment, directory, standard files, and network namespace. It is a child
of the process that runs the tests, as if that process had started it, in the same session and
process group. After the fork it runs the installed launcher, and it ends as any Python program ends.

The tests do not cover, in a forked command: the start of the interpreter, the imports, and `/proc/PID/cmdline`.
`start_command` starts the installed program itself if a variable differs that the interpreter reads when it starts.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import io
import json
import os
import pkgutil
import platform
import runpy
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, cast

PROGRAM = Path(sys.executable).parent / "fleet"

_READ_AT_START = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC_", "TZ")
"""Prefixes of the variables that the interpreter and libc read when a program starts."""
_PACKAGES = ("fleet", "provision")
_MODULES = ("fabric", "psutil")
_CLOUD, _CLOUD_PREFIX = "provision.gce.provider", "FLEET_GCE_"
"""A provider whose import takes 1.5 s, and variables of the commands that use it; the first of them imports it."""
_LENGTH = struct.Struct("!I")
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE_PARENT = 0x8000
_CLONE_NEWNET = 0x40000000


@dataclass(frozen=True)
class Request:
    """A command to fork.

    Attributes:
        arguments: Arguments of `fleet`.
        directory: Working directory.
        environment: All variables.
        namespace: File of the network namespace; empty: the namespace of the tests.
        new_session: Whether the command starts a session.
        ignored: Signals that the tests ignore and the command must ignore, too.
    """

    arguments: Sequence[str]
    directory: str
    environment: Mapping[str, str]
    namespace: str = ""
    new_session: bool = False
    ignored: Sequence[int] = ()


# --- client: the process of the tests -------------------------------------------------------------------------------


class _Server:
    """A running server; it ends when its connection is closed."""

    def __init__(self) -> None:
        self._connection, theirs = socket.socketpair()
        with theirs:
            self.environment = {**os.environ, "PYTHONFAULTHANDLER": "1"}
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                cwd=Path(__file__).resolve().parent.parent,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        self._lock = threading.Lock()
        self._owner = os.getpid()
        atexit.register(self.close)

    @property
    def has_ended(self) -> bool:
        """Return whether it was killed: a test that acts as a supervisor kills all descendants of its process."""
        return self._process.poll() is not None

    def can_fork(self, environment: Mapping[str, str]) -> bool:
        """Return whether the interpreter would start in the same way with these variables."""
        return _start_variables(environment) == _start_variables(self.environment)

    def fork(self, request: Request, files: Sequence[int]) -> int:
        """Fork a command with these three standard files; return its process ID."""
        data = json.dumps(asdict(request)).encode()
        with self._lock:
            socket.send_fds(self._connection, [_LENGTH.pack(len(data))], files)
            self._connection.sendall(data)
            pid = _LENGTH.unpack(_receive(self._connection, _LENGTH.size))[0]
        return int(pid)

    def close(self) -> None:
        if os.getpid() == self._owner:
            self._connection.close()
            self._process.wait()


def _start_variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        key: value
        for key, value in environment.items()
        if key.startswith(_READ_AT_START) and key != "PYTHONPATH"  # a forked command adds it to its path
    }


class _ForkedCommand(subprocess.Popen[bytes]):
    """A command that a server forks; otherwise identical to any child process."""

    def __init__(self, server: _Server, request: Request, **options: Any) -> None:
        self._server = server
        self._request = request
        super().__init__([str(PROGRAM), *request.arguments], **options)

    def _execute_child(self, *arguments: Any) -> None:
        """Replace fork and exec; Popen has created the pipes, and waits for the process."""
        read_in, write_in, read_out, write_out, read_err, write_err = arguments[10:16]
        self.pid = self._server.fork(self._request, [read_in, write_out, write_err])
        self._child_created = True
        null = getattr(self, "_devnull", None)
        pipes = ((read_in, write_in), (write_out, read_out), (write_err, read_err))
        opened = {theirs for theirs, ours in pipes if ours != -1 or theirs == null}
        for descriptor in opened:  # not the files of the caller
            os.close(descriptor)


_servers: dict[int, _Server] = {}
_servers_lock = threading.Lock()


def _running_server() -> _Server:
    """Return the server of this process; start it if there is none."""
    with _servers_lock:
        server = _servers.get(os.getpid())
        if server is None or server.has_ended:
            server = _servers[os.getpid()] = _Server()
        return server


def start_command(
    arguments: Sequence[str],
    *,
    directory: Path,
    environment: Mapping[str, str],
    stdin: int | IO[bytes] = subprocess.DEVNULL,
    stdout: int | IO[bytes] = subprocess.PIPE,
    stderr: int | IO[bytes] = subprocess.PIPE,
    new_session: bool = False,
    namespace: str = "",
) -> subprocess.Popen[bytes]:
    """Start a command of `fleet`.

    Args:
        arguments: Arguments of `fleet`.
        directory: Working directory.
        environment: All variables.
        stdin: Standard input, as for `subprocess.Popen`.
        stdout: Standard output.
        stderr: Standard error.
        new_session: Whether the command starts a session.
        namespace: Name of the network namespace to run in; empty: the namespace of the tests.

    Returns:
        The process, a child of this one.
    """
    server = _running_server() if platform.machine() in _CLONE else None
    if server is None or not server.can_fork(environment):
        prefix = ("ip", "netns", "exec", namespace) if namespace else ()
        return subprocess.Popen(
            [*prefix, str(PROGRAM), *arguments],
            cwd=directory,
            env=environment,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=new_session,
        )
    ignored = [number for number in _IGNORABLE if signal.getsignal(number) is signal.SIG_IGN]
    file = f"/run/netns/{namespace}" if namespace else ""
    request = Request(arguments, str(directory), environment, file, new_session, ignored)
    return _ForkedCommand(server, request, stdin=stdin, stdout=stdout, stderr=stderr)


_IGNORABLE = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

# --- server ---------------------------------------------------------------------------------------------------------


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def _next_request(connection: socket.socket) -> tuple[Request, list[int]] | None:
    header, files, _flags, _address = socket.recv_fds(connection, _LENGTH.size, 3)
    if not header:
        return None
    (length,) = _LENGTH.unpack(header)
    return Request(**json.loads(_receive(connection, length))), files


def _fork() -> int:
    """Fork a process whose parent is the parent of this one; return its ID, or 0 in the forked process."""
    python = ctypes.pythonapi
    libc = ctypes.PyDLL(None)
    libc.syscall.restype = ctypes.c_long
    python.PyOS_BeforeFork()
    flags = _CLONE_PARENT | signal.SIGCHLD
    pid = int(libc.syscall(_CLONE[platform.machine()], ctypes.c_ulong(flags), 0, 0, 0, 0))
    if pid == 0:
        python.PyOS_AfterFork_Child()
    else:
        python.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError("cannot fork")
    return pid


def _serve(connection: socket.socket) -> tuple[Request, list[int]] | None:
    """Fork a process for each request; return the request in each forked process, and None in the server."""
    has_cloud = False
    while (request := _next_request(connection)) is not None:
        if not has_cloud and any(name.startswith(_CLOUD_PREFIX) for name in request[0].environment):
            importlib.import_module(_CLOUD)
            gc.collect()
            gc.freeze()
            has_cloud = True
        if (pid := _fork()) == 0:
            connection.close()
            return request
        connection.sendall(_LENGTH.pack(pid))
        for descriptor in request[1]:
            os.close(descriptor)
    return None


def _become(request: Request, files: Sequence[int]) -> None:
    """Turn this process into the process of the command."""
    for target, descriptor in enumerate(files):
        os.dup2(descriptor, target)
    os.closerange(3, 1024)
    if request.new_session:
        os.setsid()
    if request.namespace:
        with Path(request.namespace).open("rb") as file:
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"cannot enter {request.namespace}")
    os.chdir(request.directory)
    os.environ.clear()
    os.environ.update(request.environment)
    for number in _IGNORABLE:
        signal.signal(number, signal.SIG_IGN if number in request.ignored else signal.SIG_DFL)
    if signal.SIGINT not in request.ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    _open_standard_files()
    sys.argv = [str(PROGRAM), *request.arguments]
    sys.path[0] = str(PROGRAM.parent)
    directories = [entry for entry in request.environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[1:1] = [str(Path(entry).absolute()) for entry in directories]


def _open_standard_files() -> None:
    """Open the standard files again, as Python does when it starts."""
    old = (sys.stdin, sys.stdout, sys.stderr)
    for number, (name, mode) in enumerate((("stdin", "rb"), ("stdout", "wb"), ("stderr", "wb"))):
        binary = cast("io.BufferedWriter", open(number, mode, closefd=False))  # noqa: SIM115
        is_lively = name == "stderr" or binary.isatty()
        text = io.TextIOWrapper(
            binary, old[number].encoding, old[number].errors, newline="\n", line_buffering=is_lively
        )
        setattr(sys, name, text)
        setattr(sys, f"__{name}__", text)


def _import_all() -> None:
    for name in _MODULES:
        importlib.import_module(name)
    for name in _PACKAGES:
        for module in pkgutil.walk_packages(importlib.import_module(name).__path__, f"{name}."):
            if not module.name.endswith("__main__") and not module.name.startswith("provision.gce."):
                importlib.import_module(module.name)

    import typer

    from fleet.cli.application import root_command
    from train.pack import build_agent

    root_command()  # Typer takes 40 ms to build the commands
    parsed = typer.Typer(add_completion=False)
    parsed.command()(_parse_word)
    parsed([], standalone_mode=False)  # Typer imports what converts values when it parses the first option, in 0.2 s
    build_agent()


def _parse_word(_word: str = "") -> None:
    pass


def main() -> Request | None:
    """Serve until the connection is closed; return the request in each forked process, and None in the server."""
    atexit.register(_end)  # exit handlers run in the reverse order
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    _import_all()
    gc.collect()
    gc.freeze()
    connection = socket.socket(fileno=int(sys.argv[1]))
    request = _serve(connection)
    if request is None:
        return None
    _become(*request)
    return request[0]


_exit_code: list[int] = []


def _run() -> None:
    """Run the launcher; the process ends as Python does."""
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        runpy.run_path(str(PROGRAM), run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, int):
            _exit_code.append(end.code)
        raise
    except KeyboardInterrupt:  # before the launcher can catch it; Python would end in the same way
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)


def _end() -> None:
    """End the process of a command after all other exit handlers, without freeing its memory."""
    if not _exit_code:
        return
    code = _exit_code[0]
    for file in (sys.stdout, sys.stderr):
        try:
            file.flush()
        except OSError:
            code = 120  # as Python reports it
    os._exit(code)


if __name__ == "__main__" and main() is not None:
    _run()
