"""Test what /proc shows about a task's port and the libraries that its processes load."""

from __future__ import annotations

import mmap
import os
import socket
from pathlib import Path

import pytest

from train.agent.host.loop import Loop
from train.agent.supervisor import listening
from train.agent.supervisor.inspection import sockets_of
from train.agent.supervisor.listening import TIMER, PortWatch, listening_ports, loads_another, loads_tensorflow

TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:08AE 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4242 1 0000 100 0 0 10 0
   1: 0100007F:08AE 0100007F:D0F2 01 00000000:00000000 02:000AFC80 00000000  1000        0 4243 2 0000 20 4 30 10 -1
   2: 00000000:0016
"""
TCP6 = """\
  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when
   0: 00000000000000000000000000000000:08AF 00000000000000000000000000000000:0000 0A 0:0 0:0 0 1000 0 77 1 0 100 0
"""


def test_only_listening_sockets_count() -> None:
    assert listening_ports(TCP) == {"4242": 2222}
    assert listening_ports(TCP6) == {"77": 2223}
    assert listening_ports("") == {}


@pytest.mark.parametrize(
    ("path", "tensorflow", "another"),
    [
        ("/venv/lib/python3.11/site-packages/tensorflow/libtensorflow_cc.so.2", True, False),
        ("/venv/lib/python3.11/site-packages/tensorflow/libtensorflow_framework.so.2", True, False),
        ("/opt/libtensorflow.so.2.15.0 (deleted)", True, False),
        ("/venv/lib/python3.11/site-packages/tflite_runtime/libtensorflowlite_c.so", False, False),
        ("/venv/lib/python3.11/site-packages/jaxlib/_jax.so", False, True),
        ("/venv/lib/python3.11/site-packages/torch/lib/libtorch_cpu.so", False, True),
        ("/usr/lib/x86_64-linux-gnu/libc.so.6", False, False),
    ],
)
def test_libraries_in_the_maps_of_a_process(path: str, tensorflow: bool, another: bool) -> None:
    maps = f"7f00-7f01 r-xp 00000000 fe:01 12 /usr/bin/python3.11\n7f02-7f03 r--p 00000000 fe:01 13 {path}\n"
    assert (loads_tensorflow(maps), loads_another(maps)) == (tensorflow, another)


@pytest.fixture(autouse=True)
def only_new_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the sockets that this process opened before, as for the servers of other tests."""
    before = set(sockets_of([os.getpid()]))
    monkeypatch.setattr(listening, "sockets_of", lambda pids: set(sockets_of(pids)) - before)


def _loaded(path: Path) -> mmap.mmap:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"library")
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _listener() -> socket.socket:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    return listener


def _watch(port: int) -> PortWatch:
    watch = PortWatch(Loop(), port)
    watch.begin(os.getpid())
    watch.examine({os.getpid()})
    return watch


def test_a_task_with_tensorflow_that_listens_nowhere(tmp_path: Path) -> None:
    with _loaded(tmp_path / "libtensorflow_cc.so.2"):
        assert _watch(1).listened is False


def test_another_library_or_no_tensorflow_leaves_it_unknown(tmp_path: Path) -> None:
    assert _watch(1).listened is None
    with _loaded(tmp_path / "libtensorflow_cc.so.2"), _loaded(tmp_path / "jaxlib/_jax.so"):
        assert _watch(1).listened is None


def test_a_listener_on_the_port_counts_and_one_on_another_port_leaves_it_unknown(tmp_path: Path) -> None:
    with _loaded(tmp_path / "libtensorflow_cc.so.2"), _listener() as listener:
        port = listener.getsockname()[1]
        assert _watch(port).listened is True
        assert _watch(1).listened is None


def test_the_listener_of_another_process_does_not_count(tmp_path: Path) -> None:
    with _loaded(tmp_path / "libtensorflow_cc.so.2"), _listener() as listener:
        watch = PortWatch(Loop(), listener.getsockname()[1])
        watch.begin(os.getppid())
        watch.examine(set())
        assert watch.listened is None


def test_the_port_is_checked_again_after_a_socket_was_seen_that_did_not_listen_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listening, "PERIOD_S", 0.0)
    loop = Loop()
    with socket.socket() as task_socket:
        task_socket.bind(("127.0.0.1", 0))
        watch = PortWatch(loop, task_socket.getsockname()[1])
        watch.begin(os.getpid())
        task_socket.listen()
        loop.turn()
        assert watch.listened is True
    assert not loop.waits_for(TIMER)


def test_the_tables_of_the_host_are_read_only_after_new_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop()
    reads: list[str] = []

    def read(path: str) -> str:
        reads.append(path)
        return ""

    monkeypatch.setattr(listening, "PERIOD_S", 0.0)
    monkeypatch.setattr(listening, "read_text", read)
    watch = PortWatch(loop, 1)
    watch.begin(os.getpid())
    for _ in range(5):
        loop.turn()
    before = len(reads)
    loop.turn()
    assert len(reads) == before
    with socket.socket():
        loop.turn()
        assert len(reads) > before
