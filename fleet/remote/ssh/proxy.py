"""Run a program that carries an SSH connection, as ProxyCommand in ssh_config(5)."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from typing import IO

_END_S = 2.0
_STDERR_MAX = 2000


class Proxy:
    """A program whose input and output are the connection; `socket` is this side's end of it.

    The connection is a socket, not two pipes: another thread can shut it down, and it supports timeouts.

    Args:
        command: The program and its arguments, which are not passed to a shell.

    Raises:
        OSError: the program cannot be started.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self.socket, theirs = socket.socketpair()
        self._lock = threading.Lock()
        try:
            self._process = subprocess.Popen(
                list(command),
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=self._stderr,
                start_new_session=True,
            )
        except OSError:
            self.socket.close()
            self._stderr.close()
            raise
        finally:
            theirs.close()

    def last_output(self) -> str:
        """Return the last line that the program wrote to stderr; one that begins with ``ERROR:`` if there is one."""
        if self._stderr.closed:
            return ""
        size = os.fstat(self._stderr.fileno()).st_size
        text = os.pread(self._stderr.fileno(), _STDERR_MAX, max(0, size - _STDERR_MAX)).decode("utf-8", "replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR:")]  # of gcloud, followed by advice
        return next(reversed(errors or lines), "")

    def close(self) -> None:
        """End the program; repeated calls do nothing."""
        with self._lock:
            self.socket.close()
            if self._process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    self._process.terminate()
                try:
                    self._process.wait(_END_S)
                except subprocess.TimeoutExpired:
                    self._process.kill()
                    self._process.wait()
            self._stderr.close()
