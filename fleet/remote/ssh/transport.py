"""Start the agent of a host over SSH, and exchange records and payloads with it; each wait has a deadline."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import TypeVar

import paramiko

from fleet.errors import FleetError, NotReadyError
from fleet.remote.client import ANSWER_S, AgentClient
from fleet.remote.fanout import no_answer, where
from fleet.remote.quoting import last_line
from fleet.remote.ssh.connection import HostConnection, connect
from fleet.remote.ssh.errors import login_step
from fleet.steps import Step
from provision.model import Host
from train import pack
from train.agent.protocol.channel import LineBuffer, LineTooLongError
from train.agent.protocol.records import Hello, MalformedRecordError, Record, decode, encode

T = TypeVar("T")

LINE_MAX = 4 * 1024 * 1024
LONG_LINE_MAX = 64 * 1024 * 1024  # lists of a job's files and their hashes
PAYLOAD_MAX = 1024 * 1024  # agents send pieces of logs and files of 256 KiB, compressed or not
_PACKING = Lock()  # all threads that connect to a host need the agent at once; the first one packs it
_SLICE = 256 * 1024  # paramiko copies the rest of the data for each packet
_READ = 256 * 1024
_SLOWEST = 32 * 1024  # minimum bytes per second of an answer in progress
_STDERR_KEPT = 8 * 1024
_STDERR_S = 0.5  # while an answer is awaited, stderr is read now and then
_NOISE_LINES = 100
_EXIT_S = 2.0
_LAST_WAIT_S = 0.001  # to read data that has arrived already
_BROKEN = (paramiko.SSHException, OSError, EOFError)
_EXPIRED = "password change required"
_NOT_FOUND = (126, 127)  # exit codes of a shell: cannot be executed, not found


def open_agent(
    host: Host,
    key_path: Path,
    *,
    connect_timeout_s: float = 10.0,
    deadline_s: float = ANSWER_S,
    window: int | None = None,
) -> AgentClient:
    """Connect to a host and start its agent; upload the agent first if the host does not have it.

    Args:
        host: The host on which to start it.
        key_path: Private key of the fleet.
        connect_timeout_s: Longest time until the connection is open, in seconds.
        deadline_s: Longest time without an answer afterwards, in seconds.
        window: Bytes that the agent may send before they are read; None: as many as a single host may send.

    Raises:
        UnreachableError: the host does not answer, refuses, or does not have the pinned host key.
        NotReadyError: the host has no usable Python, or the agent does not start.
    """
    with _PACKING:
        archive = pack.build_agent()
    python = host.python or "python3"
    connection = connect(host, key_path, connect_timeout_s=connect_timeout_s, window=window)
    try:
        command = pack.bootstrap_command(python, host.root, archive.digest, host.shared)
        session = connection.execute(command, deadline_s, "the agent was being started")
        transport = SSHTransport(connection, session, python)
        return AgentClient(transport, host, transport.greet(archive.data, deadline_s))
    except BaseException:
        connection.close()
        raise


class SSHTransport:
    """Carry records over a channel of an SSH connection; `open_agent` creates one.

    Attributes:
        connection: The SSH connection, owned by this object.
        received: Number of bytes of all records and payloads that were received.
        sever: Ends pending calls with an error, from any thread.
        close: Closes the connection; repeated calls do nothing.
    """

    def __init__(self, connection: HostConnection, session: paramiko.Channel, python: str) -> None:
        self.connection = connection
        self.received = 0
        self.sever = connection.sever
        self.close = connection.close
        self._session = session
        self._python = python
        self._greeted = False
        self._input = LineBuffer(LINE_MAX)
        self._record: Record | None = None  # whose payload is incomplete
        self._stderr = b""

    @property
    def has_input(self) -> bool:
        """Return whether data of the agent is available that was not yet received."""
        return bool(self._input.size) or self._session.recv_ready()

    def send(self, record: Record, payload: bytes = b"", *, doing: str, deadline_s: float = ANSWER_S) -> None:
        """Send a record, and the payload that it announces."""
        self._send(encode(record) + payload, doing, deadline_s)

    def receive(self, deadline_s: float, waiting_for: str, *, long: bool = False) -> tuple[Record, bytes]:
        """Return the next record, and the payload that follows it."""
        self._input.limit = LONG_LINE_MAX if long else LINE_MAX
        return self._await(self._next, deadline_s, waiting_for)

    def greet(self, agent: bytes, deadline_s: float) -> Hello:
        """Receive the agent's first record, after uploading the agent to a host that requests it."""
        doing = "the agent was being started"
        for _ in range(_NOISE_LINES):  # start-up files of the login shell may print
            line = self._await(self._line, deadline_s, doing)
            if line == pack.NEED_AGENT:
                self._send(pack.upload(agent), "the agent was being sent", deadline_s)
            elif line.startswith((pack.TOO_OLD, pack.FAILED)):
                raise self._refused(line)
            with contextlib.suppress(MalformedRecordError):
                record = decode(line)
                if isinstance(record, Hello):
                    self._greeted = True
                    return record
        raise self._not_an_agent(line)

    def _send(self, data: bytes, doing: str, deadline_s: float) -> None:
        self.connection.guard.send_deadline_s = deadline_s
        self._session.settimeout(deadline_s)
        try:
            for start in range(0, len(data), _SLICE):
                self._session.sendall(data[start : start + _SLICE])
        except _BROKEN as error:
            raise self._broken(error, deadline_s, doing) from error

    # --- receiving ----------------------------------------------------------------------------------------------

    def _await(self, read: Callable[[], T | None], deadline_s: float, waiting_for: str) -> T:
        """Return what `read` returns when enough has been received.

        Data that has arrived is read after the deadline, too: this program may have been stopped meanwhile.
        """
        began = time.monotonic()
        while (result := read()) is None:
            left_s = began + deadline_s + self._input.size / _SLOWEST - time.monotonic()
            data = None
            try:
                if left_s < -2 * deadline_s:
                    raise TimeoutError
                self._session.settimeout(max(_LAST_WAIT_S, min(left_s, _STDERR_S)))
                data = self._session.recv(_READ)
            except _BROKEN as error:
                if left_s <= 0 or not isinstance(error, TimeoutError):
                    raise self._broken(error, deadline_s, waiting_for) from error
            self._keep_stderr()
            if data:
                self.connection.has_read(len(data))
                self._input.feed(data)
            elif data is not None:
                raise self._ended(waiting_for)
        return result

    def _line(self) -> bytes | None:
        """Return the next line; None if it is incomplete."""
        try:
            return self._input.line()
        except LineTooLongError as error:
            raise self._not_an_agent(self._input.take(80)) from error

    def _next(self) -> tuple[Record, bytes] | None:
        """Return the next record and its payload; None if they are incomplete."""
        if self._record is None:
            line = self._line()
            if line is None:
                return None
            try:
                self._record = decode(line)
            except MalformedRecordError as error:
                raise self._not_an_agent(line) from error
            size = getattr(self._record, "payload", 0)
            if type(size) is not int or not 0 <= size <= PAYLOAD_MAX:
                raise self._not_an_agent(line)
            self.received += len(line) + size
        size = getattr(self._record, "payload", 0)
        if self._input.size < size:
            return None
        record, self._record = self._record, None
        return record, self._input.take(size)

    def _keep_stderr(self) -> None:
        while self._session.recv_stderr_ready():
            data = self._session.recv_stderr(_READ)
            self.connection.has_read(len(data))
            self._stderr = (self._stderr + data)[-_STDERR_KEPT:]

    # --- ends ---------------------------------------------------------------------------------------------------

    def _not_an_agent(self, line: bytes) -> FleetError:
        return NotReadyError(
            f"{where(self.connection.host)} sent something that is not a record of its agent",
            cause=repr(line[:80].decode("utf-8", "replace")),
            next_steps=[Step("status")],
        )

    def _refused(self, line: bytes) -> FleetError:
        word, _, reason = line.decode("utf-8", "replace").partition(" ")
        if word.encode() == pack.TOO_OLD:
            return self._no_python(f"has Python {reason} as {self._python}, and the agent needs 3.9")
        host = self.connection.host
        hint = f"{host.root} must be writable on the host"
        return NotReadyError(f"{where(host)} cannot keep the agent", cause=reason, hint=hint)

    def _no_python(self, reason: str, cause: str = "") -> NotReadyError:
        return NotReadyError(
            f"{where(self.connection.host)} {reason}",
            cause=cause,
            hint="install Python 3.9 or later on the host, or name its interpreter: --python PATH",
        )

    def _broken(self, error: Exception, deadline_s: float, doing: str) -> FleetError:
        """Return the error for an exception of paramiko; if the agent hangs, shut the connection down."""
        if isinstance(error, TimeoutError) or self.connection.guard.is_stalled:
            self.sever()
            return no_answer(self.connection.host, deadline_s, doing)
        return self._ended(doing)

    def _ended(self, doing: str) -> FleetError:
        """Return the error for the end of the data: the agent ended, or the connection broke."""
        self._session.status_event.wait(_EXIT_S)  # the exit code comes after the end of output
        self._keep_stderr()
        host, status = self.connection.host, self._session.exit_status
        if status < 0 and not self._session.get_transport().is_active():
            return self.connection.ended(doing)
        last = last_line(self._stderr.decode("utf-8", "replace"))
        if status in _NOT_FOUND and not self._greeted:
            return self._no_python(f"has no {self._python} that runs", last)
        if not self._greeted and _EXPIRED in last.lower():  # session.c of OpenSSH
            return NotReadyError(
                f"the password of {host.user} on {where(host)} has expired: its SSH server runs no command",
                hint="log in once and change the password",
                next_steps=[login_step(host)],
            )
        how = f"with exit code {status}" if status >= 0 else "without an exit code"
        message = f"the agent on {where(host)} ended {how} while {doing}"
        return NotReadyError(message, cause=last, next_steps=[Step("status")])
