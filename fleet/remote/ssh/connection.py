"""Open an SSH connection to a host, with the keys and the host key that its provider named and no other settings."""

from __future__ import annotations

import base64
import binascii
import contextlib
import functools
import logging
import shlex
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import paramiko
from fabric import Config, Connection
from paramiko.ssh_exception import NoValidConnectionsError

from fleet.errors import NotFoundError, UnreachableError, translate_errors
from fleet.remote.fanout import no_answer, where
from fleet.remote.ssh.authentication import FleetKey, UserKeys
from fleet.remote.ssh.errors import is_refused, translate, translated
from fleet.remote.ssh.guard import WINDOW, GuardedSocket
from fleet.remote.ssh.proxy import Proxy
from fleet.remote.ssh.watchdog import Watchdog
from fleet.steps import Shell, Step
from provision.model import Host
from provision.ssh_config.programs import programs_of_ssh, require_agreed

T = TypeVar("T")

KEEPALIVE_S = 5
DEAD_AFTER_MS = 20_000
# Only exchanges without numbers of any length: the server's numbers arrive before its key is verified, and paramiko
# neither bounds their length nor rejects negative ones, which costs minutes or never ends. Each OpenSSH since 5.7
# offers one of these.
KEY_EXCHANGES = ("curve25519-sha256@libssh.org", "ecdh-sha2-nistp256", "ecdh-sha2-nistp384", "ecdh-sha2-nistp521")
_SIGNATURES = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256")}  # host key algorithms by type of key
# AES-GCM is three times as fast as AES-CTR with its HMAC. Other ciphers of paramiko have lower priority, without CBC
# modes and 3DES.
_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")
_PACKET = 128 * 1024  # largest packet that hosts may send: four times the usual size, because each one takes time
_CLOSE_S = 2.0
_PAUSES_S = (0.1, 0.2, 0.4, 0.8, 1.6)  # before the next connection to a host that closed the last one at once
_MARGIN_S = 5.0  # by which paramiko's deadlines exceed that of the watchdog, whose error names the deadline

# Without a handler, Python prints paramiko's own reports of broken connections on stderr.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class HostConnection:
    """An open SSH connection.

    Attributes:
        host: The connected host.
        fabric: The connection of fabric. Its ``run`` and ``put`` are not used: ``run`` keeps all output, as text, and
            ``put`` requires SFTP. Its gateways are not used: ``ssh -W`` honours all options of ssh_config.
    """

    def __init__(self, host: Host, fabric: Connection, guard: GuardedSocket, proxy: Proxy | None = None) -> None:
        self.host = host
        self.fabric = fabric
        self._guard = guard
        self._proxy = proxy
        self.has_read = guard.has_read

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
        doing = "opening a session"
        with Watchdog(self.sever, deadline_s) as watchdog, translated(self.host, doing):
            try:
                if not self.transport.is_active():
                    raise self.transport.get_exception() or EOFError
                session: paramiko.Channel = self.fabric.create_session()
            except (paramiko.SSHException, OSError, EOFError) as error:
                if watchdog.fired:
                    raise no_answer(self.host, deadline_s, doing) from error
                raise
        self._guard.watch(session)
        return session

    def sever(self) -> None:
        """Shut the socket down, from any thread; blocked calls on the connection raise an error."""
        with contextlib.suppress(OSError):
            self._guard.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection; repeated calls do nothing."""
        self.sever()
        transport = self.fabric.client.get_transport()
        self.fabric.client.close()
        if transport is not None and transport.is_alive():
            transport.join(_CLOSE_S)
        self._guard.close()
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

    def left_s() -> float:
        return max(0.1, round(ends_at - time.monotonic(), 1))

    for pause_s in _PAUSES_S:
        try:
            return _connect(host, pinned, key_path, left_s(), window or WINDOW)
        except _ClosedAtOnceError:  # too many connections to this host have not logged in yet: MaxStartups of sshd
            if time.monotonic() + pause_s >= ends_at:
                break
            time.sleep(pause_s)
    return _connect(host, pinned, key_path, left_s(), window or WINDOW)


class _ClosedAtOnceError(UnreachableError):
    """The server closed the connection before it sent anything."""


def _connect(host: Host, pinned: paramiko.PKey, key_path: Path, timeout_s: float, window: int) -> HostConnection:
    with contextlib.ExitStack() as stack:
        proxy = started_proxy(host) if host.proxy else None
        if proxy is not None:
            stack.callback(proxy.close)
        keys = UserKeys(host) if host.is_users else None
        if keys is not None:
            stack.callback(keys.close)
        with translated(host):
            guard = GuardedSocket(proxy.socket if proxy else _dial(host, timeout_s), window)
        stack.callback(guard.close)
        fabric = _make_connection(host, pinned, key_path, timeout_s, guard, keys, window)
        connection = HostConnection(host, fabric, guard, proxy)
        stack.callback(connection.close)
        _open(connection, guard, timeout_s, proxy, keys)
        guard.allow_sessions()
        stack.pop_all()
    if keys is not None:
        keys.close()
    return connection


def open_checked(begin: Callable[[], T]) -> T:
    """Begin an SSH connection; raise an SSHException for any exception with which a hostile server ends it.

    paramiko's thread passes on what its parsers and the cryptography raise, of any type.
    """
    try:
        return begin()
    except (paramiko.SSHException, OSError, EOFError):
        raise
    except Exception as error:
        raise paramiko.SSHException(f"the server sent invalid data: {type(error).__name__}: {error}") from error


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


def _open(
    connection: HostConnection, guard: GuardedSocket, timeout_s: float, proxy: Proxy | None, keys: UserKeys | None
) -> None:
    host = connection.host
    doing = "the SSH connection was being set up"
    with Watchdog(connection.sever, timeout_s) as watchdog, translated(host):
        try:
            open_checked(connection.fabric.open)
        except (paramiko.SSHException, OSError, EOFError) as error:
            # Paramiko's deadline for the server's version may end in the same moment as the watchdog.
            if watchdog.fired or watchdog.is_over or isinstance(error, TimeoutError):
                raise no_answer(host, timeout_s, doing) from error
            meant = translate(host, error)
            if keys is not None and is_refused(error):
                raise keys.refused() from error
            if proxy is not None and proxy.last_output() and not isinstance(error, paramiko.BadHostKeyException):
                raise proxy_failed(host, proxy.last_output()) from error
            if proxy is None and meant is not None and guard.is_refused:
                raise _ClosedAtOnceError(meant.message, cause=meant.cause, next_steps=meant.next_steps) from error
            raise
        connection.transport.set_keepalive(KEEPALIVE_S)


def started_proxy(host: Host) -> Proxy:
    """Start the program that carries the connection to `host`.

    Raises:
        UnreachableError: it cannot be started.
    """
    try:
        return Proxy(host.proxy)
    except OSError as error:
        raise proxy_failed(host, f"{host.proxy[0]}: {error.strerror}") from error


def proxy_failed(host: Host, output: str) -> UnreachableError:
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
    except FileNotFoundError as error:
        if path.parent.exists():
            raise _unreadable(path, error) from error
        raise NotFoundError(f"fleet {path.parent.name!r} was deleted meanwhile", next_steps=[Step("up")]) from error
    except (OSError, ValueError, paramiko.SSHException, paramiko.pkey.UnknownKeyType) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> UnreachableError:
    cause = str(error)
    return UnreachableError(
        f"the fleet's key {path} cannot be read", cause=cause, next_steps=[Step("down"), Step("up")]
    )


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
