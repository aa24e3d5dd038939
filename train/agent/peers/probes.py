"""Check that the tasks can reach each other: every agent probes the ports that TensorFlow will use.

A probe connects to the very address of a port, and requires an answer that only an agent of the job can give: an open
port may belong to another program.
"""

import errno
import os
import socket
import struct
import time
from collections import deque
from typing import Callable, Deque, Dict, Optional, Sequence

from train.agent.gang import readiness
from train.agent.host.loop import READ, WRITE, Loop
from train.agent.peers.connections import JobCredentials
from train.agent.protocol.admission import Acceptor, max_unauthenticated
from train.agent.protocol.records import Member
from train.agent.protocol.session import (
    LONGEST_GREETING,
    NONCE_BYTES,
    port_answer,
    port_owner,
    port_question,
)

PORT_DEADLINE_S = 5.0  # for the first try of one port; doubled for each further one
PROBES_DEADLINE_S = 20.0  # for all tries of all ports
_PAUSE_S = (0.1, 1.0)  # before the second try, doubled up to the longest
_AT_ONCE = 128
_RESET = struct.pack("ii", 1, 0)
_ERRORS = {
    errno.ETIMEDOUT: readiness.TIMED_OUT,
    errno.ECONNREFUSED: readiness.REFUSED,
    errno.EHOSTUNREACH: "no route to host",
    errno.ENETUNREACH: "network is unreachable",
    errno.ECONNRESET: "connection reset",
}

# Load on the other host can cause these; anything else is what a kernel, a firewall, or a name server answers.
_TRANSIENT = (readiness.TIMED_OUT, readiness.SILENT, readiness.STRANGER, "connection reset")


def _describe_error(code: int) -> str:
    return _ERRORS.get(code, os.strerror(code).lower())


def _reset(connection: socket.socket) -> None:
    # A reset leaves no TIME_WAIT state on a port that the task is about to bind.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    connection.close()


class ProbeListener:
    """Answer probes on a task's port: the agent of the task listens there.

    Args:
        loop: Event loop that serves it.
        listener: Listens on the port; stays open when this is closed.
        credentials: Authenticate the agents of the job.
        slot: Local slot.
        expected: Number of agents that send probes.
    """

    def __init__(
        self, loop: Loop, listener: socket.socket, credentials: JobCredentials, slot: str, expected: int
    ) -> None:
        self._loop = loop
        self._listener = listener
        self._credentials = credentials
        self._slot = slot
        self._acceptor = Acceptor(listener)
        self._max_connections = max_unauthenticated(expected)
        self._connections: Dict[socket.socket, bytearray] = {}
        self._open = True
        listener.setblocking(False)
        loop.watch(listener.fileno(), READ, lambda _: self._accept())

    def close(self) -> None:
        """Stop answering."""
        if self._open:
            self._open = False
            self._loop.unwatch(self._listener.fileno())
            for connection in list(self._connections):
                self._drop(connection)
            self._acceptor.close()

    def _accept(self) -> None:
        accepted = self._acceptor.accept()
        if accepted is None:
            return
        connection, _ = accepted
        self._connections[connection] = bytearray()
        if len(self._connections) > self._max_connections:
            self._drop(next(iter(self._connections)))
        self._loop.watch(connection.fileno(), READ, lambda _: self._receive(connection))
        self._receive(connection)

    def _receive(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(LONGEST_GREETING)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        received = self._connections[connection]
        received += data
        if not data or len(received) > LONGEST_GREETING:
            self._drop(connection)
        elif received.endswith(b"\n"):
            self._answer(connection, bytes(received))
            received.clear()

    def _answer(self, connection: socket.socket, line: bytes) -> None:
        credentials = self._credentials
        try:
            connection.send(port_answer(credentials.secret, credentials.job, credentials.attempt, self._slot, line))
        except Exception:  # noqa: BLE001 - of a stranger's line; nothing that it holds may end this process
            self._drop(connection)

    def _drop(self, connection: socket.socket) -> None:
        del self._connections[connection]
        self._loop.unwatch(connection.fileno())
        _reset(connection)


class _PortProbe:
    """The state of the probe of one port, repeated until it succeeds or has failed for long enough."""

    def __init__(self, member: Member, began_at: float) -> None:
        self.member = member
        self.began_at = began_at
        self.failures = 0
        self.error = ""  # of the newest failure
        self.nonce = b""
        self.connection: Optional[socket.socket] = None
        self.answer = bytearray()


class PortProbes:
    """Probe the ports of other tasks, many at once.

    A loaded host may lose or refuse a connection that the next one gets. A failed probe is therefore repeated:
    for up to PROBES_DEADLINE_S, or up to PORT_DEADLINE_S if only the network or the address can be wrong. A task
    that was not probed twice in that time gets no verdict at all: then it is this host that is too slow.

    Args:
        loop: Event loop that serves it.
        credentials: Authenticate the agents of the job.
        slot: Local slot.
        others: The tasks to probe.
        on_done: Called once with why each of them cannot be reached; empty for those that can.
    """

    def __init__(
        self,
        loop: Loop,
        credentials: JobCredentials,
        slot: str,
        others: Sequence[Member],
        on_done: Callable[[Dict[str, str]], None],
    ) -> None:
        self._loop = loop
        self._credentials = credentials
        self._slot = slot
        self._on_done = on_done
        self._waiting: Deque[_PortProbe] = deque(_PortProbe(member, 0.0) for member in others)
        self._active: Dict[str, _PortProbe] = {}  # those that have a connection now
        self._pausing: Dict[str, _PortProbe] = {}  # those that failed and will be repeated
        self._results: Dict[str, str] = {}
        self._deadline = 0.0
        self._done = False

    def begin(self) -> None:
        """Start the probes; without other tasks, finish at once."""
        self._deadline = time.monotonic() + PROBES_DEADLINE_S
        self._loop.after("port probes", PROBES_DEADLINE_S, self._give_up)
        self._start_probes()

    def close(self) -> None:
        """End all probes without a result."""
        self._done = True
        self._loop.cancel("port probes")
        self._waiting.clear()
        for slot in list(self._pausing):
            self._loop.cancel(f"port probe {slot}")
        self._pausing.clear()
        for probe in list(self._active.values()):
            self._disconnect(probe)

    def _start_probes(self) -> None:
        while self._waiting and len(self._active) < _AT_ONCE:
            self._start_probe(self._waiting.popleft())
        if not (self._waiting or self._active or self._pausing or self._done):
            self.close()
            self._on_done(self._results)

    def _start_probe(self, probe: _PortProbe) -> None:
        member = probe.member
        self._active[member.slot] = probe
        probe.began_at = probe.began_at or time.monotonic()
        probe.nonce = os.urandom(NONCE_BYTES)
        probe.answer.clear()
        # A host that is too slow for one deadline may meet the next, longer one.
        self._loop.after(
            f"port probe {member.slot}", PORT_DEADLINE_S * 2**probe.failures, lambda: self._timed_out(probe)
        )
        try:
            family, _, _, _, where = socket.getaddrinfo(member.address, member.port, type=socket.SOCK_STREAM)[0]
            probe.connection = socket.socket(family, socket.SOCK_STREAM)
            probe.connection.setblocking(False)
            code = probe.connection.connect_ex(where)
        except socket.gaierror:
            self._retry_or_fail(probe, readiness.UNKNOWN_NAME)
            return
        except OSError as error:
            self._retry_or_fail(probe, _describe_error(error.errno or 0))
            return
        if code in (0, errno.EINPROGRESS):
            self._loop.watch(probe.connection.fileno(), WRITE, lambda _: self._connected(probe))
        else:
            self._retry_or_fail(probe, _describe_error(code))

    def _connected(self, probe: _PortProbe) -> None:
        connection = probe.connection
        if connection is None:
            return
        code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if not code:
            credentials = self._credentials
            code = self._send(
                connection, port_question(credentials.job, credentials.attempt, self._slot, probe.nonce)
            )
        if code:
            self._finish(probe, _describe_error(code))
        else:
            self._loop.watch(connection.fileno(), READ, lambda _: self._receive(probe))

    def _send(self, connection: socket.socket, line: bytes) -> int:
        try:
            connection.send(line)  # the first bytes of a connection: there is room for them
        except OSError as error:
            return error.errno or 0
        return 0

    def _receive(self, probe: _PortProbe) -> None:
        if probe.connection is None:
            return
        try:
            data = probe.connection.recv(LONGEST_GREETING)
        except BlockingIOError:
            return
        except OSError as error:  # agents reset the connections of unknown peers, too
            reset = error.errno == errno.ECONNRESET
            self._finish(probe, readiness.STRANGER if reset else _describe_error(error.errno or 0))
            return
        probe.answer += data
        if probe.answer.endswith(b"\n") or not data or len(probe.answer) > LONGEST_GREETING:
            self._finish(probe, self._check_answer(probe))

    def _check_answer(self, probe: _PortProbe) -> str:
        credentials = self._credentials
        try:
            owner = port_owner(
                credentials.secret, credentials.job, credentials.attempt, self._slot, probe.nonce, bytes(probe.answer)
            )
        except Exception:  # noqa: BLE001 - of a stranger's answer; nothing that it holds may end this process
            return readiness.STRANGER
        return "" if owner == probe.member.slot else f"{owner} {readiness.ANOTHER}"

    def _timed_out(self, probe: _PortProbe) -> None:
        watched_for_answer = probe.connection is not None and self._is_connected(probe.connection)
        self._finish(probe, readiness.SILENT if watched_for_answer else readiness.TIMED_OUT)

    def _is_connected(self, connection: socket.socket) -> bool:
        try:
            connection.getpeername()
        except OSError:
            return False
        return True

    def _finish(self, probe: _PortProbe, clause: str) -> None:
        if clause:
            self._retry_or_fail(probe, clause)
        else:
            self._disconnect(probe)
            self._results[probe.member.slot] = ""
        self._start_probes()

    def _retry_or_fail(self, probe: _PortProbe, clause: str) -> None:
        """Repeat the probe, or report why it failed if that is certain."""
        slot = probe.member.slot
        self._disconnect(probe)
        probe.error = clause
        probe.failures += 1
        pause_s = min(_PAUSE_S[0] * 2 ** (probe.failures - 1), _PAUSE_S[1])
        until = self._deadline if clause in _TRANSIENT else probe.began_at + PORT_DEADLINE_S
        is_proven = clause != readiness.STRANGER and clause.endswith(f" {readiness.ANOTHER}")
        if is_proven or (probe.failures > 1 and time.monotonic() + pause_s >= until):
            self._results[slot] = clause
            return
        self._pausing[slot] = probe
        self._loop.after(f"port probe {slot}", pause_s, lambda: self._repeat(probe))

    def _repeat(self, probe: _PortProbe) -> None:
        del self._pausing[probe.member.slot]
        self._waiting.append(probe)
        self._start_probes()

    def _disconnect(self, probe: _PortProbe) -> None:
        slot = probe.member.slot
        self._active.pop(slot, None)
        self._loop.cancel(f"port probe {slot}")
        if probe.connection is not None:
            self._loop.unwatch(probe.connection.fileno())
            _reset(probe.connection)
            probe.connection = None

    def _give_up(self) -> None:
        for probe in [*self._active.values(), *self._pausing.values(), *self._waiting]:
            if probe.failures > 1:
                self._results[probe.member.slot] = probe.error
        self.close()
        self._on_done(self._results)
