"""The host-specific part of a task's environment: programs on its PATH, and a network interface."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from typing import Iterator, List, Tuple

from train.agent.files.disk import make_directory, read_text
from train.agent.supervisor.environment import HostEnvironment

_NAMES = ("python", "python3")
_SIOCGIFCONF = 0x8912  # netdevice(7)
_IFREQ = struct.calcsize("16s16s") + (8 if struct.calcsize("P") == 8 else 0)
_MOST = 256  # addresses


def create_host_environment(programs: str, python: str, address: str, gpus: int) -> HostEnvironment:
    """Return the host-specific environment of a task, and write its programs.

    Args:
        programs: Directory for them.
        python: The interpreter of the task.
        address: By which the other hosts reach this one.
        gpus: That the task will see.

    Raises:
        OSError: they cannot be written.
    """
    write_programs(programs, python)
    directories = (programs, *program_directories(python))
    return HostEnvironment(python, directories, interface_of(address) if gpus else "", gpus)


def program_directories(python: str) -> List[str]:
    """Return the directory of programs of an interpreter's virtual environment; empty for any other interpreter."""
    directory = os.path.dirname(python)
    return [directory] if os.path.exists(os.path.join(os.path.dirname(directory), "pyvenv.cfg")) else []


def write_programs(directory: str, python: str) -> None:
    """Make the names python and python3 run one interpreter.

    A link is not sufficient: Python finds a virtual environment by the directory of its executable.

    Raises:
        OSError: they cannot be written.
    """
    quoted = "'" + python.replace("'", "'\\''") + "'"
    make_directory(directory)
    for name in _NAMES:
        path = os.path.join(directory, name)
        with open(path, "wb") as file:
            file.write(f'#!/bin/sh\nexec {quoted} "$@"\n'.encode("utf-8", "surrogateescape"))
        os.chmod(path, 0o700)


def interface_of(address: str) -> str:
    """Return the network interface that has an address; empty if unknown, for example behind NAT."""
    if address == "::1" or address.startswith("127."):
        return "lo"
    for family, pairs in ((socket.AF_INET, _ipv4), (socket.AF_INET6, _ipv6)):
        try:
            packed = socket.inet_pton(family, address)
        except OSError:
            continue
        return next((name for name, candidate in pairs() if candidate == packed), "")
    return ""


def _ipv4() -> Iterator[Tuple[str, bytes]]:
    import array

    names = array.array("B", bytes(_IFREQ * _MOST))
    begin, size = names.buffer_info()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFCONF, struct.pack("iL", size, begin))
        except OSError:
            return
    data = names.tobytes()[: struct.unpack("iL", answer)[0]]
    for start in range(0, len(data), _IFREQ):
        name = data[start : start + 16].split(b"\0", 1)[0].decode("utf-8", "replace")
        yield name.partition(":")[0], data[start + 20 : start + 24]


def _ipv6() -> List[Tuple[str, bytes]]:
    lines = (line.split() for line in read_text("/proc/net/if_inet6").splitlines())
    return [(fields[5], bytes.fromhex(fields[0])) for fields in lines if len(fields) > 5]
