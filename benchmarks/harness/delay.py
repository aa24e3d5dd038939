"""Delays a TCP connection in user space, because not every kernel has netem.

Run: python -m benchmarks.harness.delay SECONDS ADDRESS PORT; prints the port on which it listens.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

from benchmarks.harness.peers import ROOT


@contextlib.contextmanager
def delayed(address: str, port: int, seconds: float) -> Iterator[int]:
    """Yield a port of `address` that leads to `port`, with a delay in each direction."""
    words = [sys.executable, "-m", "benchmarks.harness.delay", str(seconds), address, str(port)]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            if process.stdout is None or not (line := process.stdout.readline()):
                raise RuntimeError("the program that delays connections ended")
            yield int(line)
        finally:
            process.kill()


def _copy(source: socket.socket, target: socket.socket, seconds: float) -> None:
    """Copy bytes to `target`, each `seconds` after it arrived."""
    waiting: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()

    def send() -> None:
        with contextlib.suppress(OSError):
            while True:
                due, data = waiting.get()
                time.sleep(max(0.0, due - time.monotonic()))
                if not data:
                    target.shutdown(socket.SHUT_WR)
                    return
                target.sendall(data)

    threading.Thread(target=send, daemon=True).start()
    data = b"first"
    while data:
        try:
            data = source.recv(1 << 16)
        except OSError:
            data = b""
        waiting.put((time.monotonic() + seconds, data))


def _serve(seconds: float, address: str, port: int) -> None:
    with socket.create_server((address, 0)) as server:
        print(server.getsockname()[1], flush=True)
        while True:
            client, _ = server.accept()
            host = socket.create_connection((address, port))
            for source, target in ((client, host), (host, client)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=_copy, args=(source, target, seconds), daemon=True).start()


if __name__ == "__main__":
    _serve(float(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
