"""Fetch the key that a host presents, over the route of later connections, before sending it any secret."""

from __future__ import annotations

import contextlib
import functools
import socket

import paramiko

from fleet.errors import translate_errors
from fleet.remote.fanout import no_answer
from fleet.remote.ssh.connection import KEY_EXCHANGES, open_checked, proxy_failed, started_proxy
from fleet.remote.ssh.errors import translated
from fleet.remote.ssh.guard import WINDOW, GuardedSocket
from fleet.remote.ssh.watchdog import Watchdog
from provision.model import Host
from provision.ssh_config.programs import require_agreed

# In the order of preference of a connection.
_KINDS = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521")


def fetch_host_key(host: Host, *, timeout_s: float = 20.0) -> str:
    """Return the key that `host` presents, ``ssh-ed25519 AAAA…``; its authenticity is not confirmed.

    Args:
        host: The host, with its SSH settings.
        timeout_s: Longest time until the host has presented it, in seconds.

    Raises:
        UnreachableError: the host does not answer in time, or does not use SSH.
        UsageError: what runs on this computer for it has changed since the user accepted it.
    """
    with translate_errors():
        require_agreed(host)
    proxy = started_proxy(host) if host.proxy else None
    try:
        with translated(host):
            near = proxy.socket if proxy else socket.create_connection((host.address, host.port), timeout_s)
        try:
            return _shown(host, near, timeout_s)
        except Exception as error:
            if proxy is not None and proxy.last_output():
                raise proxy_failed(host, proxy.last_output()) from error
            raise
    finally:
        if proxy is not None:
            proxy.close()


def _shown(host: Host, near: socket.socket, timeout_s: float) -> str:
    doing = "showing its host key"
    with translated(host):
        guard = GuardedSocket(near, WINDOW)
        transport = paramiko.Transport(guard)

    def sever() -> None:
        with contextlib.suppress(OSError):
            guard.shutdown(socket.SHUT_RDWR)

    try:
        security = transport.get_security_options()
        security.kex = KEY_EXCHANGES
        security.key_types = (*_KINDS, *(kind for kind in security.key_types if kind not in _KINDS))
        with Watchdog(sever, timeout_s) as watchdog, translated(host, doing):
            try:
                open_checked(functools.partial(transport.start_client, timeout=timeout_s))
                key = transport.get_remote_server_key()
            except (paramiko.SSHException, OSError, EOFError) as error:
                if watchdog.fired:
                    raise no_answer(host, timeout_s, doing) from error
                raise
        return f"{key.get_name()} {key.get_base64()}"
    finally:
        sever()
        transport.close()
        transport.join(timeout_s)
        guard.close()
