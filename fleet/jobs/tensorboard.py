"""The process of TensorBoard, on this computer only."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from fleet.errors import NotReadyError
from fleet.steps import Shell, Step

ADDRESS = "127.0.0.1"
DEFAULT_PORT = 6006
_PORTS = 100  # tried from the default one on
_START_S = 120.0
_POLL_S = 0.2
_STOP_S = 5.0
_RELOAD_S = "5"
_TAIL = 4096
# Runs a program, and ends its process group if the pipe on stdin is closed: only this command holds the other end, so
# that TensorBoard also ends if this command is killed.
_TIED = 'exec 3<&0; { trap "" TERM; read -r _ <&3; kill -TERM 0; sleep 2; kill -KILL 0; } & exec "$@" 3<&- </dev/null'


def need_tensorboard() -> None:
    """Check that TensorBoard is installed.

    Raises:
        NotReadyError: it is not.
    """
    if find_spec("tensorboard") is None:
        raise NotReadyError(
            "TensorBoard is not installed on this computer", next_steps=[Shell("pip install tensorboard")]
        )


def choose_port(given: int | None) -> int:
    """Return the port to use: the given one, or the first free one from 6006 on.

    Raises:
        NotReadyError: the given port is in use, or none is free.
    """
    ports = [given] if given is not None else range(DEFAULT_PORT, DEFAULT_PORT + _PORTS)
    for port in ports:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((ADDRESS, port))
            return port
    raise NotReadyError(
        f"port {given} cannot be used on this computer" if given else "no port is free for TensorBoard",
        next_steps=[Step("tensorboard")] if given else [],
    )


@contextlib.contextmanager
def serve(directory: Path, scratch: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run TensorBoard until the block ends; yield when it answers.

    Args:
        directory: Directory of the runs.
        scratch: Directory for its log, in which it runs: no file of the user's shadows a module.
        port: Its port.

    Raises:
        NotReadyError: it does not start.
    """
    log = scratch / "log"
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(directory), "--host", ADDRESS]
    command += ["--port", str(port), "--reload_interval", _RELOAD_S]
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["sh", "-c", _TIED, "sh", *command],
            cwd=scratch, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    try:
        _wait_until_ready(process, port, log)
        yield process
    finally:
        _end(process)


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + _START_S
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), opener.open(f"http://{ADDRESS}:{port}/data/environment", timeout=5.0):
            return
        time.sleep(_POLL_S)
    lines = log.read_bytes()[-_TAIL:].decode(errors="replace").strip().splitlines()
    raise NotReadyError("TensorBoard does not start", cause=lines[-1].strip() if lines else "")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End TensorBoard and all processes that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_S)
