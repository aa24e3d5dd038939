"""Check whether a task that uses TensorFlow listens on its port of TF_CONFIG.

Each task of a multi-worker strategy starts a server on that port. If a script creates no such strategy, each task
trains alone and nothing fails: only the port shows it.

Formats: proc(5); Documentation/networking/proc_net_tcp.rst of Linux.
"""

from __future__ import annotations

import os
import re
from typing import Collection, Dict, Optional

from train.agent.files.disk import read_text
from train.agent.supervisor.inspection import sockets_of

LEAST_CHECKS = 4  # with TensorFlow loaded, before it is certain that the task does not listen
_STARTED = re.compile(rb"Started server with target: grpc\S{0,200}:(\d{1,5})")  # TensorFlow's log
_TABLES = ("tcp", "tcp6")
_LISTEN = "0A"
_TENSORFLOW = re.compile(r"/libtensorflow(?:_cc|_framework)?\.so")
# These have other ways to find their peers. Keras with another backend, and TensorBoard, load TensorFlow as well.
_OTHERS = re.compile(r"/(?:jaxlib|torch|horovod)/[^\n]*\.so")


def listening_ports(text: str) -> Dict[str, int]:
    """Return the port of each listening socket of ``/proc/net/tcp`` or ``tcp6``, by its inode."""
    rows = (line.split() for line in text.splitlines()[1:])
    ports = {row[9]: row[1].rpartition(":")[2] for row in rows if len(row) > 9 and row[3] == _LISTEN}
    return {inode: int(port, 16) for inode, port in ports.items()}


def loads_tensorflow(maps: str) -> bool:
    """Return True if a process with these ``/proc/PID/maps`` has loaded TensorFlow."""
    return _TENSORFLOW.search(maps) is not None


def loads_another(maps: str) -> bool:
    """Return True if a process with these ``/proc/PID/maps`` has loaded another library that finds its own peers."""
    return _OTHERS.search(maps) is not None


class PortWatch:
    """Watch the port of a task until the task listens on it.

    Args:
        port: Of the task in TF_CONFIG.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._net = ""
        self._opened = False
        self._tensorflow = False
        self._another = False
        self._checks = 0  # with TensorFlow loaded

    @property
    def listened(self) -> Optional[bool]:
        """Return whether the task listened on its port; None if unknown, or if the task need not listen."""
        if self._opened:
            return True
        return False if self._checks >= LEAST_CHECKS and not self._another else None

    def read_output(self, data: bytes) -> None:
        """Find the server that TensorFlow reports in the task's output."""
        match = None if self._opened or b"Started server" not in data else _STARTED.search(data)
        if match:
            self._find({int(match.group(1))})

    def find_server(self) -> None:
        """Record that the hook saw the task start its server."""
        self._find({self._port})

    def begin(self, pid: int) -> None:
        """Start to watch.

        Args:
            pid: The task's process, which is in the same network namespace as the rest of the task.
        """
        self._net = f"/proc/{pid}/net"

    def examine(self, pids: Collection[int]) -> None:
        """Check the sockets of all processes of the task, and which libraries they have loaded."""
        if not self._net or self._opened:
            return
        self._checks += self._tensorflow
        sockets = set(sockets_of(pids))
        listeners: Dict[str, int] = {}
        for name in _TABLES if sockets else ():
            listeners.update(listening_ports(read_text(os.path.join(self._net, name))))
        self._find({listeners[inode] for inode in sockets if inode in listeners})
        for pid in pids:
            maps = read_text(f"/proc/{pid}/maps")
            self._tensorflow = self._tensorflow or loads_tensorflow(maps)
            self._another = self._another or loads_another(maps)

    def _find(self, ports: Collection[int]) -> None:
        """Record the ports on which the task listens."""
        if self._port in ports:
            self._opened = True
        elif ports:  # a script may set a TF_CONFIG of its own
            self._another = True
