"""Test what /proc shows about a task's port and the libraries that its processes load."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from train.agent.supervisor.listening import LEAST_CHECKS, PortWatch

TASK = """
import mmap, socket, sys
files = [open(path, "rb") for path in sys.argv[1:]]
mapped = [mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) for file in files]
sockets = [socket.socket()]
sockets[0].bind(("127.0.0.1", 0))
print(sockets[0].getsockname()[1], flush=True)
for line in sys.stdin:
    sockets[0].listen() if line == "listen\\n" else sockets.append(socket.socket())
    print(flush=True)
"""


@dataclass
class _Task:
    """A process, because this one has the sockets and libraries of other tests, too."""

    process: subprocess.Popen[str]
    port: int

    def do(self, command: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(command, file=self.process.stdin, flush=True)
        assert self.process.stdout.readline() == "\n"


@contextlib.contextmanager
def _task(*libraries: Path) -> Iterator[_Task]:
    """Yield a task that has mapped these libraries, and whose socket does not listen yet."""
    for path in libraries:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"library")
    command = [sys.executable, "-I", "-S", "-c", TASK, *map(str, libraries)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield _Task(process, int(process.stdout.readline()))


def _watch(task: _Task, port: int) -> PortWatch:
    watch = PortWatch(port)
    for _ in range(LEAST_CHECKS + 1):
        watch.examine(task.process.pid, {task.process.pid})
    return watch


def test_a_task_with_tensorflow_that_listens_nowhere(tmp_path: Path) -> None:
    with _task(tmp_path / "libtensorflow_cc.so.2") as task:
        assert _watch(task, task.port).listened is False


def test_a_server_that_is_closed_again_is_known_from_the_log_and_from_the_hook(tmp_path: Path) -> None:
    with _task(tmp_path / "libtensorflow_cc.so.2") as task:
        watch = _watch(task, task.port)
        watch.read_output(
            b"I0000 grpc_server_lib.cc:467] Started server with target: grpc://10.0.0.2:%d\n" % task.port
        )
        assert watch.listened is True
        watch = _watch(task, task.port)
        watch.read_output(b"Started server with target: grpc://localhost:1\n")
        assert watch.listened is None
        watch = _watch(task, task.port)
        watch.find_server()
        assert watch.listened is True


def test_another_library_or_no_tensorflow_leaves_it_unknown(tmp_path: Path) -> None:
    with _task() as task:
        assert _watch(task, task.port).listened is None
    with _task(tmp_path / "libtensorflow_cc.so.2", tmp_path / "jaxlib/_jax.so") as task:
        assert _watch(task, task.port).listened is None


def test_a_listener_on_the_port_counts_and_one_on_another_port_leaves_it_unknown(tmp_path: Path) -> None:
    with _task(tmp_path / "libtensorflow_cc.so.2") as task:
        task.do("listen")
        assert _watch(task, task.port).listened is True
        assert _watch(task, 1).listened is None


def test_the_listener_of_another_process_does_not_count(tmp_path: Path) -> None:
    with _task(tmp_path / "libtensorflow_cc.so.2") as task, _task() as other:
        other.do("listen")
        assert _watch(task, other.port).listened is False
