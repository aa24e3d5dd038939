"""Import paramiko and make its clients; no other module depends on what paramiko does not document."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

PROVEN = ("5.1.",)
"""Versions of paramiko with which clients are made without fabric."""

_CHECK_S = 1.0


def _import_without_invoke() -> None:
    """Import paramiko without its optional dependency, which takes as long to import as paramiko itself.

    Paramiko uses it for ``Match exec`` in configurations of OpenSSH, which this program reads by itself. If a version
    of paramiko requires it, the import fails, and is repeated with it.
    """
    if "invoke" in sys.modules or "paramiko" in sys.modules:
        return
    sys.modules["invoke"] = None  # type: ignore[assignment] # the import of a module that is None fails
    try:
        import paramiko  # noqa: F401
    except ImportError:
        return
    finally:
        del sys.modules["invoke"]


_import_without_invoke()

import paramiko  # noqa: E402


class Transport(paramiko.Transport):
    """A transport that checks once per second whether it was closed, not ten times.

    Here the socket is always shut down first, which wakes it at once.
    """

    _active_check_timeout = _CHECK_S


def make_client(
    address: str, port: int, user: str, timeout_s: int, options: dict[str, Any]
) -> tuple[paramiko.SSHClient, Callable[[], object]]:
    """Return a client without host keys, and the function that connects it.

    Neither the user's SSH configuration nor configuration files of fabric are read.

    Args:
        address: Address of the host.
        port: TCP port of its SSH server.
        user: Login name.
        timeout_s: Longest time until the host accepts the connection, in seconds.
        options: Further arguments of paramiko.SSHClient.connect.
    """
    if paramiko.__version__.startswith(PROVEN):
        client = paramiko.SSHClient()
        return client, lambda: client.connect(address, port, user, timeout=timeout_s, **options)
    from fabric import Config, Connection

    config = Config(lazy=True, ssh_config=paramiko.SSHConfig())  # lazy: without configuration files
    fabric = Connection(
        address, user=user, port=port, config=config, connect_timeout=timeout_s, connect_kwargs=options
    )
    return fabric.client, fabric.open
