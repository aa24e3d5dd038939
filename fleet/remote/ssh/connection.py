"""Open an SSH connection to a host, with the keys and the host key that its provider named and no other settings.

`run_remote` runs one command on it and passes its output on while it runs.

Paramiko bounds neither packets nor buffers, and waits for some answers without a deadline: `GuardedSocket` and
`limited` do.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import logging
import math
import os
import select
import shlex
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import paramiko
from fabric import Config, Connection

from fleet.errors import FleetError, UnreachableError, translate_errors
from fleet.remote.fanout import no_answer, where
from fleet.remote.quoting import last_line
from fleet.remote.ssh.authentication import Keys
from fleet.remote.ssh.errors import is_refused, translate
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
_OPENING = threading.BoundedSemaphore(128)  # connections that are being set up, so that none waits for its turn long
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
    host: Host,
    sever: Callable[[], None],
    deadline_s: float,
    doing: str,
    explain: Callable[[Exception], FleetError] | None = None,
) -> Iterator[None]:
    """Context manager: sever a connection at a deadline, and translate the errors of the SSH libraries.

    Args:
        host: The host of the connection.
        sever: Ends the connection; called from another thread.
        deadline_s: Longest time, in seconds.
        doing: The action, which follows ``while`` in an error.
        explain: Returns the error for an exception before the deadline; None: `translate` does.
    """
    timer = threading.Timer(deadline_s, sever)
    timer.daemon = True
    ends_at = time.monotonic() + deadline_s
    timer.start()
    try:
        yield
    except FleetError:
        raise
    except Exception as error:
        if time.monotonic() >= ends_at or isinstance(error, TimeoutError):
            raise no_answer(host, deadline_s, doing) from error
        raise (explain(error) if explain else translate(host, error, doing)) from error
    finally:
        timer.cancel()


class GuardedSocket(socket.socket):
    """A connected socket that fails if the server sends more than it may, or takes no data for `send_deadline_s`.

    Args:
        connected: The socket to take over.
        window: Bytes that a session may receive before they are read.

    Attributes:
        window: As given; an honest server stays below it.
        is_open: Whether the login has succeeded.
        session: The session whose buffers are bounded.
        read: Number of bytes that were read from the session.
        is_stalled: Whether the server took no data for `send_deadline_s`.
    """

    def __init__(self, connected: socket.socket, window: int) -> None:
        super().__init__(fileno=connected.detach())
        self.is_open = False
        self.session: paramiko.Channel | None = None
        self.read = 0
        self.send_deadline_s = _SEND_DEADLINE_S
        self.is_stalled = False
        self.window = window
        self._reached = 0  # bytes that had reached the session when the last of them did
        self._since = 0  # bytes received since then, at most in the last period
        self._period_ends = 0.0
        self._blocked_at: float | None = None  # since then, the server takes no data

    @property
    def is_refused(self) -> bool:
        """Return whether the server has sent at most a short line, such as ``Exceeded MaxStartups``."""
        return not self.is_open and self._since < _REFUSAL_MAX

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        """Receive data.

        Raises:
            OSError: the server has sent more than it may.
        """
        data = super().recv(size, flags)
        if self.is_open and time.monotonic() > self._period_ends:
            self._since, self._period_ends = 0, time.monotonic() + _PERIOD_S
        self._since += len(data)
        session = self.session
        kept = 0 if session is None else len(session.in_buffer) + len(session.in_stderr_buffer)
        if self.read + kept != self._reached:
            self._reached, self._since = self.read + kept, len(data)
        if kept > 2 * self.window or self._since > (_PACKETS_MAX if self.is_open else _LOGIN_MAX):
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


class HostConnection:
    """An open SSH connection.

    Args:
        host: The connected host.
        fabric: The connection of fabric.
        guard: Its socket.
        resources: What else ends with it.

    Attributes:
        host: As given.
        fabric: As given. Its ``run`` and ``put`` are not used: ``run`` keeps all output, as text, and ``put``
            requires SFTP. Its gateways are not used: ``ssh -W`` honours all options of ssh_config.
        guard: As given.
        sever: Shuts the connection down, from any thread.
    """

    def __init__(self, host: Host, fabric: Connection, guard: GuardedSocket, resources: contextlib.ExitStack) -> None:
        self.host = host
        self.fabric = fabric
        self.guard = guard
        self.sever = guard.sever
        self._resources = resources

    def has_read(self, size: int) -> None:
        """Count bytes that were read from the session."""
        self.guard.read += size

    def execute(self, command: str, deadline_s: float, doing: str) -> paramiko.Channel:
        """Start a command line in a session.

        Args:
            command: The command line, for the shell of the host.
            deadline_s: Longest time, in seconds.
            doing: The action, which follows ``while`` in an error.

        Raises:
            UnreachableError: the connection broke, or the host does not start the command.
        """
        transport = self.fabric.transport
        with limited(self.host, self.sever, deadline_s, doing):
            if not transport.is_active():
                raise transport.get_exception() or EOFError
            session: paramiko.Channel = self.fabric.create_session()
            self.guard.session = session
            session.exec_command(command)
        return session

    def ended(self, doing: str) -> FleetError:
        """Return the error of a connection that ended during an action."""
        return translate(self.host, self.fabric.transport.get_exception() or EOFError(), doing)

    def close(self) -> None:
        """Close the connection; repeated calls do nothing."""
        self._resources.close()


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
    pinned, pauses = _pinned_key(host), iter(_PAUSES_S)
    ends_at = math.inf
    while True:
        with _OPENING, contextlib.ExitStack() as stack:
            ends_at = min(ends_at, time.monotonic() + connect_timeout_s)
            left_s = max(0.1, round(ends_at - time.monotonic(), 1))
            guard, stderr = _reach(stack, host, left_s, window or WINDOW)
            keys = Keys(host, key_path)
            try:
                fabric = _log_in(stack, host, pinned, keys, guard, stderr, left_s)
                return HostConnection(host, fabric, guard, stack.pop_all())
            except UnreachableError:
                # With a short line at most: too many connections have not logged in yet, MaxStartups of sshd.
                pause_s = next(pauses, connect_timeout_s)
                if host.proxy or not guard.is_refused or time.monotonic() + pause_s >= ends_at:
                    raise
        time.sleep(pause_s)


def _log_in(
    stack: contextlib.ExitStack,
    host: Host,
    pinned: paramiko.PKey,
    keys: Keys,
    guard: GuardedSocket,
    stderr: IO[bytes] | None,
    timeout_s: float,
) -> Connection:
    """Return an open connection, which the stack closes; only the pinned host key is accepted."""
    options: dict[str, Any] = {
        "auth_strategy": keys,
        **dict.fromkeys(("banner_timeout", "auth_timeout", "channel_timeout"), timeout_s + _MARGIN_S),
        "transport_factory": lambda sock, **more: _transport(sock, pinned.get_name(), **more),
        "sock": guard,
    }
    config = Config(lazy=True, ssh_config=paramiko.SSHConfig())  # lazy: without configuration files
    fabric = Connection(host.address, user=host.user, port=host.port, config=config, connect_kwargs=options)
    fabric.client.set_missing_host_key_policy(paramiko.RejectPolicy())
    name = host.address if host.port == 22 else f"[{host.address}]:{host.port}"
    fabric.client.get_host_keys().add(name, pinned.get_name(), pinned)

    def explain(error: Exception) -> FleetError:
        return keys.refused() if host.is_users and is_refused(error) else _explained(host, stderr, error)

    stack.callback(_close, fabric.client, guard)
    with contextlib.closing(keys), limited(host, guard.sever, timeout_s, _SETTING_UP, explain):
        fabric.open()
        fabric.transport.set_keepalive(KEEPALIVE_S)
    guard.is_open = True
    return fabric


_SETTING_UP = "the SSH connection was being set up"


def _close(client: paramiko.SSHClient, guard: GuardedSocket) -> None:
    guard.sever()
    transport = client.get_transport()
    client.close()
    if transport is not None and transport.is_alive():
        transport.join(_CLOSE_S)


def _transport(sock: GuardedSocket, key_type: str, **options: Any) -> paramiko.Transport:
    """Return a transport that accepts only host keys of a type, so that no number of another key is parsed."""
    transport = paramiko.Transport(sock, default_window_size=sock.window, default_max_packet_size=_PACKET, **options)
    security = transport.get_security_options()
    security.kex = KEY_EXCHANGES
    security.key_types = [name for name in security.key_types if name in _SIGNATURES.get(key_type, (key_type,))]
    kept = [name for name in security.ciphers if not name.endswith("-cbc") and name not in _CIPHERS]
    security.ciphers = (*(name for name in _CIPHERS if name in security.ciphers), *kept)
    return transport


def _pinned_key(host: Host) -> paramiko.PKey:
    """Return the host key of `host`, which `provision` obtained from a source other than the connection."""
    try:
        kind, text, *_ = host.host_key.split()
        return paramiko.PKey.from_type_string(kind, base64.b64decode(text, validate=True))
    except (ValueError, paramiko.SSHException, paramiko.pkey.UnknownKeyType) as error:
        raise UnreachableError(
            f"{where(host)} has no usable host key pinned as {host.key_alias}",
            cause=f"{host.host_key[:40]!r} is not an OpenSSH public key",
            next_steps=[Step("down"), Step("up")],
        ) from error


# --- routes -----------------------------------------------------------------------------------------------------


def _reach(
    stack: contextlib.ExitStack, host: Host, timeout_s: float, window: int
) -> tuple[GuardedSocket, IO[bytes] | None]:
    """Return the socket, and the stderr of the program that carries the connection if there is one.

    The stack closes both, and ends the program.

    Raises:
        UnreachableError: the host does not answer in time, or the program cannot be started.
        UsageError: what runs on this computer for it has changed since the user accepted it.
    """
    with translate_errors():
        require_agreed(host)
    if not host.proxy:
        return stack.enter_context(GuardedSocket(_dial(host, timeout_s), window)), None
    stderr = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - closed by the stack
    return stack.enter_context(GuardedSocket(_start_proxy(stack, host, stderr), window)), stderr


def _dial(host: Host, timeout_s: float) -> socket.socket:
    """Connect, send small packets without delay, and end a connection whose peer acknowledges nothing."""
    try:
        sock = socket.create_connection((host.address, host.port), timeout_s)
    except TimeoutError as error:
        raise no_answer(host, timeout_s, _SETTING_UP) from error
    except OSError as error:
        raise translate(host, error) from error
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    user_timeout = getattr(socket, "TCP_USER_TIMEOUT", None)  # Linux
    if user_timeout is not None:
        sock.setsockopt(socket.IPPROTO_TCP, user_timeout, DEAD_AFTER_MS)
    return sock


def _start_proxy(stack: contextlib.ExitStack, host: Host, stderr: IO[bytes]) -> socket.socket:
    """Start the program whose input and output are the connection; the stack ends it.

    The connection is a socket, not two pipes: another thread can shut it down, and it supports timeouts.
    """
    near, theirs = socket.socketpair()
    with theirs:
        try:
            process = subprocess.Popen(
                list(host.proxy), stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=stderr, start_new_session=True
            )
        except OSError as error:
            near.close()
            raise _proxy_failed(host, f"{host.proxy[0]}: {error.strerror}") from error
    stack.callback(_end, process)
    return near


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _last_line(stderr: IO[bytes] | None) -> str:
    """Return the last line that a proxy program wrote to stderr; one that begins with ``ERROR:`` if there is one."""
    if stderr is None:
        return ""
    size = os.fstat(stderr.fileno()).st_size
    text = os.pread(stderr.fileno(), _STDERR_MAX, max(0, size - _STDERR_MAX)).decode("utf-8", "replace")
    errors = [line for line in text.splitlines() if line.startswith("ERROR:")]  # of gcloud, followed by advice
    return last_line("\n".join(errors) or text)


def _explained(host: Host, stderr: IO[bytes] | None, error: Exception, doing: str = "") -> FleetError:
    output = "" if isinstance(error, paramiko.BadHostKeyException) else _last_line(stderr)
    return _proxy_failed(host, output) if output else translate(host, error, doing)


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
    doing = "showing its host key"
    with contextlib.ExitStack() as stack:
        guard, stderr = _reach(stack, host, timeout_s, WINDOW)
        stack.callback(guard.sever)
        with limited(host, guard.sever, timeout_s, doing, lambda error: _explained(host, stderr, error, doing)):
            transport = paramiko.Transport(guard)
            stack.callback(transport.join, timeout_s)
            stack.callback(transport.close)
            security = transport.get_security_options()
            security.kex = KEY_EXCHANGES
            security.key_types = (*_KINDS, *(kind for kind in security.key_types if kind not in _KINDS))
            transport.start_client(timeout=timeout_s + _MARGIN_S)
            key = transport.get_remote_server_key()
        return f"{key.get_name()} {key.get_base64()}"


# --- commands ---------------------------------------------------------------------------------------------------


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
    readable = select.poll()  # select() takes no descriptor above 1023
    readable.register(session.fileno(), select.POLLIN)
    last_at = time.monotonic()
    while True:
        ended = session.eof_received or session.closed
        readable.poll(_TICK_S * 1000)
        data = session.recv(_READ) if session.recv_ready() else b""
        errors = session.recv_stderr(_READ) if session.recv_stderr_ready() else b""
        connection.has_read(len(data) + len(errors))
        on_output("stdout", data)
        on_output("stderr", errors)
        if data or errors:
            last_at = time.monotonic()
        elif ended or (session.exit_status_ready() and time.monotonic() - last_at > _LINGER_S):
            break
    session.status_event.wait(_EXIT_S)
    if session.exit_status < 0:
        raise connection.ended("running the command")
    return int(session.exit_status)
