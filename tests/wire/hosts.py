"""Real hosts for the tests: OpenSSH servers of the local provider, and a relay that can be cut."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil

from provision.keys import generate_ed25519
from provision.local.provider import LocalProvider
from provision.model import FleetSpec, Host
from tests.program import wait_for


@dataclasses.dataclass(frozen=True)
class Hosts:
    """The hosts of one fleet, and the key that logs in on them."""

    hosts: list[Host]
    key: Path

    def listener(self, index: int) -> psutil.Process:
        """Return the sshd that listens for a host."""
        host = self.hosts[index]
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                for connection in process.net_connections("tcp"):
                    if connection.status == psutil.CONN_LISTEN and connection.laddr == (host.address, host.port):
                        return process
        raise AssertionError(f"no process listens for {host.name}")

    def sessions(self, index: int) -> list[psutil.Process]:
        """Return the sshd processes that serve connections to a host."""
        children = self.listener(index).children(recursive=True)
        processes = []
        for child in children:
            with contextlib.suppress(psutil.Error):
                if child.name().startswith("sshd"):
                    processes.append(child)
        return processes

    def kill_sessions(self, index: int) -> None:
        """Break all connections to a host."""
        for process in self.sessions(index):
            with contextlib.suppress(psutil.Error):
                process.kill()

    @contextlib.contextmanager
    def hung(self, index: int) -> Iterator[None]:
        """Stop the processes of all connections to a host; continue them afterwards."""
        stopped = self.sessions(index)
        for process in stopped:
            with contextlib.suppress(psutil.Error):  # of a login or a connection that ends
                process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            for process in stopped:
                with contextlib.suppress(psutil.Error):
                    process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def local_hosts(root: Path, workers: int) -> Iterator[Hosts]:
    """Start `workers` hosts in a subdirectory of `root`; end them afterwards."""
    pair = generate_ed25519("tests")
    root.mkdir(parents=True, exist_ok=True)
    key = root / "id_ed25519"
    key.touch(0o600)
    key.write_text(pair.private)
    provider = LocalProvider(root / "local")
    spec = FleetSpec(f"wire{os.getpid()}", "local", workers, pair.public)
    try:
        provider.create(spec, [f"worker-{index}" for index in range(workers)], lambda *_: None)
        yield Hosts(provider.hosts(spec, provider.list(spec.name)), key)
    finally:
        provider.delete(provider.list(spec.name), lambda *_: None)


@contextlib.contextmanager
def no_thread_left() -> Iterator[None]:
    """Fail if a thread that was started within does not end."""
    before = set(threading.enumerate())
    yield

    def left() -> list[threading.Thread]:
        return [each for each in set(threading.enumerate()) - before if each.name != "ssh-alarms"]

    wait_for("the end of all threads", lambda: not left())


class Wire:
    """A TCP relay to a host, which can hold back all data or be cut."""

    def __init__(self, host: Host) -> None:
        self._far = (host.address, host.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._flows = threading.Event()
        self._flows.set()
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()
        self.host = dataclasses.replace(host, address="127.0.0.1", port=self._listener.getsockname()[1])
        self.opened = 0

    def hold(self) -> None:
        """Forward nothing from now on, as a network that drops packets."""
        self._flows.clear()

    def release(self) -> None:
        """Forward what was held back, and all data from now on."""
        self._flows.set()

    def cut(self) -> None:
        """Break all connections."""
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the relay and its connections."""
        self.release()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(5)
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._far)
            except OSError:
                near.close()
                continue
            self.opened += 1
            self._sockets += [near, far]
            for pair in ((near, far), (far, near)):
                thread = threading.Thread(target=self._relay, args=pair, daemon=True)
                self._threads.append(thread)
                thread.start()

    def _relay(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 18):
                self._flows.wait()
                target.sendall(data)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
