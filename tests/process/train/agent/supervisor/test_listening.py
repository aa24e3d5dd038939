"""Test what /proc shows about a task's port and the libraries that its processes load."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from train.agent.supervisor.listening import LEAST_CHECKS, PortWatch

TASK = """
import mmap, socket, sys
files = [open(path, "rb") for path in sys.argv[2:]]
mapped = [mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) for file in files]
server = socket.socket()
server.bind(("127.0.0.1", 0))
if sys.argv[1] == "listen":
    server.listen()
print(server.getsockname()[1], flush=True)
sys.stdin.read()
"""
TENSORFLOW = "libtensorflow_cc.so.2"
STARTED = b"I0000 grpc_server_lib.cc:467] Started server with target: grpc://10.0.0.2:%d\n"


@contextlib.contextmanager
def task(directory: Path, *libraries: str, listens: bool = False) -> Iterator[tuple[int, int]]:
    """Yield the process ID and the port of a task that has mapped these libraries; this process has others, too."""
    paths = [directory / library for library in libraries]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"library")
    command = [sys.executable, "-I", "-S", "-c", TASK, "listen" if listens else "bind", *map(str, paths)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.pid, int(process.stdout.readline())


def watch(pid: int, port: int) -> PortWatch:
    watch = PortWatch(port)
    for _ in range(LEAST_CHECKS + 1):
        watch.examine(pid, {pid})
    return watch


@pytest.mark.parametrize(
    ("libraries", "listens", "has_its_port", "listened"),
    [
        ([TENSORFLOW], False, True, False),
        ([TENSORFLOW], True, True, True),
        ([TENSORFLOW], True, False, None),  # it listens elsewhere
        ([], False, True, None),
        ([TENSORFLOW, "jaxlib/_jax.so"], False, True, None),
    ],
)
def test_a_task_need_listen_only_if_it_uses_tensorflow_alone(
    tmp_path: Path, libraries: list[str], listens: bool, has_its_port: bool, listened: bool | None
) -> None:
    with task(tmp_path, *libraries, listens=listens) as (pid, port):
        assert watch(pid, port if has_its_port else 1).listened is listened


def test_a_server_that_is_closed_is_detected_by_the_log_and_by_the_hook_and_another_process_is_not_ours(
    tmp_path: Path,
) -> None:
    with task(tmp_path, TENSORFLOW) as (pid, port), task(tmp_path, listens=True) as (_, other_port):
        assert watch(pid, other_port).listened is False
        for server, listened in ((port, True), (1, None)):
            watched = watch(pid, port)
            watched.read_output(STARTED % server)
            assert watched.listened is listened
        watched = watch(pid, port)
        watched.find_server()
        assert watched.listened is True
