"""Open an SSH connection to a host, with the keys and the host key that its provider named and no other settings.

`run_remote` runs one command on it and passes its output on while it runs.

Paramiko bounds neither packets nor buffers, and waits for some answers without a deadline: `GuardedSocket` and
`limited` do.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import errno
import functools
import logging
import os
import select
import shlex
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import paramiko
from fabric import Config, Connection
from paramiko.ssh_exception import NoValidConnectionsError

from fleet.errors import FleetError, NotFoundError, UnreachableError, translate_errors
from fleet.remote.fanout import no_answer, where
from fleet.remote.ssh.authentication import FleetKey, UserKeys
from fleet.remote.ssh.errors import is_refused, translate, translated
from fleet.steps import Shell, Step
from provision.model import Host
from provision.ssh_config.programs import programs_of_ssh, require_agreed

KEEPALIVE_S = 5
DEAD_AFTER_MS = 20_000
_SEND_DEADLINE_S = 20.0
# Only exchanges without numbers of any length: the server's numbers arrive before its key is verified, and paramiko
# neither bounds their length nor rejects negative ones, which costs minutes or never ends. Each OpenSSH since 5.7
# offers one of these.
KEY_EXCHANGES = ("curve25519-sha256@libssh.org", "ecdh-sha2-nistp256", "ecdh-sha2-nistp384", "ecdh-sha2-nistp521")
# Types of host keys that are asked for first, in the order of preference of a connection.
_KINDS = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521")
_SIGNATURES = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256")}  # host key algorithms by type of key
# AES-GCM is three times as fast as AES-CTR with its HMAC. Other ciphers of paramiko have lower priority, without CBC
# modes and 3DES.
_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")
_PACKET = 128 * 1024  # largest packet that hosts may send: four times the usual size, because each one takes time
_CLOSE_S = 2.0
_END_S = 2.0  # for a proxy program
_STDERR_MAX = 2000
_PAUSES_S = (0.1, 0.2, 0.4, 0.8, 1.6)  # before the next connection to a host that closed the last one at once
_MARGIN_S = 5.0  # by which paramiko's deadlines exceed that of the watchdog, whose error names the deadline

WINDOW = 16 * 1024 * 1024
"""Largest receive window in bytes: 16 MiB fill 1 Gb/s at a round-trip time of 100 ms."""

_WINDOWS = 8 * 1024 * 1024  # of all hosts that a command reads at the same time
_LEAST_WINDOW = 64 * 1024
_LOGIN_MAX = 256 * 1024  # bytes before the login succeeds; with OpenSSH they are about 5 KiB and the banner
_REFUSAL_MAX = 64  # bytes; a server that accepts the connection sends more before it can close it
_PACKETS_MAX = 512 * 1024  # bytes in a period of which none reaches a session: four packets, or 300 key exchanges
_PERIOD_S = 60.0  # OpenSSH exchanges keys once an hour, or after some data

ANSWER_S = 20.0  # until a command starts
_TICK_S = 0.5
_LINGER_S = 1.0  # for output of processes that the command left running
_EXIT_S = 5.0
_READ = 64 * 1024

OnOutput = Callable[[str, bytes], None]
"""Called with the stream, ``stdout`` or ``stderr``, and its bytes; with no bytes now and then."""

# Without a handler, Python prints paramiko's own reports of broken connections on stderr.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


def share_window(hosts: int) -> int:
    """Return the receive window of each of several hosts, so that what waits for a slow reader stays bounded."""
    return WINDOW if hosts <= 1 else max(_LEAST_WINDOW, _WINDOWS // hosts)


@contextlib.contextmanager
def limited(
    host: Host, sever: Callable[[], None], deadline_s: float, doing: str, *, is_opening: bool = False
) -> Iterator[threading.Event]:
    """Context manager: sever a connection at a deadline, and translate the errors of the SSH libraries.

    Args:
        host: The host of the connection.
        sever: Ends the connection; called from another thread.
        deadline_s: Longest time, in seconds.
        doing: The action, which follows ``while`` in an error.
        is_opening: The errors other than that of the deadline do not name the action.

    Yields:
        An event that is set at the deadline.
    """
    is_over = threading.Event()

    def end() -> None:
        is_over.set()
        sever()

    timer = threading.Timer(deadline_s, end)
    timer.daemon = True
    timer.start()
    with translated(host, "" if is_opening else doing):
        try:
            yield is_over
        except FleetError:
            raise
        except Exception as error:
            if is_over.is_set() or isinstance(error, TimeoutError):
                raise no_answer(host, deadline_s, doing) from error
            if isinstance(error, (paramiko.SSHException, OSError, EOFError)):
                raise
            # Paramiko's thread passes on what its parsers and the cryptography raise, of any type.
            raise paramiko.SSHException(f"the server sent invalid data: {type(error).__name__}: {error}") from error
        finally:
            timer.cancel()


class GuardedSocket(socket.socket):
    """A connected socket that fails if the server sends more than it may, or takes no data for `send_deadline_s`.

    Args:
        connected: The socket to take over.
        window: Bytes that a session may receive before they are read.
    """

    def __init__(self, connected: socket.socket, window: int) -> None:
        super().__init__(fileno=connected.detach())
        self._limit = 2 * window  # an honest server stays below the half
        self._session: paramiko.Channel | None = None
        self._is_open = False
        self._lock = threading.Lock()
        self._read = 0
        self._reached = 0  # bytes that had reached the session when the last of them did
        self._since = 0  # bytes received since then, at most in the last period
        self._period_ends = 0.0
        self._blocked_at: float | None = None  # since then, the server takes no data
        self.send_deadline_s = _SEND_DEADLINE_S
        self.is_stalled = False

    @property
    def is_refused(self) -> bool:
        """Return whether the server has sent at most a short line, such as ``Exceeded MaxStartups``."""
        return not self._is_open and self._since < _REFUSAL_MAX

    def allow_sessions(self) -> None:
        """The login has succeeded."""
        self._is_open = True
        self._since = 0

    def watch(self, session: paramiko.Channel) -> None:
        """Bound what a session keeps."""
        self._session = session

    def has_read(self, size: int) -> None:
        """Count bytes that were read from the session."""
        with self._lock:
            self._read += size

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        """Receive data.

        Raises:
            OSError: the server has sent more than it may.
        """
        data = super().recv(size, flags)
        if self._is_open and time.monotonic() > self._period_ends:
            self._since, self._period_ends = 0, time.monotonic() + _PERIOD_S
        self._since += len(data)
        kept = 0
        if self._session is not None:
            kept = len(self._session.in_buffer) + len(self._session.in_stderr_buffer)
            with self._lock:
                reached = self._read + kept
            if reached != self._reached:
                self._reached, self._since = reached, len(data)
        if kept > self._limit or self._since > (_PACKETS_MAX if self._is_open else _LOGIN_MAX):
            self.shutdown(socket.SHUT_RDWR)
            raise OSError(errno.EPROTO, "the host sent more data than it may")  # paramiko reads both arguments
        return data

    def send(self, data: Any, flags: int = 0, /) -> int:
        """Send data.

        Raises:
            TimeoutError: the server does not take them yet; paramiko tries it again.
            OSError: it has taken none for `send_deadline_s`.
        """
        try:
            sent = super().send(data, flags)
        except TimeoutError:
            self._blocked_at = self._blocked_at or time.monotonic()
            if time.monotonic() < self._blocked_at + self.send_deadline_s:
                raise
            self.is_stalled = True
            self.sever()
            raise OSError(errno.ETIMEDOUT, "the host takes no data") from None
        self._blocked_at = None
        return sent

    def sever(self) -> None:
        """Shut the connection down, from any thread; blocked calls raise an error."""
        with contextlib.suppress(OSError):
            self.shutdown(socket.SHUT_RDWR)


class Proxy:
    """A program whose input and output are the connection; `socket` is this side's end of it.

    The connection is a socket, not two pipes: another thread can shut it down, and it supports timeouts.

    Args:
        command: The program and its arguments, which are not passed to a shell.

    Raises:
        OSError: the program cannot be started.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self.socket, theirs = socket.socketpair()
        self._lock = threading.Lock()
        try:
            self._process = subprocess.Popen(
                list(command),
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=self._stderr,
                start_new_session=True,
            )
        except OSError:
            self.socket.close()
            self._stderr.close()
            raise
        finally:
            theirs.close()

    def last_output(self) -> str:
        """Return the last line that the program wrote to stderr; one that begins with ``ERROR:`` if there is one."""
        if self._stderr.closed:
            return ""
        size = os.fstat(self._stderr.fileno()).st_size
        text = os.pread(self._stderr.fileno(), _STDERR_MAX, max(0, size - _STDERR_MAX)).decode("utf-8", "replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR:")]  # of gcloud, followed by advice
        return next(reversed(errors or lines), "")

    def close(self) -> None:
        """End the program; repeated calls do nothing."""
        with self._lock:
            self.socket.close()
            if self._process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    self._process.terminate()
                try:
                    self._process.wait(_END_S)
                except subprocess.TimeoutExpired:
                    self._process.kill()
                    self._process.wait()
            self._stderr.close()


class HostConnection:
    """An open SSH connection.

    Attributes:
        host: The connected host.
        fabric: The connection of fabric. Its ``run`` and ``put`` are not used: ``run`` keeps all output, as text, and
            ``put`` requires SFTP. Its gateways are not used: ``ssh -W`` honours all options of ssh_config.
        guard: Its socket.
    """

    def __init__(self, host: Host, fabric: Connection, guard: GuardedSocket, proxy: Proxy | None = None) -> None:
        self.host = host
        self.fabric = fabric
        self.guard = guard
        self._proxy = proxy
        self.has_read = guard.has_read
        self.sever = guard.sever

    @property
    def transport(self) -> paramiko.Transport:
        """The transport.

        Raises:
            EOFError: the connection is closed.
        """
        transport: paramiko.Transport | None = self.fabric.client.get_transport()
        if transport is None:
            raise EOFError
        return transport

    def open_session(self, deadline_s: float) -> paramiko.Channel:
        """Open a session in which one command can run.

        Args:
            deadline_s: Longest time, in seconds.

        Raises:
            UnreachableError: the host did not open one within `deadline_s` seconds.
        """
        with limited(self.host, self.sever, deadline_s, "opening a session"):
            if not self.transport.is_active():
                raise self.transport.get_exception() or EOFError
            session: paramiko.Channel = self.fabric.create_session()
        self.guard.watch(session)
        return session

    def execute(self, command: str, deadline_s: float, doing: str) -> paramiko.Channel:
        """Start a command line in a session of its own.

        Args:
            command: The command line, for the shell of the host.
            deadline_s: Longest time, in seconds.
            doing: The action, which follows ``while`` in an error.

        Raises:
            UnreachableError: the connection broke, or the host does not start the command.
        """
        session = self.open_session(deadline_s)
        with limited(self.host, self.sever, deadline_s, doing):
            session.exec_command(command)
        return session

    def ended(self, session: paramiko.Channel, doing: str) -> FleetError:
        """Return the error of a session whose connection ended during an action."""
        error = session.get_transport().get_exception() or EOFError()
        return translate(self.host, error, doing) or UnreachableError(
            f"{where(self.host)} is gone", cause=str(error), next_steps=[Step("status")]
        )

    def close(self) -> None:
        """Close the connection; repeated calls do nothing."""
        self.sever()
        transport = self.fabric.client.get_transport()
        self.fabric.client.close()
        if transport is not None and transport.is_alive():
            transport.join(_CLOSE_S)
        self.guard.close()
        if self._proxy is not None:
            self._proxy.close()


def connect(
    host: Host, key_path: Path, *, connect_timeout_s: float = 10.0, window: int | None = None
) -> HostConnection:
    """Connect to `host` and log in with the fleet's key, or with the user's keys if the host belongs to the user.

    The user's SSH configuration is not read. Of the user's keys and agent, only
    those are used that `host` names.

    Args:
        host: The host; its pinned host key is the only accepted one.
        key_path: Private key of the fleet.
        connect_timeout_s: Longest time until the connection is open, in seconds.
        window: Bytes that a session may receive before they are read; None: WINDOW.

    Raises:
        UnreachableError: the host does not answer in time, refuses, or does not have the pinned host key.
        UsageError: what runs on this computer for it has changed since the user accepted it.
    """
    with translate_errors():
        require_agreed(host)
    pinned = _pinned_key(host)
    ends_at = time.monotonic() + connect_timeout_s
    pauses = iter(_PAUSES_S)
    while True:
        try:
            left_s = max(0.1, round(ends_at - time.monotonic(), 1))
            return _connect(host, pinned, key_path, left_s, window or WINDOW)
        except _ClosedAtOnceError:  # too many connections to this host have not logged in yet: MaxStartups of sshd
            pause_s = next(pauses, connect_timeout_s)
            if time.monotonic() + pause_s >= ends_at:
                raise
            time.sleep(pause_s)


class _ClosedAtOnceError(UnreachableError):
    """The server closed the connection before it sent anything."""


def _connect(host: Host, pinned: paramiko.PKey, key_path: Path, timeout_s: float, window: int) -> HostConnection:
    with contextlib.ExitStack() as stack:
        proxy, guard = _reach(stack, host, timeout_s, window)
        keys = UserKeys(host) if host.is_users else None
        if keys is not None:
            stack.callback(keys.close)
        fabric = _make_connection(host, pinned, key_path, timeout_s, guard, keys, window)
        connection = HostConnection(host, fabric, guard, proxy)
        stack.callback(connection.close)
        _open(connection, timeout_s, proxy, keys)
        guard.allow_sessions()
        stack.pop_all()
    if keys is not None:
        keys.close()
    return connection


def _reach(
    stack: contextlib.ExitStack, host: Host, timeout_s: float, window: int
) -> tuple[Proxy | None, GuardedSocket]:
    """Return the program that carries the connection, if there is one, and the socket; the stack closes both."""
    proxy = None
    if host.proxy:
        try:
            proxy = Proxy(host.proxy)
        except OSError as error:
            raise _proxy_failed(host, f"{host.proxy[0]}: {error.strerror}") from error
        stack.callback(proxy.close)
    with translated(host):
        guard = GuardedSocket(proxy.socket if proxy else _dial(host, timeout_s), window)
    stack.callback(guard.close)
    return proxy, guard


def _dial(host: Host, timeout_s: float) -> socket.socket:
    """Connect, send small packets without delay, and end a connection whose peer acknowledges nothing."""
    place = (host.address, host.port)
    try:
        sock = socket.create_connection(place, timeout_s)
    except TimeoutError as error:
        raise no_answer(host, timeout_s, "the SSH connection was being set up") from error
    except socket.gaierror:
        raise
    except OSError as error:
        raise NoValidConnectionsError({place: error}) from error
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    user_timeout = getattr(socket, "TCP_USER_TIMEOUT", None)  # Linux
    if user_timeout is not None:
        sock.setsockopt(socket.IPPROTO_TCP, user_timeout, DEAD_AFTER_MS)
    return sock


def _open(connection: HostConnection, timeout_s: float, proxy: Proxy | None, keys: UserKeys | None) -> None:
    host, doing = connection.host, "the SSH connection was being set up"
    with limited(host, connection.sever, timeout_s, doing, is_opening=True) as is_over:
        try:
            connection.fabric.open()
        except Exception as error:
            if is_over.is_set() or isinstance(error, TimeoutError):
                raise
            meant = translate(host, error)
            if keys is not None and is_refused(error):
                raise keys.refused() from error
            if proxy is not None and proxy.last_output() and not isinstance(error, paramiko.BadHostKeyException):
                raise _proxy_failed(host, proxy.last_output()) from error
            if proxy is None and meant is not None and connection.guard.is_refused:
                raise _ClosedAtOnceError(meant.message, cause=meant.cause, next_steps=meant.next_steps) from error
            raise
        connection.transport.set_keepalive(KEEPALIVE_S)


def _proxy_failed(host: Host, output: str) -> UnreachableError:
    """Return the error of a program that does not carry the connection to `host`, with its last output."""
    by_hand = [word for word in host.proxy if word not in ("-o", "BatchMode=yes")]
    is_ssh = "BatchMode=yes" in host.proxy
    # A program that an inventory or its SSH configuration chose is never offered to paste.
    is_offered = not host.agreed or (is_ssh and not programs_of_ssh("", host.proxy))
    return UnreachableError(
        f"{host.proxy[0]} does not connect to {where(host)}",
        cause=output,
        hint="the command must connect when run by hand",
        next_steps=[Shell(shlex.join(by_hand if is_ssh else host.proxy))] if is_offered else [],
    )


def _make_connection(
    host: Host,
    pinned: paramiko.PKey,
    key_path: Path,
    timeout_s: float,
    guard: GuardedSocket,
    keys: UserKeys | None,
    window: int,
) -> Connection:
    """Return a connection that is not open yet, which accepts only the pinned host key."""
    options: dict[str, Any] = {
        "auth_strategy": keys or FleetKey(host.user, _load_key(key_path)),
        **dict.fromkeys(("banner_timeout", "auth_timeout", "channel_timeout"), timeout_s + _MARGIN_S),
        "transport_factory": lambda sock, **more: _transport(sock, pinned.get_name(), window, **more),
        "sock": guard,
    }
    config = Config(lazy=True, ssh_config=paramiko.SSHConfig())  # lazy: without configuration files
    connection = Connection(host.address, user=host.user, port=host.port, config=config, connect_kwargs=options)
    connection.client.set_missing_host_key_policy(paramiko.RejectPolicy())
    name = host.address if host.port == 22 else f"[{host.address}]:{host.port}"
    connection.client.get_host_keys().add(name, pinned.get_name(), pinned)
    return connection


def _load_key(path: Path) -> paramiko.PKey:
    try:
        return _parsed_key(path, path.stat().st_mtime_ns)
    except (OSError, ValueError, paramiko.SSHException, paramiko.pkey.UnknownKeyType) as error:
        if not path.parent.exists():
            message = f"fleet {path.parent.name!r} was deleted meanwhile"
            raise NotFoundError(message, next_steps=[Step("up")]) from error
        message = f"the fleet's key {path} cannot be read"
        raise UnreachableError(message, cause=str(error), next_steps=[Step("down"), Step("up")]) from error


@functools.lru_cache(maxsize=8)
def _parsed_key(path: Path, _changed_at: int) -> paramiko.PKey:
    """Return the key in a file, which logs in on all hosts of a fleet."""
    return paramiko.PKey.from_path(path)


def _pinned_key(host: Host) -> paramiko.PKey:
    """Return the host key of `host`, which `provision` obtained from a source other than the connection."""
    try:
        kind, text, *_ = host.host_key.split()
        return paramiko.PKey.from_type_string(kind, base64.b64decode(text, validate=True))
    except (ValueError, binascii.Error, paramiko.SSHException, paramiko.pkey.UnknownKeyType) as error:
        raise UnreachableError(
            f"{where(host)} has no usable host key pinned as {host.key_alias}",
            cause=f"{host.host_key[:40]!r} is not an OpenSSH public key",
            next_steps=[Step("down"), Step("up")],
        ) from error


def _transport(sock: GuardedSocket, key_type: str, window: int, **options: Any) -> paramiko.Transport:
    """Return a transport that accepts only host keys of a type, so that no number of another key is parsed."""
    transport = paramiko.Transport(sock, default_window_size=window, default_max_packet_size=_PACKET, **options)
    security = transport.get_security_options()
    security.kex = KEY_EXCHANGES
    security.key_types = [name for name in security.key_types if name in _SIGNATURES.get(key_type, (key_type,))]
    kept = [name for name in security.ciphers if not name.endswith("-cbc") and name not in _CIPHERS]
    security.ciphers = (*(name for name in _CIPHERS if name in security.ciphers), *kept)
    return transport


def fetch_host_key(host: Host, *, timeout_s: float = 20.0) -> str:
    """Return the key that `host` presents, ``ssh-ed25519 AAAA…``, before sending it any secret.

    Its authenticity is not confirmed. The route is that of later connections.

    Args:
        host: The host, with its SSH settings.
        timeout_s: Longest time until the host has presented it, in seconds.

    Raises:
        UnreachableError: the host does not answer in time, or does not use SSH.
        UsageError: what runs on this computer for it has changed since the user accepted it.
    """
    with translate_errors():
        require_agreed(host)
    with contextlib.ExitStack() as stack:
        proxy, guard = _reach(stack, host, timeout_s, WINDOW)
        stack.callback(guard.sever)
        try:
            with limited(host, guard.sever, timeout_s, "showing its host key"):
                transport = paramiko.Transport(guard)
                stack.callback(transport.join, timeout_s)
                stack.callback(transport.close)
                security = transport.get_security_options()
                security.kex = KEY_EXCHANGES
                security.key_types = (*_KINDS, *(kind for kind in security.key_types if kind not in _KINDS))
                transport.start_client(timeout=timeout_s + _MARGIN_S)
                key = transport.get_remote_server_key()
        except UnreachableError as error:
            if proxy is not None and proxy.last_output():
                raise _proxy_failed(host, proxy.last_output()) from error
            raise
        return f"{key.get_name()} {key.get_base64()}"


def run_remote(connection: HostConnection, command: str, on_output: OnOutput) -> int:
    """Run a command line, and return its exit code.

    Args:
        connection: Connection to the host; the command ends if it is severed.
        command: The command line, for the shell of the host.
        on_output: Takes the output.

    Raises:
        UnreachableError: the connection broke, or the host does not start the command.
    """
    session = connection.execute(command, ANSWER_S, "starting the command")
    _read_all(connection, session, on_output)
    session.status_event.wait(_EXIT_S)
    if session.exit_status < 0:
        raise connection.ended(session, "running the command")
    return int(session.exit_status)


def _read_all(connection: HostConnection, session: paramiko.Channel, on_output: OnOutput) -> None:
    """Pass the output on until its end, or until the command has ended and is quiet."""
    readable = select.poll()  # select() takes no descriptor above 1023
    readable.register(session.fileno(), select.POLLIN)
    last_at = time.monotonic()
    while True:
        ended = session.eof_received or session.closed
        readable.poll(_TICK_S * 1000)
        read = []
        if session.recv_ready():
            read.append(("stdout", session.recv(_READ)))
        if session.recv_stderr_ready():
            read.append(("stderr", session.recv_stderr(_READ)))
        for stream, data in read:
            connection.has_read(len(data))
            on_output(stream, data)
        if read:
            last_at = time.monotonic()
            continue
        if ended or (session.exit_status_ready() and time.monotonic() - last_at > _LINGER_S):
            return
        on_output("stdout", b"")
