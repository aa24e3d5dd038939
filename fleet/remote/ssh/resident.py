"""Remember where the resident agents of hosts listen, so that the next command needs to start none.

A file for each host, or slot of one, in the fleet's directory on this computer contains the path of the socket on the
host. It is empty if the SSH server of the host does not forward to sockets, or if the agent is running but does not
answer.
"""

from __future__ import annotations

import contextlib
import os
import time
from hashlib import sha256
from pathlib import Path

from provision.model import Host
from train.agent.files.disk import write_atomic

IDLE_S = 900.0
"""Time without a connection after which a resident agent ends, in seconds."""

DIRECTORY = "agents"
"""Name of the directory with these files in the directory of a fleet."""

_DIGITS = 16
_LONGEST = 107  # bytes of the path of a socket, unix(7)
_RETRY_S = 120.0  # until a running agent that was not reached is tried again: the host may have been busy
_FRESH_S = 60.0  # a file is not touched again within this time


class ResidentAgent:
    """Record of the resident agent of a host on this computer.

    Args:
        host: The host.
        key_path: Private key of the fleet, in the directory of the fleet.
    """

    def __init__(self, host: Host, key_path: Path) -> None:
        # The slots of a host have the names of other hosts, and other directories.
        place = repr((host.user, host.address, host.port, host.root, host.python))
        name = f"{host.name}-{sha256(place.encode('utf-8', 'surrogateescape')).hexdigest()[:_DIGITS]}"
        self._path = key_path.parent / DIRECTORY / name
        self._age_s, self._content = self._read()
        self._has_failed = False  # nothing answered at the socket

    def _read(self) -> tuple[float, bytes | None]:
        try:
            age_s = time.time() - self._path.stat().st_mtime
            return abs(age_s), self._path.read_bytes()[: _LONGEST + 1]
        except OSError:
            return 0.0, None

    @property
    def is_forbidden(self) -> bool:
        """Return whether a resident agent was running lately that was not reached."""
        return self._content == b"" and self._age_s < _RETRY_S

    @property
    def socket(self) -> str:
        """Return the path of the socket at which the agent probably listens; empty: it probably does not."""
        content = self._content or b""
        is_path = content.startswith(b"/") and len(content) <= _LONGEST
        return content.decode("utf-8", "surrogateescape") if is_path and self._age_s < IDLE_S else ""

    def keep(self) -> None:
        """Remember that the agent answered now."""
        if self._age_s >= _FRESH_S:
            with contextlib.suppress(OSError):  # the next command starts an agent
                os.utime(self._path)

    def forget(self) -> None:
        """Forget the socket: nothing of this version answers there."""
        self._path.unlink(missing_ok=True)
        self._content, self._has_failed = None, True

    def learn(self, socket: str, *, is_running: bool) -> bool:
        """Learn where a resident agent listens from an agent that was started; return whether that one should stay.

        Args:
            socket: The path; empty: the host cannot have a resident agent.
            is_running: A resident agent is running; if it was not reached, it is not tried again for a while.
        """
        if not socket or self.is_forbidden:
            return False
        is_forbidden = self._has_failed and is_running
        with contextlib.suppress(OSError):  # the next command starts an agent, too
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            write_atomic(str(self._path), b"" if is_forbidden else socket.encode("utf-8", "surrogateescape"))
        return not is_forbidden
