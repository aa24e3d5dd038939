"""Identity-Aware Proxy: who may open tunnels to which ports of instances."""

from __future__ import annotations

from tests.emulator import firewall
from tests.emulator.cloud import Cloud
from tests.emulator.failures import Refusal

HOST = "iap.googleapis.com"
USE = "iap.tunnelInstances.accessViaIAP"
_READ = "compute.instances.get"
NOT_AUTHORIZED, NOT_CONNECTED = (4033, "not authorized"), (4003, "failed to connect to backend")


class NoTunnel(Exception):
    """The proxy opens no tunnel.

    Args:
        code: Code with which it closes the connection.
        reason: The reason that it gives.
    """

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


def may_use(cloud: Cloud, account: str, permission: str = USE) -> bool:
    """Return whether an account has a permission; `denied` may name a single account, ``EMAIL:PERMISSION``."""
    return not cloud.denied & {permission, f"{account}:{permission}"}


def open_tunnel(cloud: Cloud, account: str, zone: str, name: str, port: int) -> str:
    """Return the address of an instance to which the proxy connects; callers hold the lock.

    Raises:
        NoTunnel: the account has no access, or the port cannot be reached from the proxy.
    """
    if HOST in cloud.governance.disabled or not all(may_use(cloud, account, each) for each in (USE, _READ)):
        raise NoTunnel(*NOT_AUTHORIZED)
    try:
        instance = cloud.instance(zone, name)
    except Refusal as refusal:
        raise NoTunnel(*NOT_AUTHORIZED) from refusal
    if instance.status != "RUNNING" or not cloud.admits(instance, firewall.PROXY, port):
        raise NoTunnel(*NOT_CONNECTED)
    return instance.address
