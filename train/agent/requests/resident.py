"""The resident agent: stay on the host after a conversation, and fork an agent for each later connection.

An agent whose client sent KeepRunning forks the resident one when its conversation ends. Clients reach it through
sshd's forwarding to its socket. A forked agent saves the start of Python and all imports; otherwise its conversation
is equal to that of an agent that sshd has started. The resident agent ends when no client has connected for a while,
when another version of the agent takes its place, when a file changes that decides the environment of a login, with
the request Release, and when its socket or its modules were removed. Clients then start an agent as if there had
never been a resident one.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import sys
import time
from importlib import import_module

from train.agent.files.disk import read_json, read_text, remove_file
from train.agent.gang.states import compile_messages
from train.agent.host.control import short_path
from train.agent.host.lock import open_lock, try_lock
from train.agent.host.processes import ProcessId, await_exit, identify, is_alive
from train.agent.host.spawn import close_descriptors, name_process, return_memory
from train.agent.protocol.classes import TYPE_CHECKING, NamedTuple, compile_constructors
from train.agent.protocol.records import compile_readers

if TYPE_CHECKING:
    import socket
    from typing import Callable, NoReturn, Optional, Tuple

    from train.agent.files.paths import HostPaths

NAME = "fleet-agent"
"""Name of the process."""

_BACKLOG = 16
_CHECK_S = 30.0  # between two checks whether the socket still exists
_EXIT_S = 5.0
_AGAIN_S = 0.05  # a lock has no event that could be awaited for a limited time
_CREDENTIALS = "3i"  # struct ucred: process, user, and group ID, unix(7)
_LOGIN_FILES = (
    "/etc/bash.bashrc", "/etc/csh.cshrc", "/etc/default/locale", "/etc/environment", "/etc/fish/config.fish",
    "/etc/group", "/etc/passwd", "/etc/profile", "/etc/profile.d", "/etc/security/limits.conf",
    "/etc/security/limits.d", "/etc/security/pam_env.conf", "/etc/ssh/sshd_config", "/etc/ssh/sshd_config.d",
    "/etc/zsh/zshenv", "/etc/zshenv", "~/.bash_login", "~/.bash_profile", "~/.bashrc", "~/.config/fish/conf.d",
    "~/.config/fish/config.fish", "~/.cshrc", "~/.pam_environment", "~/.profile", "~/.ssh/environment", "~/.ssh/rc",
    "~/.tcshrc", "~/.zshenv",
)  # fmt: skip
# Modules of the agent for `fleet train`.
_COMMON = ("requests.prepare", "requests.commit", "requests.follow", "requests.stop")


class Login(NamedTuple):
    """Properties that an agent inherited from its login."""

    umask: int  # with which the user's script is started
    files: Tuple[Tuple[int, int, int], ...]  # state of the files that decide the environment of a login

    def is_current(self) -> bool:
        """Return whether a new login would have the same environment, as far as these files decide."""
        return self.files == _read_states()


def read_login(umask: int) -> Login:
    """Return the login of this process.

    Args:
        umask: Before the agent changed it.
    """
    return Login(umask, _read_states())


def _read_states() -> Tuple[Tuple[int, int, int], ...]:
    return tuple(_state(os.path.expanduser(path)) for path in _LOGIN_FILES)


def _state(path: str) -> Tuple[int, int, int]:
    try:
        stat = os.stat(path)
    except OSError:
        return 0, 0, 0
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def stay(host: HostPaths, digest: str, login: Login, idle_s: float, converse: Callable[[], object]) -> None:
    """Fork the resident agent of a host, unless it has one of this version; end one of another version.

    Args:
        host: Paths of the fleet on this host.
        digest: Hash of the agent.
        login: Of this process.
        idle_s: Longest time without a connection, in seconds.
        converse: Holds a conversation on stdin and stdout.
    """
    is_single = len(os.listdir("/proc/self/task")) == 1  # a process with threads must not fork
    if not is_single or os.fork():
        return
    try:
        os.setsid()
        os.chdir("/")
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_IGN)
        _detach()
        _Resident(host, digest, login, converse).run(idle_s)
    finally:
        os._exit(0)


def _detach() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nothing, fd)
    close_descriptors(frozenset())


def _peer_user(connection: socket.socket) -> int:
    """Return the user ID of the process at the other end of a connection."""
    import socket
    import struct

    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(_CREDENTIALS))
    _, user, _ = struct.unpack(_CREDENTIALS, data)
    return int(user)


def has_resident(host: HostPaths, digest: str) -> bool:
    """Return whether a host has a resident agent of a version."""
    return _find(host, digest) is not None


def _find(host: HostPaths, digest: str = "") -> Optional[ProcessId]:
    """Return the resident agent of a version, or of any; None if none is alive."""
    record = read_json(host.resident) or {}
    value = record.get("process")
    if not isinstance(value, list) or len(value) != 3 or (digest and record.get("agent") != digest):
        return None
    process = ProcessId(*value)
    return process if is_alive(process) else None


def end_resident(host: HostPaths) -> None:
    """End the resident agent of a host, and wait until it has ended; conversations that it forked continue."""
    process = _find(host)
    if process is not None:
        with contextlib.suppress(OSError):
            os.kill(process.pid, signal.SIGKILL)  # one that is stopped would not end with another signal
        await_exit(process, _EXIT_S)
        remove_file(host.resident_socket)


class _Resident:
    """The resident agent."""

    def __init__(self, host: HostPaths, digest: str, login: Login, converse: Callable[[], object]) -> None:
        self._host = host
        self._digest = digest
        self._login = login
        self._converse = converse
        self._lock = -1
        self._name = read_text("/proc/self/comm").strip()  # of an agent that was started

    def run(self, idle_s: float) -> None:
        """Serve connections until none comes for `idle_s` seconds."""
        listener = self._listen()
        if listener is None:
            return
        for name in _COMMON:
            import_module(f"train.agent.{name}")
        compile_constructors()
        compile_readers()
        compile_messages()
        name_process(NAME)
        gc.collect()
        return_memory()
        gc.freeze()  # a forked agent shares what its collector does not visit
        self._serve_all(listener, idle_s)

    def _serve_all(self, listener: socket.socket, idle_s: float) -> None:
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        end = time.monotonic() + idle_s
        while os.path.exists(self._host.resident_socket) and (left_s := end - time.monotonic()) > 0:
            if not poll.poll(min(left_s, _CHECK_S) * 1000):
                continue
            if not (os.path.exists(sys.path[0]) and self._login.is_current()):  # the agent's modules, see start_agent
                break
            self._accept(listener)
            end = time.monotonic() + idle_s
        remove_file(self._host.resident_socket)

    def _listen(self) -> Optional[socket.socket]:
        """Return the listening socket, or None if this process is not needed."""
        import socket

        try:
            self._lock = open_lock(self._host.resident)
        except OSError:  # the fleet's directory was removed
            return None
        if not try_lock(self._lock):
            if has_resident(self._host, self._digest):
                return None
            end_resident(self._host)
            if not self._await_lock():
                return None
        os.ftruncate(self._lock, 0)
        record = {"agent": self._digest, "process": identify(os.getpid())}
        os.pwrite(self._lock, json.dumps(record).encode(), 0)
        remove_file(self._host.resident_socket)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        umask = os.umask(0o177)
        with short_path(self._host.resident_socket) as path:
            listener.bind(path)
        os.umask(umask)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
        return listener

    def _await_lock(self) -> bool:
        """Take the lock, which a conversation that was just forked may still hold; return False if it is kept."""
        end = time.monotonic() + _EXIT_S
        while not try_lock(self._lock):
            if has_resident(self._host, self._digest) or time.monotonic() > end:
                return False
            time.sleep(_AGAIN_S)
        return True

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:  # the client has gone
            return
        with connection, contextlib.suppress(OSError):  # no process can be forked: the client starts an agent
            if _peer_user(connection) == os.geteuid() and os.fork() == 0:
                self._serve(listener, connection)

    def _serve(self, listener: socket.socket, connection: socket.socket) -> NoReturn:
        try:
            listener.close()
            os.close(self._lock)
            name_process(self._name)
            os.setsid()
            os.chdir(os.path.expanduser("~"))
            for number in (signal.SIGHUP, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for fd in (0, 1):
                os.dup2(connection.fileno(), fd)
            connection.close()
            self._converse()
        finally:
            os._exit(0)
