"""Check that the tasks can reach each other: every agent probes the ports that TensorFlow will use.

A probe connects to the very address of a port, and requires an answer that only an agent of the job can give: an open
port may belong to another program.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from collections import deque
from typing import Callable, Deque, Dict, Optional, Sequence

from train.agent.gang import readiness
from train.agent.host.loop import Loop
from train.agent.host.streams import LineStream, StreamListener, reset_on_close, start_connection
from train.agent.protocol.records import Member
from train.agent.protocol.session import LONGEST_GREETING, Credentials, PeerGreeting

PORT_DEADLINE_S = 5.0  # for the first try of one port; doubled for each further one
PROBES_DEADLINE_S = 20.0  # for all tries of all ports
_PAUSE_S = (0.1, 1.0)  # before the second try, doubled up to the longest
PROBES_AT_ONCE = 128
_ERRORS = {
    errno.ETIMEDOUT: readiness.TIMED_OUT,
    errno.ECONNREFUSED: readiness.REFUSED,
    errno.EHOSTUNREACH: "no route to host",
    errno.ENETUNREACH: "network is unreachable",
    errno.ECONNRESET: "connection reset",
}

# Load on the other host can cause these; anything else is what a kernel, a firewall, or a name server answers.
_TRANSIENT = (readiness.TIMED_OUT, readiness.SILENT, readiness.STRANGER, "connection reset")


def _describe_error(error: Exception, *, is_connected: bool) -> str:
    code = error.errno if isinstance(error, OSError) else None
    if isinstance(error, socket.gaierror):
        return readiness.UNKNOWN_NAME
    if isinstance(error, TimeoutError) and code is None:
        return readiness.SILENT if is_connected else readiness.TIMED_OUT
    if code is None or (is_connected and code == errno.ECONNRESET):  # agents reset connections of unknown peers, too
        return readiness.STRANGER
    return _ERRORS.get(code, os.strerror(code).lower())


def _check_answer(greeting: PeerGreeting, line: bytes, slot: str) -> str:
    """Return what is wrong with an answer; empty if the agent of `slot` sent it."""
    try:
        greeting.take(line)
    except Exception:  # noqa: BLE001 - of a stranger's answer; nothing that it holds may end this process
        return readiness.STRANGER
    return "" if greeting.slot == slot else f"{greeting.slot} {readiness.ANOTHER}"


def answer_probes(loop: Loop, listener: socket.socket, credentials: Credentials, expected: int) -> StreamListener:
    """Answer probes on a task's port, until the returned listener is closed: the agent of the task listens there.

    Args:
        loop: Event loop that serves it.
        listener: Listens on the port; stays open.
        credentials: Authenticate the agents of the job.
        expected: Number of agents that send probes.
    """
    listener.setblocking(False)
    reset_on_close(listener)
    return StreamListener(
        loop, listener, credentials.chief_greeting, expected, lambda _: None, deadline_s=PROBES_DEADLINE_S
    )


class _PortProbe:
    """The state of the probe of one port, repeated until it succeeds or has failed for long enough."""

    def __init__(self, member: Member, began_at: float) -> None:
        self.member = member
        self.began_at = began_at
        self.failures = 0
        self.error = ""  # of the newest failure
        self.stream: Optional[LineStream] = None


class PortProbes:
    """Probe the ports of other tasks, many at once.

    A loaded host may lose or refuse a connection that the next one gets. A failed probe is therefore repeated:
    for up to PROBES_DEADLINE_S, or up to PORT_DEADLINE_S if only the network or the address can be wrong. A task
    that was not probed twice in that time gets no verdict at all: then it is this host that is too slow.

    Args:
        loop: Event loop that serves it.
        credentials: Authenticate the agents of the job.
        others: The tasks to probe.
        on_done: Called once with why each of them cannot be reached; empty for those that can.
    """

    def __init__(
        self,
        loop: Loop,
        credentials: Credentials,
        others: Sequence[Member],
        on_done: Callable[[Dict[str, str]], None],
    ) -> None:
        self._loop = loop
        self._credentials = credentials
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
        while self._waiting and len(self._active) < PROBES_AT_ONCE:
            self._start_probe(self._waiting.popleft())
        if not (self._waiting or self._active or self._pausing or self._done):
            self.close()
            self._on_done(self._results)

    def _start_probe(self, probe: _PortProbe) -> None:
        member = probe.member
        self._active[member.slot] = probe
        probe.began_at = probe.began_at or time.monotonic()
        greeting = self._credentials.peer_greeting()
        try:
            connection = start_connection(member.address, member.port)
        except OSError as error:
            self._retry_or_fail(probe, _describe_error(error, is_connected=False))
            return
        reset_on_close(connection)
        stream = LineStream(
            self._loop,
            connection,
            lambda line: self._finish(probe, _check_answer(greeting, line, member.slot)),
            lambda error: self._finish(probe, _describe_error(error, is_connected=stream.is_connected)),
            LONGEST_GREETING,
            greeting.first(),
        )
        probe.stream = stream
        # A host that is too slow for one deadline may meet the next, longer one.
        stream.end_after(PORT_DEADLINE_S * 2**probe.failures)

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
        if probe.stream is not None:
            probe.stream.close()

    def _give_up(self) -> None:
        for probe in [*self._active.values(), *self._pausing.values(), *self._waiting]:
            if probe.failures > 1:
                self._results[probe.member.slot] = probe.error
        self.close()
        self._on_done(self._results)
