"""Create hosts as network namespaces of this computer, on one switch, from 10.77.0.2 upward, with network faults."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

UNUSED_ADDRESS = "02:00:00:00:00:01"  # a hardware address that no port of the switch has


def ip(*words: str) -> str:
    """Run `ip`; return its output.

    Raises:
        OSError: If `ip` is missing or failed.
    """
    return _run("ip", *words)


def _run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=30)
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


@dataclass(frozen=True)
class Namespace:
    """A host; its interface is called eth0."""

    name: str
    address: str
    switch: str
    port: str  # end of its cable at the switch

    @property
    def prefix(self) -> tuple[str, ...]:
        """Return the words that run a command in it."""
        return ("ip", "netns", "exec", self.name)

    @property
    def hardware(self) -> str:
        """Return the hardware address of its interface."""
        return ip("-n", self.name, "-br", "link", "show", "eth0").split()[2]

    def mislead(self, other: Namespace, hardware: str = UNUSED_ADDRESS) -> None:
        """Send all packets for `other` to another hardware address: dropped silently, or sent to another host."""
        ip("-n", self.name, "neigh", "replace", other.address, "lladdr", hardware, "dev", "eth0", "nud", "permanent")

    def find(self, other: Namespace) -> None:
        """Undo mislead()."""
        ip("-n", self.name, "neigh", "del", other.address, "dev", "eth0")

    def refuse_all(self, other: Namespace) -> None:
        """Let the kernel reject everything sent to `other`, open connections included."""
        ip("-n", self.name, "rule", "add", "pref", "11", "to", other.address, "type", "unreachable")

    def allow_all(self, other: Namespace) -> None:
        """Undo refuse_all()."""
        ip("-n", self.name, "rule", "del", "pref", "11", "to", other.address, "type", "unreachable")

    def choke(self) -> None:
        """Delay packets that it sends for up to a sixth of a second, and drop those that exceed the queue.

        Not every kernel has netem, which drops packets at random; all have the token bucket filter.
        """
        narrow = ("rate", "128kbit", "burst", "1600", "limit", "2600")
        _run("tc", "-n", self.name, "qdisc", "replace", "dev", "eth0", "root", "tbf", *narrow)

    def widen(self) -> None:
        """Undo choke()."""
        _run("tc", "-n", self.name, "qdisc", "del", "dev", "eth0", "root")

    def unplug(self) -> None:
        """Unplug the cable at the switch: no packet passes, and neither side is notified."""
        ip("-n", self.switch, "link", "set", self.port, "nomaster")

    def plug(self) -> None:
        """Plug the cable in again."""
        ip("-n", self.switch, "link", "set", self.port, "master", "switch")

    def refuse_way(self, other: Namespace, port: int, kind: str = "unreachable") -> None:
        """Let the kernel reject connections to a port of `other`: ``unreachable``, ``prohibit`` or ``blackhole``."""
        to = ("to", other.address, "ipproto", "tcp", "dport", str(port))
        ip("-n", self.name, "rule", "add", "pref", "10", *to, "type", kind)

    def swallow_answers(self, other: Namespace, port: int) -> None:
        """Drop the answers from `port` of this host to `other`, as a firewall does that drops incoming packets."""
        to = ("to", other.address, "ipproto", "tcp", "sport", str(port))
        ip("-n", self.name, "rule", "add", "pref", "10", *to, "type", "blackhole")


def obstacle() -> str:
    """Return why namespaces cannot be created here; empty if they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "ip (iproute2) is not installed"
    try:
        name = f"fleet-{uuid.uuid4().hex[:8]}"
        ip("netns", "add", name)
        ip("netns", "del", name)
    except OSError as error:
        return f"no network namespace can be made: {error}"
    return ""


@contextlib.contextmanager
def namespaces(count: int) -> Iterator[list[Namespace]]:
    """Yield `count` hosts; delete them at the end, and end the processes in their network; skip if not possible."""
    if why := obstacle():
        pytest.skip(why)
    stem = f"fleet-{uuid.uuid4().hex[:8]}"  # process IDs are reused, also that of a run that was killed
    switch = f"{stem}-switch"
    hosts = [Namespace(f"{stem}-{n}", f"10.77.0.{n + 2}", switch, f"port{n}") for n in range(count)]
    with contextlib.ExitStack() as stack:
        for name in (switch, *[host.name for host in hosts]):
            ip("netns", "add", name)
            stack.callback(ip, "netns", "del", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("-n", switch, "link", "add", "switch", "type", "bridge", "forward_delay", "0")
        ip("-n", switch, "link", "set", "switch", "up")
        for host in hosts:
            ip("-n", switch, "link", "add", host.port, "type", "veth", "peer", "name", "eth0", "netns", host.name)
            ip("-n", switch, "link", "set", host.port, "master", "switch", "up")
            ip("-n", host.name, "address", "add", f"{host.address}/24", "dev", "eth0")
            ip("-n", host.name, "link", "set", "eth0", "up")
        yield hosts
