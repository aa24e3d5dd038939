"""Open an SSH connection to a host, with the keys and the host key that its provider named and no other settings."""

from __future__ import annotations

import base64
import binascii
import contextlib
import encodings.idna  # noqa: F401 - getaddrinfo would import it, in several threads at once
import functools
import logging
import math
import shlex
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import paramiko

from fleet.errors import UnreachableError
from fleet.remote.fanout import no_answer, where
from fleet.remote.ssh.authentication import UserKeys
from fleet.remote.ssh.errors import is_cut, translated
from fleet.remote.ssh.internals import (
    await_command,
    await_opened,
    make_client,
    make_transport,
    open_socket,
    prepare,
    tune,
)
from fleet.remote.ssh.proxy import Proxy
from fleet.remote.ssh.receiving import PACKET, WINDOW
from fleet.remote.ssh.watchdog import Watchdog
from fleet.steps import Shell, Step
from provision.model import Host

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
_CLOSE_S = 2.0
_MARGIN_S = 5.0  # by which paramiko's deadlines exceed that of the watchdog, whose error names the deadline

# Without a handler, Python prints paramiko's own reports of broken connections on stderr.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class NoSocketError(Exception):
    """A host does not connect to one of its sockets."""


@dataclass(frozen=True)
class Start:
    """A command that is sent together with the login, which saves two round trips.

    Attributes:
        command: Command line for the shell of the host.
        window: Bytes that the host may send before they are read; None: WINDOW.
        on_send: Called when the command is about to be sent: from now on, it may run.
        path: Absolute path of a Unix socket of the host, to which a connection is requested instead of the command;
            empty: the command is sent.
    """

    command: str
    window: int | None = None
    on_send: Callable[[], object] = lambda: None
    path: str = ""


class HostConnection:
    """An open SSH connection.

    Attributes:
        host: The connected host.
        client: The client of paramiko. Fabric's ``run`` and ``put`` are not used: both are slow
            (https://github.com/pyinvoke/invoke/issues/1079). Its gateways are not used: ``ssh -W`` honours all
            options of ssh_config for jump hosts.
    """

    def __init__(self, host: Host, client: paramiko.SSHClient, proxy: Proxy | None = None) -> None:
        self.host = host
        self.client = client
        self._proxy = proxy
        self._early: paramiko.Channel | None = None  # that was requested together with the login
        self._early_path = ""
        self._is_early_taken = False

    @property
    def transport(self) -> paramiko.Transport:
        """The transport of the client.

        Raises:
            EOFError: the connection is closed.
        """
        transport = self.client.get_transport()
        if transport is None:
            raise EOFError
        return transport

    def prepare(self, start: Start, transport: paramiko.Transport) -> None:
        """Send a request together with the login of a transport that is not started yet, if that is possible."""
        self._early = prepare(transport, start.command, start.path, start.window, start.on_send)
        self._early_path = start.path

    def _take_early(self, path: str) -> paramiko.Channel | None:
        """Return the channel of the login if it leads to this socket, or to a session if `path` is empty; once."""
        if self._is_early_taken or self._early_path != path:
            return None
        self._is_early_taken = True
        return self._early

    def open_session(self, deadline_s: float, window: int | None = None) -> paramiko.Channel:
        """Open a session in which one command can run; the first one is that of the command of the login.

        Args:
            deadline_s: Longest time, in seconds.
            window: Bytes that the host may send before they are read; None: WINDOW.

        Raises:
            UnreachableError: the host did not open one within `deadline_s` seconds.
        """
        early = self._take_early("")

        def open_channel() -> paramiko.Channel:
            if early is not None:
                return await_opened(early)
            session: paramiko.Channel = self.transport.open_session(window_size=window)
            tune(session)
            return session

        return self._open(open_channel, deadline_s, "opening a session")

    def open_socket(self, path: str, deadline_s: float, window: int | None = None) -> paramiko.Channel:
        """Open a connection to a Unix socket of the host; the first one is that of the login if it leads there.

        Args:
            path: Absolute path of the socket.
            deadline_s: Longest time, in seconds.
            window: As for `open_session`.

        Raises:
            NoSocketError: nothing listens at the socket, or the SSH server does not forward to sockets.
            UnreachableError: the host did not answer within `deadline_s` seconds.
        """
        early = self._take_early(path)

        def open_channel() -> paramiko.Channel:
            try:
                return await_opened(early) if early is not None else open_socket(self.transport, path, window)
            except paramiko.ChannelException as error:
                raise NoSocketError from error

        return self._open(open_channel, deadline_s, "connecting to the agent")

    def _open(self, open_channel: Callable[[], T], deadline_s: float, doing: str) -> T:
        with Watchdog(self.sever, deadline_s) as watchdog, translated(self.host, doing):
            try:
                return open_channel()
            except (paramiko.SSHException, OSError, EOFError) as error:
                if watchdog.fired:
                    raise no_answer(self.host, deadline_s, doing) from error
                raise

    def execute(self, session: paramiko.Channel, command: str) -> None:
        """Run a command in an open session, or wait until the host runs the command of the login.

        Raises:
            SSHException: the host does not run it, or the connection broke.
            EOFError: the connection broke.
        """
        if session is self._early:
            await_command(session)
        else:
            session.exec_command(command)

    def sever(self) -> None:
        """Shut the socket down, from any thread; blocked calls on the connection raise an error."""
        transport = self.client.get_transport()
        if transport is not None:
            with contextlib.suppress(OSError, EOFError):
                transport.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection; repeated calls do nothing."""
        _close(self.client)
        if self._proxy is not None:
            self._proxy.close()


def _close(client: paramiko.SSHClient) -> None:
    transport = client.get_transport()
    if transport is None:
        return
    with contextlib.suppress(OSError, EOFError):
        transport.sock.shutdown(socket.SHUT_RDWR)
    client.close()
    if transport.is_alive():
        transport.join(_CLOSE_S)
    transport.sock.close()


def connect(
    host: Host, key_path: Path, *, connect_timeout_s: float = 10.0, start: Start | None = None
) -> HostConnection:
    """Connect to `host` and log in with the fleet's key, or with the user's keys if the host belongs to the user.

    The user's SSH configuration is not read. Of the user's keys and agent, only
    those are used that `host` names.

    Args:
        host: The host; its pinned host key is the only accepted one.
        key_path: Private key of the fleet.
        connect_timeout_s: Longest time until the connection is open, in seconds.
        start: The first command or socket, which is requested together with the login if possible; in any case, it
            must be opened with `open_session` and `execute`, or with `open_socket`.

    Raises:
        UnreachableError: the host does not answer in time, refuses, or does not have the pinned host key.
    """
    with contextlib.ExitStack() as stack:
        proxy = started_proxy(host) if host.proxy else None
        if proxy is not None:
            stack.callback(proxy.close)
        keys = UserKeys(host) if host.is_users else None
        if keys is not None:
            stack.callback(keys.close)

        pinned = _pinned_key(host)

        def make(sock: Any, **options: Any) -> paramiko.Transport:
            transport = _transport(sock, pinned.get_name(), **options)
            if start is not None:
                connection.prepare(start, transport)
            return transport

        client, open_client = _make_client(host, pinned, key_path, connect_timeout_s, proxy, keys, make)
        connection = HostConnection(host, client, proxy)
        stack.callback(connection.close)
        _open(connection, open_client, connect_timeout_s, proxy, keys)
        stack.pop_all()
    if keys is not None:
        keys.close()
    return connection


def _open(
    connection: HostConnection,
    open_client: Callable[[], object],
    timeout_s: float,
    proxy: Proxy | None,
    keys: UserKeys | None,
) -> None:
    host = connection.host
    doing = "the SSH connection was being set up"
    with Watchdog(connection.sever, timeout_s) as watchdog, translated(host):
        try:
            open_client()
        except (paramiko.SSHException, OSError, EOFError) as error:
            # Paramiko's deadline for the server's version may end in the same moment as the watchdog.
            if watchdog.fired or watchdog.is_over or isinstance(error, TimeoutError):
                raise no_answer(host, timeout_s, doing) from error
            if keys is not None and isinstance(error, paramiko.AuthenticationException) and not is_cut(error):
                raise keys.refused() from error
            if proxy is not None and proxy.last_output() and not isinstance(error, paramiko.BadHostKeyException):
                raise proxy_failed(host, proxy.last_output()) from error
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
    return UnreachableError(
        f"{host.proxy[0]} does not connect to {where(host)}",
        cause=output,
        hint="the command must connect when run by hand",
        next_steps=[Shell(shlex.join(by_hand if "BatchMode=yes" in host.proxy else host.proxy))],
    )


def _make_client(
    host: Host,
    pinned: paramiko.PKey,
    key_path: Path,
    timeout_s: float,
    proxy: Proxy | None,
    keys: UserKeys | None,
    transport_factory: Callable[..., paramiko.Transport],
) -> tuple[paramiko.SSHClient, Callable[[], object]]:
    options: dict[str, Any] = {
        **({"auth_strategy": keys} if keys else {"pkey": _load_key(key_path), "allow_agent": False}),
        "look_for_keys": False,
        **dict.fromkeys(("banner_timeout", "auth_timeout", "channel_timeout"), timeout_s + _MARGIN_S),
        "transport_factory": transport_factory,
        "sock": proxy.socket if proxy is not None else None,
    }
    # fabric rounds down, and treats 0 as no timeout
    client, open_client = make_client(host.address, host.port, host.user, max(1, math.ceil(timeout_s)), options)
    client.set_missing_host_key_policy(paramiko.RejectPolicy())
    name = host.address if host.port == 22 else f"[{host.address}]:{host.port}"
    client.get_host_keys().add(name, pinned.get_name(), pinned)
    return client, open_client


def _load_key(path: Path) -> paramiko.PKey:
    try:
        return _parsed_key(path, path.stat().st_mtime_ns)
    except (OSError, ValueError, paramiko.SSHException, paramiko.pkey.UnknownKeyType) as error:
        raise UnreachableError(
            f"the fleet's key {path} cannot be read", cause=str(error), next_steps=[Step("down"), Step("up")]
        ) from error


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


def _transport(sock: Any, key_type: str, **options: Any) -> paramiko.Transport:
    """Return a transport that accepts only host keys of a type, so that no number of another key is parsed."""
    if isinstance(sock, socket.socket) and sock.family != socket.AF_UNIX:
        _tune(sock)
    transport = make_transport(sock, default_window_size=WINDOW, default_max_packet_size=PACKET, **options)
    security = transport.get_security_options()
    security.kex = KEY_EXCHANGES
    security.key_types = [name for name in security.key_types if name in _SIGNATURES.get(key_type, (key_type,))]
    kept = [name for name in security.ciphers if not name.endswith("-cbc") and name not in _CIPHERS]
    security.ciphers = (*_CIPHERS, *kept)
    return transport


def _tune(sock: socket.socket) -> None:
    """Send small packets without delay, and end a connection whose peer acknowledges nothing."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    user_timeout = getattr(socket, "TCP_USER_TIMEOUT", None)  # Linux
    if user_timeout is not None:
        sock.setsockopt(socket.IPPROTO_TCP, user_timeout, DEAD_AFTER_MS)
