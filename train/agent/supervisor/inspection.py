"""Inspect what a task is doing: its stacks, its state in the kernel, and its connections.

Formats: proc(5); Documentation/networking/proc_net_tcp.rst of Linux.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import Iterable, Iterator, List, Optional

from train.agent.files.disk import list_names, read_text
from train.agent.gang.hang import TcpConnection, main_first
from train.agent.host.processes import Stat, descendants, list_processes
from train.agent.protocol.records import HangInspection
from train.agent.protocol.wording import endpoint

_MOST_SOCKETS = 64
_STATES = {
    1: "ESTABLISHED", 2: "SYN_SENT", 3: "SYN_RECV", 4: "FIN_WAIT1", 5: "FIN_WAIT2", 6: "TIME_WAIT", 7: "CLOSE",
    8: "CLOSE_WAIT", 9: "LAST_ACK", 10: "LISTEN", 11: "CLOSING", 12: "NEW_SYN_RECV",
}  # fmt: skip
LISTEN = "LISTEN"
_MAPPED = b"\0" * 10 + b"\xff\xff"  # an IPv4 address in IPv6
_BRIEF_S = 0.05  # too short to measure the use of a core


def connections(pid: int, pids: Iterable[int]) -> List[TcpConnection]:
    """Return all TCP sockets of processes, connections that are stuck first.

    Args:
        pid: A process in the network namespace of all of them.
        pids: The processes.
    """
    inodes = set(_sockets_of(pids))
    tables = ("tcp", "tcp6") if inodes else ()  # the kernel takes 3 ms of CPU time to list the sockets
    lines = [line.split() for name in tables for line in read_text(f"/proc/{pid}/net/{name}").splitlines()[1:]]
    result = [_connection(fields) for fields in lines if len(fields) > 9 and fields[9] in inodes]
    return sorted(result, key=lambda item: (item.state == "ESTABLISHED", -item.unsent, -item.unread, item))


def _sockets_of(pids: Iterable[int]) -> Iterator[str]:
    """Yield the inodes of the sockets that processes have open."""
    for pid in pids:
        directory = f"/proc/{pid}/fd"
        for name in list_names(directory):
            try:
                target = os.readlink(f"{directory}/{name}")
            except OSError:
                continue
            if target.startswith("socket:["):
                yield target[8:-1]


def _connection(fields: List[str]) -> TcpConnection:
    unsent, _, unread = fields[4].partition(":")
    state = _STATES.get(int(fields[3], 16), fields[3])
    return TcpConnection(_end(fields[1]), _end(fields[2]), state, int(unsent, 16), int(unread, 16))


def _end(text: str) -> str:
    """Return address and port from ``0100007F:1F90``: words of 32 bits in native byte order."""
    address, _, port = text.partition(":")
    words = [int(address[start : start + 8], 16) for start in range(0, len(address), 8)]
    data = struct.pack(f"={len(words)}I", *words)
    if data.startswith(_MAPPED):
        data = data[len(_MAPPED) :]
    family = socket.AF_INET if len(data) == 4 else socket.AF_INET6
    return endpoint(socket.inet_ntop(family, data), int(port, 16))


def inspect_process(pid: int, stacks: str, before: Optional[Stat], seconds: float) -> HangInspection:
    """Return what a process is doing, without its slot, task, and attempt; without a state if it has ended.

    Args:
        pid: The process.
        stacks: That faulthandler wrote.
        before: State of the process when the stacks were requested.
        seconds: Time since then.
    """
    inspection = HangInspection("", "", 0, 0.0, "", main_first(stacks), [])
    table = list_processes()
    stat = table.get(pid)
    if stat is None:
        return inspection
    connected = [each for each in connections(pid, {pid} | descendants(pid, table)) if each.state != LISTEN]
    return inspection._replace(
        state=stat.state,
        sockets=[str(connection) for connection in connected[:_MOST_SOCKETS]],
        kernel=_describe_kernel(stat, before.ticks if before else 0, seconds),
    )


def _describe_kernel(stat: Stat, ticks_before: int, seconds: float) -> str:
    """Return the CPU time of a process, and where in the kernel it waits, as far as that is readable."""
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    parts = [f"CPU {stat.ticks / ticks_per_s:.1f} s"]
    if seconds > _BRIEF_S:
        parts.append(f"now {100 * (stat.ticks - ticks_before) / ticks_per_s / seconds:.0f} % of a core")
    waits = read_text(f"/proc/{stat.pid}/wchan").strip()
    if waits not in ("", "0"):
        parts.append(f"waits in {waits}")
    return ", ".join(parts)
