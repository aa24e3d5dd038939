"""Mount and PID namespaces of a guest: all its processes end with its first process."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

UP = "the mounts of this guest are made"
START_DEADLINE_S = 90.0
_PROGRAMS = ("unshare", "setpriv", "mount")

# The kernel's notice of a parent's death is about the thread that started the child: this one lives as long as the
# program does.
_STARTER = ThreadPoolExecutor(1, thread_name_prefix="guests")


def obstacle() -> str:
    """Return the reason why namespaces cannot be created here; empty if they can."""
    if os.geteuid() != 0:
        return "guests with mounts and processes of their own need root"
    if missing := [name for name in _PROGRAMS if shutil.which(name) is None]:
        return f"{', '.join(missing)} is not installed"
    trial = (
        "mount -t tmpfs none /mnt && mkdir /mnt/a /mnt/b /mnt/w && "
        "mount -t overlay none -o lowerdir=/etc,upperdir=/mnt/b,workdir=/mnt/w /mnt/a"
    )
    unshare = ("unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")
    done = subprocess.run([*unshare, "sh", "-c", trial], capture_output=True, text=True, check=False, timeout=30)
    if done.returncode:
        return f"no mounts or processes of a guest's own can be made: {done.stderr.strip()}"
    return ""


def cannot_listen(port: int) -> str:
    """Return the reason why guests cannot listen at a TCP port of loopback addresses; empty if they can."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.255.0.1", port))
        except OSError as error:
            return f"no process can listen at port {port} of a loopback address: {error.strerror}"
    return ""


class Space:
    """A shell script as the first process of its own, and whatever comes of it.

    It ends when this program ends, however that may be.

    Args:
        script: Creates the mounts, prints `UP`, and becomes the first process by `exec`.
        hear: Called with each line that comes from there.

    Raises:
        OSError: it did not come up.
    """

    def __init__(self, script: Path, hear: Callable[[str], None]) -> None:
        self._hear = hear
        self._first = -1
        self._is_up = threading.Event()
        self._words: list[str] = []
        self._running = _STARTER.submit(self._start, script).result(START_DEADLINE_S)
        self._reader = threading.Thread(target=self._read, name=f"{script.parent.name} console", daemon=True)
        self._reader.start()
        if not self._is_up.wait(START_DEADLINE_S) or self._first < 0:
            self.kill()
            raise OSError(f"its mounts were not made: {' '.join(self._words) or 'no output'}")

    @staticmethod
    def _start(script: Path) -> subprocess.Popen[bytes]:
        unshare = "exec unshare --mount --uts --pid --fork --kill-child --mount-proc sh"
        return subprocess.Popen(
            # This program may have ended before the notice of its end was asked for.
            ["setpriv", "--pdeathsig", "KILL", "sh", "-c", f'[ "$PPID" = "$1" ] && {unshare} "$2"', "guest",
             str(os.getpid()), str(script)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
            start_new_session=True,
        )  # fmt: skip

    def _read(self) -> None:
        assert self._running.stdout
        with self._running.stdout as lines:
            for data in lines:
                line = data.decode("utf-8", "replace").rstrip("\r\n")
                if self._is_up.is_set():
                    self._hear(line)
                elif line == UP:
                    self._find_first()
                    self._is_up.set()
                else:
                    self._words.append(line)
        self._is_up.set()

    def _find_first(self) -> None:
        pid = self._running.pid
        with contextlib.suppress(OSError, IndexError):
            first = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
            self._first = os.pidfd_open(first)

    def pause(self, paused: bool) -> None:
        """Stop the first process, so that it accepts no connection, or let it continue; its children run on."""
        if self._first >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._first, signal.SIGSTOP if paused else signal.SIGCONT)

    def kill(self) -> None:
        """End the first process, and thereby all others; none is left when this returns."""
        if self._first >= 0:
            # Not its parent: that returns when the first process has been reaped, the last of all that is in there.
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._first, signal.SIGKILL)
            os.close(self._first)
            self._first = -1
        else:
            self._running.kill()
        self._running.wait(START_DEADLINE_S)
        self._reader.join(START_DEADLINE_S)
