"""Authenticated connections between the agents of a job, over the private network, restored after a short loss.

A link is the relation of two slots, whichever TCP connection carries it: it is down only if nothing was received for
the link timeout. Users of a link send all of their state again whenever it comes up.
"""

from __future__ import annotations

import socket
import time
from typing import Callable, Dict, Mapping, NamedTuple, Optional, Sequence

from train.agent.gang.patience import Patience
from train.agent.gang.scheduling import BEAT_FRACTION
from train.agent.host.loop import Loop
from train.agent.host.streams import GREETING_DEADLINE_S, MessageStream, StreamListener, start_connection
from train.agent.protocol.records import Member
from train.agent.protocol.session import Credentials, LinkError, Message

_RETRY_S = (0.05, 1.0)
_BEAT: Message = {"beat": 1}
_PROBE_PREFIX = "probe "
_BEAT_SLACK = 0.25  # of the time between two heartbeats


def _describe_break(error: Exception) -> str:
    code = isinstance(error, OSError) and error.strerror
    return f"its connection broke ({code})" if code else str(error)


class ConnectionEvents(NamedTuple):
    """Callbacks of the connections."""

    up: Callable[[str], None]  # with a slot, whenever a connection to it is established, also again
    down: Callable[[str, str], None]  # with a slot and a reason: nothing was received for the link timeout
    message: Callable[[str, Message], None]  # with a slot and its message
    idle: Callable[[], None]  # the last connection ended


class PeerConnections:
    """Connections of one agent: incoming ones, and the one to its leader.

    Args:
        loop: Event loop that serves it.
        listener: Where the others connect.
        credentials: Authenticate the agents of the job.
        link_timeout_s: Time without a message after which a slot is lost.
        others: The other slots.
        events: What to call when something happens.
    """

    def __init__(
        self,
        loop: Loop,
        listener: socket.socket,
        credentials: Credentials,
        link_timeout_s: float,
        others: Mapping[str, Member],
        *,
        events: ConnectionEvents,
    ) -> None:
        self._loop = loop
        self._credentials = credentials
        self._link_timeout_s = link_timeout_s
        self._others = dict(others)
        self._on_up, self._on_down, self._on_message, self._on_idle = events
        self._listener = StreamListener(loop, listener, credentials.chief_greeting, len(others), self._accept_slot)
        self._incoming: Dict[str, MessageStream] = {}
        self._leader = ""  # the slot that `_outgoing` leads to
        self._outgoing: Optional[MessageStream] = None
        self._pause_s = _RETRY_S[0]
        self._probes: Dict[str, MessageStream] = {}
        self._beat_s = BEAT_FRACTION * link_timeout_s
        # So early that even what is noticed at the next beat is noticed in time.
        self._patience = Patience(link_timeout_s - self._beat_s, self._beat_s)
        self._beaten_at = time.monotonic()
        self._send_heartbeats()

    @property
    def connected(self) -> bool:
        """Return True if any other agent is connected."""
        return bool(self._incoming) or self._stream_to(self._leader) is not None

    def update_addresses(self, members: Sequence[Member]) -> None:
        """Update the addresses of the slots; another host may have replaced a lost one."""
        for member in members:
            if member.slot in self._others:
                self._others[member.slot] = member

    def send(self, slot: str, text: bytes) -> None:
        """Send an encoded message to a slot; it is dropped if the slot is not connected."""
        stream = self._stream_to(slot)
        if stream is not None:
            stream.send_text(text)

    def dial(self, slot: str) -> None:
        """Connect to a slot and keep trying; the previous connection of this agent is closed."""
        previous, self._leader = self._leader, slot
        if self._outgoing is not None:
            self._outgoing.close()
        if previous not in ("", slot) and previous not in self._incoming:
            self._loop.cancel(f"away {previous}")
            self._loop.after(f"part {previous}", 0.0, lambda: self._on_down(previous, ""))
        self._pause_s = _RETRY_S[0]
        self._connect()

    def send_once(self, slot: str, message: Message) -> None:
        """Send one message to a slot that is not connected, if it can be reached."""
        previous = self._probes.pop(slot, None)
        if previous is not None:
            previous.close()

        def send() -> None:
            stream.send(message)
            stream.end_after(GREETING_DEADLINE_S)

        try:
            stream = self._open(slot, _PROBE_PREFIX, on_up=send, on_message=lambda _: None, on_end=lambda _: None)
        except OSError:
            return
        self._probes[slot] = stream

    def close(self) -> None:
        """Close all connections without calling the callbacks."""
        self._loop.cancel("links")
        self._loop.cancel("dial")
        for slot in self._others:
            for name in ("away", "part"):
                self._loop.cancel(f"{name} {slot}")
        for stream in [*self._probes.values(), *self._incoming.values(), self._outgoing]:
            if stream is not None:
                stream.close()
        self._incoming.clear()
        self._listener.close()

    def _stream_to(self, slot: str) -> Optional[MessageStream]:
        outgoing = self._outgoing if slot == self._leader else None
        if outgoing is not None and outgoing.is_open and outgoing.is_authenticated:
            return outgoing
        return self._incoming.get(slot)

    def _pass(self, slot: str, message: Message) -> None:
        if message != _BEAT:
            self._on_message(slot, message)
            self._keep_beating()

    def _await_reconnection(self, slot: str, error: Exception, received_at: float) -> None:
        """Wait for the rest of the link timeout before the slot counts as lost."""
        left_s = received_at + self._link_timeout_s - time.monotonic()
        reason = _describe_break(error)
        self._loop.after(f"away {slot}", max(0.0, left_s), lambda: self._report_lost(slot, reason))

    def _report_lost(self, slot: str, reason: str) -> None:
        if self._stream_to(slot) is None:
            self._on_down(slot, reason)

    def _report_silent(self, slot: str) -> None:
        self._report_lost(slot, f"its agent was silent for {self._link_timeout_s:g} s")

    # --- the connection to the leader ---------------------------------------------------------------------------

    def _open(
        self,
        slot: str,
        prefix: str,
        *,
        on_up: Callable[[], None],
        on_message: Callable[[Message], None],
        on_end: Callable[[Exception], None],
    ) -> MessageStream:
        connection = start_connection(self._others[slot].address, self._others[slot].link_port)
        greeting = self._credentials.peer_greeting(prefix)
        return MessageStream(self._loop, connection, greeting, on_up=on_up, on_message=on_message, on_end=on_end)

    def _connect(self) -> None:
        slot = self._leader
        self._loop.cancel("dial")
        try:
            self._outgoing = self._open(
                slot,
                "",
                on_up=lambda: self._established(slot),
                on_message=lambda message: self._pass(slot, message),
                on_end=self._outgoing_ended,
            )
        except OSError:
            self._outgoing = None
            self._retry()

    def _established(self, slot: str) -> None:
        self._pause_s = _RETRY_S[0]
        self._loop.cancel(f"away {slot}")
        self._on_up(slot)

    def _outgoing_ended(self, error: Exception) -> None:
        if self._outgoing is not None and self._outgoing.is_authenticated:
            self._await_reconnection(self._leader, error, self._outgoing.received_at)
        self._retry()

    def _retry(self) -> None:
        self._loop.after("dial", self._pause_s, self._connect)
        self._pause_s = min(self._pause_s * 2, _RETRY_S[1])

    # --- connections of the others ------------------------------------------------------------------------------

    def _accept_slot(self, stream: MessageStream) -> None:
        is_probe = stream.peer.startswith(_PROBE_PREFIX)
        slot = stream.peer[len(_PROBE_PREFIX) :] if is_probe else stream.peer
        if slot not in self._others:
            raise LinkError(f"{slot} is not expected")
        stream.on_message = lambda message: self._pass(slot, message)
        if is_probe:  # counts as unauthenticated, and ends after a while
            stream.end_after(GREETING_DEADLINE_S)
            return
        self._listener.release(stream)
        stream.on_end = lambda error: self._incoming_ended(slot, error)
        previous = self._incoming.pop(slot, None)
        if previous is not None:
            previous.close()
        self._incoming[slot] = stream
        self._loop.cancel(f"away {slot}")
        self._on_up(slot)

    def _incoming_ended(self, slot: str, error: Exception) -> None:
        self._await_reconnection(slot, error, self._incoming.pop(slot).received_at)
        if not self.connected:
            self._on_idle()

    # --- heartbeats ---------------------------------------------------------------------------------------------

    def _send_heartbeats(self) -> None:
        """Send heartbeats to the connected agents, and report those that are lost."""
        now = time.monotonic()
        self._patience.tick(now)
        limit = self._patience.limit(now)
        self._beaten_at = now
        for slot, stream in list(self._incoming.items()):
            if stream.received_at < limit:
                stream.close()
                self._incoming.pop(slot, None)
                self._report_silent(slot)
            else:
                stream.send(_BEAT)
        self._beat_to_leader(limit)
        # An agent that has just received the heartbeat of its leader sends its own, without waking up for it later.
        slack_s = _BEAT_SLACK * self._beat_s
        self._loop.after("links", self._beat_s - slack_s, self._send_heartbeats, slack_s=slack_s)

    def _beat_to_leader(self, limit: float) -> None:
        outgoing = self._outgoing
        if outgoing is not None and outgoing.is_open and outgoing.is_authenticated:
            if outgoing.received_at < limit:
                self.dial(self._leader)
                self._report_silent(self._leader)
            else:
                outgoing.send(_BEAT)

    def _keep_beating(self) -> None:
        """Send heartbeats that are late because many messages arrived at once: they are served first."""
        now = time.monotonic()
        if now >= self._beaten_at + 2 * self._beat_s:
            self._beaten_at = now
            for stream in list(self._incoming.values()):
                stream.send(_BEAT)
