"""A network namespace whose way out is limited in bandwidth."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.harness.peers import MissingError, find


@dataclass(frozen=True)
class Link:
    """A limited way from a namespace to this computer.

    Attributes:
        prefix: Command that runs a program in the namespace.
        addresses: Addresses of this computer that the namespace reaches.
    """

    prefix: list[str]
    addresses: list[str]


@contextlib.contextmanager
def limited(addresses: int, rate: str) -> Iterator[Link]:
    """Yield a namespace that sends to this computer at a limited rate; the other direction is not limited.

    Args:
        addresses: Number of addresses of this computer on the link.
        rate: Rate in the notation of tc, such as 200mbit.

    Raises:
        MissingError: Namespaces cannot be created here.
    """
    ip, tc = find("ip"), find("tc")
    name = f"fleet-bench-{os.getpid()}"
    outer, inner = f"fb{os.getpid()}o", f"fb{os.getpid()}i"
    network = f"10.213.{os.getpid() % 250}"
    within = [ip, "netns", "exec", name]
    try:
        _run(ip, "netns", "add", name)
        _run(ip, "link", "add", outer, "type", "veth", "peer", "name", inner, "netns", name)
        served = [f"{network}.{10 + number}" for number in range(addresses)]
        for address in served:
            _run(ip, "address", "add", f"{address}/24", "dev", outer)
        _run(ip, "link", "set", outer, "up")
        _run(*within, ip, "address", "add", f"{network}.2/24", "dev", inner)
        _run(*within, ip, "link", "set", "lo", "up")
        _run(*within, ip, "link", "set", inner, "up")
        shaping = ["root", "tbf", "rate", rate, "burst", "256kb", "latency", "50ms"]
        _run(*within, tc, "qdisc", "add", "dev", inner, *shaping)
        yield Link(within, served)
    finally:
        subprocess.run([ip, "netns", "delete", name], check=False, capture_output=True)
        subprocess.run([ip, "link", "delete", outer], check=False, capture_output=True)


def _run(*arguments: str) -> None:
    done = subprocess.run(arguments, check=False, capture_output=True, text=True)
    if done.returncode:
        raise MissingError(f"cannot create a network namespace: {done.stderr.strip()}")
