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
from train.agent.peers.connections import Bond
from train.agent.protocol.admission import Acceptor, most_strangers
from train.agent.protocol.records import Member
from train.agent.protocol.session import (
    LONGEST_GREETING,
    NONCE_BYTES,
    port_answer,
    port_owner,
    port_question,
)

VISIT_DEADLINE_S = 5.0  # for the first try of one port; doubled for each further one
VISITS_DEADLINE_S = 20.0  # for all tries of all ports
_PAUSE_S = (0.1, 1.0)  # before the second try, doubled up to the longest
_AT_ONCE = 128
_RESET = struct.pack("ii", 1, 0)
_CLAUSES = {
    errno.ETIMEDOUT: readiness.TIMED_OUT,
    errno.ECONNREFUSED: readiness.REFUSED,
    errno.EHOSTUNREACH: "no route to host",
    errno.ENETUNREACH: "network is unreachable",
    errno.ECONNRESET: "connection reset",
}

# Load on the other host can cause these; anything else is what a kernel, a firewall, or a name server answers.
_BY_LOAD = (readiness.TIMED_OUT, readiness.SILENT, readiness.STRANGER, "connection reset")


def _clause(code: int) -> str:
    return _CLAUSES.get(code, os.strerror(code).lower())


def _hang_up(connection: socket.socket) -> None:
    # A reset leaves no TIME_WAIT behind on a port that somebody else is about to bind.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    connection.close()


class Door:
    """Answer probes on a task's port: the agent of the task listens there.

    Args:
        loop: Event loop that serves it.
        listener: Listens on the port; stays open when the door is closed.
        bond: What the agents of the job have in common.
        slot: Local slot.
        visitors: How many are expected.
    """

    def __init__(self, loop: Loop, listener: socket.socket, bond: Bond, slot: str, visitors: int) -> None:
        self._loop = loop
        self._listener = listener
        self._bond = bond
        self._slot = slot
        self._acceptor = Acceptor(listener)
        self._room = most_strangers(visitors)
        self._guests: Dict[socket.socket, bytearray] = {}
        self._open = True
        listener.setblocking(False)
        loop.watch(listener.fileno(), READ, lambda _: self._accept())

    def close(self) -> None:
        """Stop answering."""
        if self._open:
            self._open = False
            self._loop.unwatch(self._listener.fileno())
            for guest in list(self._guests):
                self._drop(guest)
            self._acceptor.close()

    def _accept(self) -> None:
        accepted = self._acceptor.accept()
        if accepted is None:
            return
        guest, _ = accepted
        self._guests[guest] = bytearray()
        if len(self._guests) > self._room:
            self._drop(next(iter(self._guests)))
        self._loop.watch(guest.fileno(), READ, lambda _: self._hear(guest))
        self._hear(guest)

    def _hear(self, guest: socket.socket) -> None:
        try:
            data = guest.recv(LONGEST_GREETING)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        heard = self._guests[guest]
        heard += data
        if not data or len(heard) > LONGEST_GREETING:
            self._drop(guest)
        elif heard.endswith(b"\n"):
            self._answer(guest, bytes(heard))
            heard.clear()

    def _answer(self, guest: socket.socket, line: bytes) -> None:
        bond = self._bond
        try:
            guest.send(port_answer(bond.secret, bond.job, bond.attempt, self._slot, line))
        except Exception:  # noqa: BLE001 - of a stranger's line; nothing that it holds may end this process
            self._drop(guest)

    def _drop(self, guest: socket.socket) -> None:
        del self._guests[guest]
        self._loop.unwatch(guest.fileno())
        _hang_up(guest)


class _Visit:
    """The state of the probe of one port, repeated until it succeeds or has failed for long enough."""

    def __init__(self, member: Member, began: float) -> None:
        self.member = member
        self.began = began
        self.failures = 0
        self.clause = ""  # of the newest failure
        self.nonce = b""
        self.connection: Optional[socket.socket] = None
        self.answer = bytearray()


class Visits:
    """Probe the ports of other tasks, many at once.

    A loaded host may lose or refuse a connection that the next one gets. A visit that fails is therefore repeated:
    for the whole VISITS_DEADLINE_S, or for VISIT_DEADLINE_S if only the network or the address can be wrong. A task
    that was not visited twice in that time gets no verdict at all: then it is this host that is too slow.

    Args:
        loop: Event loop that serves it.
        bond: What the agents of the job have in common.
        slot: Local slot.
        others: The tasks to visit.
        on_done: Called once with why each of them cannot be reached; empty for those that can.
    """

    def __init__(
        self, loop: Loop, bond: Bond, slot: str, others: Sequence[Member], on_done: Callable[[Dict[str, str]], None]
    ) -> None:
        self._loop = loop
        self._bond = bond
        self._slot = slot
        self._on_done = on_done
        self._left: Deque[_Visit] = deque(_Visit(member, 0.0) for member in others)
        self._visits: Dict[str, _Visit] = {}  # those that have a connection now
        self._pausing: Dict[str, _Visit] = {}  # those that failed and will be repeated
        self._found: Dict[str, str] = {}
        self._until = 0.0
        self._done = False

    def begin(self) -> None:
        """Start the probes; without other tasks, finish at once."""
        self._until = time.monotonic() + VISITS_DEADLINE_S
        self._loop.after("visits", VISITS_DEADLINE_S, self._give_up)
        self._go_on()

    def close(self) -> None:
        """End all probes without a result."""
        self._done = True
        self._loop.cancel("visits")
        self._left.clear()
        for slot in list(self._pausing):
            self._loop.cancel(f"visit {slot}")
        self._pausing.clear()
        for visit in list(self._visits.values()):
            self._leave(visit)

    def _go_on(self) -> None:
        while self._left and len(self._visits) < _AT_ONCE:
            self._set_out(self._left.popleft())
        if not (self._left or self._visits or self._pausing or self._done):
            self.close()
            self._on_done(self._found)

    def _set_out(self, visit: _Visit) -> None:
        member = visit.member
        self._visits[member.slot] = visit
        visit.began = visit.began or time.monotonic()
        visit.nonce = os.urandom(NONCE_BYTES)
        visit.answer.clear()
        # Whoever answers too late for one deadline may answer in time for the next.
        self._loop.after(f"visit {member.slot}", VISIT_DEADLINE_S * 2**visit.failures, lambda: self._late(visit))
        try:
            family, _, _, _, where = socket.getaddrinfo(member.address, member.port, type=socket.SOCK_STREAM)[0]
            visit.connection = socket.socket(family, socket.SOCK_STREAM)
            visit.connection.setblocking(False)
            code = visit.connection.connect_ex(where)
        except socket.gaierror:
            self._failed(visit, readiness.UNKNOWN_NAME)
            return
        except OSError as error:
            self._failed(visit, _clause(error.errno or 0))
            return
        if code in (0, errno.EINPROGRESS):
            self._loop.watch(visit.connection.fileno(), WRITE, lambda _: self._arrived(visit))
        else:
            self._failed(visit, _clause(code))

    def _arrived(self, visit: _Visit) -> None:
        connection = visit.connection
        if connection is None:
            return
        code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if not code:
            bond = self._bond
            code = self._sent(connection, port_question(bond.job, bond.attempt, self._slot, visit.nonce))
        if code:
            self._ended(visit, _clause(code))
        else:
            self._loop.watch(connection.fileno(), READ, lambda _: self._hear(visit))

    def _sent(self, connection: socket.socket, line: bytes) -> int:
        try:
            connection.send(line)  # the first bytes of a connection: there is room for them
        except OSError as error:
            return error.errno or 0
        return 0

    def _hear(self, visit: _Visit) -> None:
        if visit.connection is None:
            return
        try:
            data = visit.connection.recv(LONGEST_GREETING)
        except BlockingIOError:
            return
        except OSError as error:  # our agents hang up on those whom they do not know, too
            reset = error.errno == errno.ECONNRESET
            self._ended(visit, readiness.STRANGER if reset else _clause(error.errno or 0))
            return
        visit.answer += data
        if visit.answer.endswith(b"\n") or not data or len(visit.answer) > LONGEST_GREETING:
            self._ended(visit, self._judged(visit))

    def _judged(self, visit: _Visit) -> str:
        bond = self._bond
        try:
            owner = port_owner(bond.secret, bond.job, bond.attempt, self._slot, visit.nonce, bytes(visit.answer))
        except Exception:  # noqa: BLE001 - of a stranger's answer; nothing that it holds may end this process
            return readiness.STRANGER
        return "" if owner == visit.member.slot else f"{owner} {readiness.ANOTHER}"

    def _late(self, visit: _Visit) -> None:
        watched_for_answer = visit.connection is not None and self._stands(visit.connection)
        self._ended(visit, readiness.SILENT if watched_for_answer else readiness.TIMED_OUT)

    def _stands(self, connection: socket.socket) -> bool:
        try:
            connection.getpeername()
        except OSError:
            return False
        return True

    def _ended(self, visit: _Visit, clause: str) -> None:
        if clause:
            self._failed(visit, clause)
        else:
            self._leave(visit)
            self._found[visit.member.slot] = ""
        self._go_on()

    def _failed(self, visit: _Visit, clause: str) -> None:
        """Repeat the probe, or report why it failed if that is certain."""
        slot = visit.member.slot
        self._leave(visit)
        visit.clause = clause
        visit.failures += 1
        pause_s = min(_PAUSE_S[0] * 2 ** (visit.failures - 1), _PAUSE_S[1])
        until = self._until if clause in _BY_LOAD else visit.began + VISIT_DEADLINE_S
        is_proven = clause != readiness.STRANGER and clause.endswith(f" {readiness.ANOTHER}")
        if is_proven or (visit.failures > 1 and time.monotonic() + pause_s >= until):
            self._found[slot] = clause
            return
        self._pausing[slot] = visit
        self._loop.after(f"visit {slot}", pause_s, lambda: self._repeat(visit))

    def _repeat(self, visit: _Visit) -> None:
        del self._pausing[visit.member.slot]
        self._left.append(visit)
        self._go_on()

    def _leave(self, visit: _Visit) -> None:
        slot = visit.member.slot
        self._visits.pop(slot, None)
        self._loop.cancel(f"visit {slot}")
        if visit.connection is not None:
            self._loop.unwatch(visit.connection.fileno())
            _hang_up(visit.connection)
            visit.connection = None

    def _give_up(self) -> None:
        for visit in [*self._visits.values(), *self._pausing.values(), *self._left]:
            if visit.failures > 1:
                self._found[visit.member.slot] = visit.clause
        self.close()
        self._on_done(self._found)
