"""Check whether a task that uses TensorFlow listens on its port of TF_CONFIG.

Each task of a multi-worker strategy starts a server on that port. If a script creates no such strategy, each task
trains alone and nothing fails: only the port shows it.
"""

from __future__ import annotations

import re
from typing import Collection, Optional

from train.agent.files.disk import read_text
from train.agent.supervisor.inspection import LISTEN, connections

LEAST_CHECKS = 4  # with TensorFlow loaded, before it is certain that the task does not listen
_STARTED = re.compile(rb"Started server with target: grpc\S{0,200}:(\d{1,5})")  # TensorFlow's log
_TENSORFLOW = re.compile(r"/libtensorflow(?:_cc|_framework)?\.so")
# These have other ways to find their peers. Keras with another backend, and TensorBoard, load TensorFlow as well.
_OTHERS = re.compile(r"/(?:jaxlib|torch|horovod)/[^\n]*\.so")


class PortWatch:
    """Watch the port of a task until the task listens on it.

    Args:
        port: Of the task in TF_CONFIG.
    """

    def __init__(self, port: int) -> None:
        self._port = port
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

    def examine(self, pid: int, pids: Collection[int]) -> None:
        """Check the sockets of all processes of the task, and which libraries they have loaded.

        Args:
            pid: The task's process, which is in the same network namespace as the others.
            pids: All processes.
        """
        if self._opened:
            return
        self._checks += self._tensorflow
        sockets = connections(pid, pids)
        self._find({int(each.local.rpartition(":")[2]) for each in sockets if each.state == LISTEN})
        maps = "\n".join(read_text(f"/proc/{each}/maps") for each in pids)
        self._tensorflow = self._tensorflow or bool(_TENSORFLOW.search(maps))
        self._another = self._another or bool(_OTHERS.search(maps))

    def _find(self, ports: Collection[int]) -> None:
        """Record the ports on which the task listens."""
        if self._port in ports:
            self._opened = True
        elif ports:  # a script may set a TF_CONFIG of its own
            self._another = True
