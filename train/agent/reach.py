"""Whether the tasks will reach each other: every agent visits the ports that TensorFlow is going to use.

The way to a port is proven with its very address, by a connection, and by an answer that only an agent of the job can
give: a port may be open and lead to somebody else.
"""

import errno
import os
import socket
import struct
from collections import deque
from typing import Callable, Deque, Dict, Optional, Sequence

from train.agent import gate
from train.agent.link import (
    LONGEST_GREETING,
    NONCE_BYTES,
    LinkError,
    port_answer,
    port_owner,
    port_question,
)
from train.agent.links import Bond
from train.agent.loop import READ, WRITE, Loop
from train.agent.records import Member
from train.agent.strangers import Acceptor, most_strangers

VISIT_DEADLINE_S = 5.0  # for one port
VISITS_DEADLINE_S = 20.0  # for all
_AT_ONCE = 128
_RESET = struct.pack("ii", 1, 0)
_CLAUSES = {
    errno.ETIMEDOUT: gate.TIMED_OUT,
    errno.ECONNREFUSED: gate.REFUSED,
    errno.EHOSTUNREACH: "no route to host",
    errno.ENETUNREACH: "network is unreachable",
    errno.ECONNRESET: "connection reset",
}


def _clause(code: int) -> str:
    return _CLAUSES.get(code, os.strerror(code).lower())


def _hang_up(connection: socket.socket) -> None:
    # A reset leaves no TIME_WAIT behind on a port that somebody else is about to bind.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    connection.close()


class Door:
    """Answers on a task's port, until it is closed, that the agent of the task listens there.

    Args:
        loop: In which it is served.
        listener: Listens on the port; stays open when the door is closed.
        bond: What the agents of the job have in common.
        task: Our task.
        visitors: How many are expected.
    """

    def __init__(self, loop: Loop, listener: socket.socket, bond: Bond, task: str, visitors: int) -> None:
        self._loop = loop
        self._listener = listener
        self._bond = bond
        self._task = task
        self._acceptor = Acceptor(listener)
        self._room = most_strangers(visitors)
        self._guests: Dict[socket.socket, bytearray] = {}
        self._open = True
        listener.setblocking(False)
        loop.watch(listener.fileno(), READ, lambda _: self._accept())

    def close(self) -> None:
        """Answer nobody any more."""
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
            guest.send(port_answer(bond.secret, bond.job, bond.attempt, self._task, line))
        except Exception:  # noqa: BLE001 - of a stranger's line; nothing that it holds may end this process
            self._drop(guest)

    def _drop(self, guest: socket.socket) -> None:
        del self._guests[guest]
        self._loop.unwatch(guest.fileno())
        _hang_up(guest)


class _Visit:
    """One port that is being visited."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.nonce = os.urandom(NONCE_BYTES)
        self.connection: Optional[socket.socket] = None
        self.answer = bytearray()


class Visits:
    """Visits the ports of other tasks, as many at once as is sensible.

    Args:
        loop: In which it is served.
        bond: What the agents of the job have in common.
        task: Our task.
        others: The tasks to visit.
        on_done: Called once with why each of them cannot be reached; empty for those that can.
    """

    def __init__(
        self, loop: Loop, bond: Bond, task: str, others: Sequence[Member], on_done: Callable[[Dict[str, str]], None]
    ) -> None:
        self._loop = loop
        self._bond = bond
        self._task = task
        self._on_done = on_done
        self._left: Deque[Member] = deque(others)
        self._visits: Dict[str, _Visit] = {}
        self._found: Dict[str, str] = {}
        self._count = len(self._left)

    def begin(self) -> None:
        """Set out; where there is nobody to visit, that is all."""
        self._loop.after("visits", VISITS_DEADLINE_S, self._give_up)
        self._go_on()

    def close(self) -> None:
        """Break off without a word."""
        self._loop.cancel("visits")
        self._left.clear()
        for task in list(self._visits):
            self._leave(task)

    def _go_on(self) -> None:
        while self._left and len(self._visits) < _AT_ONCE:
            self._set_out(self._left.popleft())
        if len(self._found) == self._count:
            self._loop.cancel("visits")
            self._count = -1
            self._on_done(self._found)

    def _set_out(self, member: Member) -> None:
        visit = self._visits[member.task] = _Visit(member)
        self._loop.after(f"visit {member.task}", VISIT_DEADLINE_S, lambda: self._late(visit))
        try:
            family, _, _, _, where = socket.getaddrinfo(member.address, member.port, type=socket.SOCK_STREAM)[0]
            visit.connection = socket.socket(family, socket.SOCK_STREAM)
            visit.connection.setblocking(False)
            code = visit.connection.connect_ex(where)
        except socket.gaierror:
            self._end(visit, gate.UNKNOWN_NAME)
            return
        except OSError as error:
            self._end(visit, _clause(error.errno or 0))
            return
        if code in (0, errno.EINPROGRESS):
            self._loop.watch(visit.connection.fileno(), WRITE, lambda _: self._arrived(visit))
        else:
            self._end(visit, _clause(code))

    def _arrived(self, visit: _Visit) -> None:
        connection = visit.connection
        if connection is None:
            return
        code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if not code:
            bond = self._bond
            code = self._sent(connection, port_question(bond.job, bond.attempt, self._task, visit.nonce))
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
            self._ended(visit, gate.STRANGER if reset else _clause(error.errno or 0))
            return
        visit.answer += data
        if visit.answer.endswith(b"\n") or not data or len(visit.answer) > LONGEST_GREETING:
            self._ended(visit, self._judged(visit))

    def _judged(self, visit: _Visit) -> str:
        bond = self._bond
        try:
            owner = port_owner(bond.secret, bond.job, bond.attempt, self._task, visit.nonce, bytes(visit.answer))
        except LinkError:
            return gate.STRANGER
        return "" if owner == visit.member.task else f"{owner} {gate.ANOTHER}"

    def _late(self, visit: _Visit) -> None:
        watched_for_answer = visit.connection is not None and self._stands(visit.connection)
        self._ended(visit, gate.SILENT if watched_for_answer else gate.TIMED_OUT)

    def _stands(self, connection: socket.socket) -> bool:
        try:
            connection.getpeername()
        except OSError:
            return False
        return True

    def _ended(self, visit: _Visit, clause: str) -> None:
        self._end(visit, clause)
        self._go_on()

    def _end(self, visit: _Visit, clause: str) -> None:
        self._leave(visit.member.task)
        self._found[visit.member.task] = clause

    def _leave(self, task: str) -> None:
        visit = self._visits.pop(task)
        self._loop.cancel(f"visit {task}")
        if visit.connection is not None:
            self._loop.unwatch(visit.connection.fileno())
            _hang_up(visit.connection)
            visit.connection = None

    def _give_up(self) -> None:
        for visit in list(self._visits.values()):
            self._end(visit, gate.TIMED_OUT)
        while self._left:
            self._found[self._left.popleft().task] = gate.TIMED_OUT
        self._go_on()
