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
from fleet.remote.client import ANSWER_S, AgentClient, Transport
from fleet.remote.fanout import no_answer, where
from fleet.remote.ssh.connection import HostConnection, connect
from fleet.remote.ssh.errors import login_step
from fleet.steps import Step
from provision.model import Host
from train import pack
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


class NotARecordError(Exception):
    """A line is not a record of a valid size.

    Attributes:
        line: Its beginning.
    """

    def __init__(self, line: bytes) -> None:
        super().__init__(line)
        self.line = line


class RecordBuffer:
    """Received bytes that are not read yet."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._searched = 0  # bytes without the end of the line
        self._record: Record | None = None  # whose payload is incomplete
        self._size = 0  # of this payload
        self._line_size = 0

    def __bool__(self) -> bool:
        """Return whether there are bytes that are not read."""
        return bool(self._data)

    @property
    def pending(self) -> int:
        """Return the number of bytes of an incomplete line, or of an incomplete payload."""
        return len(self._data)

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        self._data += data

    def line(self, longest: int = LINE_MAX) -> bytes | None:
        """Return the next line without its newline; None if it is incomplete.

        Raises:
            NotARecordError: it is longer than `longest` bytes.
        """
        end = self._data.find(b"\n", self._searched)
        if end < 0:
            self._searched = len(self._data)
            if self._searched > longest:
                raise NotARecordError(bytes(self._data[:80]))
            return None
        self._searched = 0
        return self._take(end, end + 1)

    def next(self, longest: int = LINE_MAX) -> tuple[Record, bytes, int] | None:
        """Return the next record, its payload, and the size of both in bytes; None if they are incomplete.

        Raises:
            NotARecordError: what was received is not a record, or too long.
        """
        if self._record is None:
            line = self.line(longest)
            if line is None:
                return None
            try:
                self._record = decode(line)
            except MalformedRecordError as error:
                raise NotARecordError(line[:80]) from error
            self._size, self._line_size = getattr(self._record, "payload", 0), len(line)
            if type(self._size) is not int or not 0 <= self._size <= PAYLOAD_MAX:
                raise NotARecordError(line[:80])
        if len(self._data) < self._size:
            return None
        record, self._record = self._record, None
        return record, self._take(self._size, self._size), self._line_size + self._size

    def _take(self, end: int, next_at: int) -> bytes:
        """Return the bytes up to `end`, and remove those up to `next_at`."""
        data = bytes(memoryview(self._data)[:end])
        del self._data[:next_at]
        return data


class SSHTransport(Transport):
    """Carry records over a channel of an SSH connection; `open_agent` creates one.

    Attributes:
        connection: The SSH connection, owned by this object.
        received: Number of bytes of all records and payloads that were received.
    """

    def __init__(self, connection: HostConnection, session: paramiko.Channel, python: str) -> None:
        self.connection = connection
        self._session = session
        self._python = python
        self._greeted = False
        self.received = 0
        self._input = RecordBuffer()
        self._stderr = b""

    @property
    def has_input(self) -> bool:
        """Return whether data of the agent is available that was not yet received."""
        return bool(self._input) or self._session.recv_ready()

    def send(self, record: Record, payload: bytes = b"", *, doing: str, deadline_s: float = ANSWER_S) -> None:
        """Send a record, and the payload that it announces."""
        self._send(encode(record) + payload, doing, deadline_s)

    def receive(self, deadline_s: float, waiting_for: str, *, long: bool = False) -> tuple[Record, bytes]:
        """Return the next record, and the payload that follows it."""
        longest = LONG_LINE_MAX if long else LINE_MAX
        record, payload, size = self._await(lambda: self._input.next(longest), deadline_s, waiting_for)
        self.received += size
        return record, payload

    def sever(self) -> None:
        """End pending calls with an error, from any thread."""
        self.connection.sever()

    def close(self) -> None:
        """Close the connection; repeated calls do nothing."""
        self.connection.close()

    # --- opening ------------------------------------------------------------------------------------------------

    def greet(self, agent: bytes, deadline_s: float) -> Hello:
        """Receive the agent's first record, after uploading the agent to a host that requests it."""
        doing = "the agent was being started"
        for _ in range(_NOISE_LINES):  # start-up files of the login shell may print
            line = self._await(self._input.line, deadline_s, doing)
            if line == pack.NEED_AGENT:
                self._send(pack.upload(agent), "the agent was being sent", deadline_s)
            elif line.startswith((pack.TOO_OLD, pack.FAILED)):
                raise self._refused(line)
            elif (hello := self._hello(line)) is not None:
                return hello
        raise self._not_an_agent(line)

    def _hello(self, line: bytes) -> Hello | None:
        with contextlib.suppress(MalformedRecordError):
            record = decode(line)
            if isinstance(record, Hello):
                self._greeted = True
                return record
        return None

    # --- sending ------------------------------------------------------------------------------------------------

    def _send(self, data: bytes, doing: str, deadline_s: float) -> None:
        self.connection.guard.send_deadline_s = deadline_s
        try:
            for start in range(0, len(data), _SLICE):
                self._session.settimeout(deadline_s)
                self._session.sendall(data[start : start + _SLICE])
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise self._broken(error, deadline_s, doing) from error

    # --- receiving ----------------------------------------------------------------------------------------------

    def _await(self, read: Callable[[], T | None], deadline_s: float, waiting_for: str) -> T:
        """Return what `read` returns when enough has been received."""
        began = time.monotonic()
        try:
            while (result := read()) is None:
                self._input.feed(self._receive(began + self._input.pending / _SLOWEST, deadline_s, waiting_for))
        except NotARecordError as error:
            raise self._not_an_agent(error.line) from error
        return result

    def _receive(self, began: float, deadline_s: float, waiting_for: str) -> bytes:
        """Return received bytes; wait for the first one until `deadline_s` seconds after `began`."""
        left_s = began + deadline_s - time.monotonic()
        if left_s < -2 * deadline_s:  # not immediately: this program may have been stopped while the answer arrived
            raise self._broken(TimeoutError(), deadline_s, waiting_for)
        try:
            data = self._await_data(time.monotonic() + max(_LAST_WAIT_S, left_s))
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise self._broken(error, deadline_s, waiting_for) from error
        self._keep_stderr()
        if not data:
            raise self._ended(waiting_for)
        return data

    def _await_data(self, until: float) -> bytes:
        while True:
            left_s = max(_LAST_WAIT_S, until - time.monotonic())
            self._session.settimeout(min(left_s, _STDERR_S))
            try:
                data = self._session.recv(_READ)
                self.connection.has_read(len(data))
                return data
            except TimeoutError:
                if time.monotonic() >= until:
                    raise
                self._keep_stderr()

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
        return NotReadyError(
            f"{where(self.connection.host)} cannot keep the agent",
            cause=reason,
            hint=f"{self.connection.host.root} must be writable on the host",
        )

    def _no_python(self, reason: str, cause: str = "") -> NotReadyError:
        return NotReadyError(
            f"{where(self.connection.host)} {reason}",
            cause=cause,
            hint="install Python 3.9 or later on the host, or name its interpreter: --python PATH",
        )

    def _broken(self, error: Exception, deadline_s: float, doing: str) -> FleetError:
        """Return the error for an exception of paramiko; if the agent hangs, shut the connection down."""
        if isinstance(error, TimeoutError) or self.connection.guard.is_stalled:
            self.connection.sever()
            return no_answer(self.connection.host, deadline_s, doing)
        return self._ended(doing)

    def _ended(self, doing: str) -> FleetError:
        """Return the error for the end of the data: the agent ended, or the connection broke."""
        self._session.status_event.wait(_EXIT_S)  # the exit code comes after the end of output
        self._keep_stderr()
        status = self._session.exit_status
        transport = self._session.get_transport()
        if status >= 0 or transport.is_active():
            return self._agent_ended(status, doing)
        return self.connection.ended(self._session, doing)

    def _agent_ended(self, status: int, doing: str) -> FleetError:
        lines = self._stderr.decode("utf-8", "replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        if status in _NOT_FOUND and not self._greeted:
            return self._no_python(f"has no {self._python} that runs", last)
        host = self.connection.host
        if not self._greeted and _EXPIRED in last.lower():  # session.c of OpenSSH
            return NotReadyError(
                f"the password of {host.user} on {where(host)} has expired: its SSH server runs no command",
                hint="log in once and change the password",
                next_steps=[login_step(host)],
            )
        how = f"with exit code {status}" if status >= 0 else "without an exit code"
        return NotReadyError(
            f"the agent on {where(host)} ended {how} while {doing}",
            cause=last,
            next_steps=[Step("status")],
        )
