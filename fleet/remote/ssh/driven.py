"""Transports of paramiko that one thread drives for all connections; depends on what paramiko does not document.

A stock transport has a thread of its own, which waits for each packet twice, and which the thread of the caller
wakes and awaits several times during the login. Here, the thread of a loop receives the packets of all connections,
and paramiko's own code handles them: the key exchange, the login, and the channels. The internals are used only with
the versions of paramiko for which `fleet.remote.ssh.internals.is_proven` returns True.
"""

from __future__ import annotations

import contextlib
import re
import struct
import threading
import time
from collections.abc import Callable
from socket import socket
from typing import Any, cast

import paramiko
from paramiko.auth_handler import AuthHandler
from paramiko.common import (
    MSG_CHANNEL_DATA,
    MSG_DEBUG,
    MSG_DISCONNECT,
    MSG_IGNORE,
    MSG_KEXINIT,
    MSG_UNIMPLEMENTED,
    cMSG_CHANNEL_OPEN,
    cMSG_CHANNEL_REQUEST,
    cMSG_UNIMPLEMENTED,
)
from paramiko.ssh_exception import MessageOrderError

from fleet.remote.dialing import VERSION, DialedSocket
from fleet.remote.ssh.loop import READ, WRITE, Loop, Timer
from fleet.remote.ssh.packets import Packets

_KEX_MESSAGES = range(30, 42)
_FIRST_HELD = 50  # during a key exchange, only messages with lower numbers may be sent (RFC 4253, section 7.1)
_FIRST_OF_CONNECTION = 80  # RFC 4250, section 4.1.2
_HELD_MAX = 10_000
_EXTENSION_MIN = 8  # bytes of an extension in a message: the lengths of its name and of its value
_PIPELINES = re.compile(r"SSH-2\.0-OpenSSH_\d")  # servers that EarlyChannel describes
_DATA = struct.Struct(">II")

# The type stubs of paramiko do not describe its internals.
_Transport: Any = paramiko.Transport
_AuthHandler: Any = AuthHandler
_Channel: Any = paramiko.Channel


class _PipelinedAuth(_AuthHandler):  # type: ignore[misc]
    """Sends the request for the service and that for the login together: one round trip less."""

    transport: DrivenTransport

    def auth_publickey(self, username: str, key: paramiko.PKey, event: threading.Event) -> None:
        """Request the login without the lock of the transport: the loop takes it, and an SSH agent may sign late."""
        self.auth_event, self.auth_method = event, "publickey"
        self.username, self.private_key = username, key
        self._request_auth()

    def _request_auth(self) -> None:
        super()._request_auth()
        accepted = paramiko.Message()
        accepted.add_string("ssh-userauth")
        accepted.rewind()
        super()._parse_service_accept(accepted)

    def _parse_service_accept(self, _message: paramiko.Message) -> None:
        """Do nothing: the request for the login was sent already."""

    def _parse_userauth_failure(self, message: paramiko.Message) -> None:
        if self.transport.early is not None:
            self.transport.early.is_sent = False  # the host has ignored what followed the rejected login
        super()._parse_userauth_failure(message)


def opening(channel: Any, kind: str, *fields: str | int) -> paramiko.Message:
    """Return the message that opens a channel of a kind with these further fields (RFC 4254, section 5.1)."""
    message = paramiko.Message()
    message.add_byte(cMSG_CHANNEL_OPEN)
    message.add_string(kind)
    for field in (channel.chanid, channel.in_window_size, channel.in_max_packet_size, *fields):
        if isinstance(field, int):
            message.add_int(field)
        else:
            message.add_string(field)
    return message


def opening_of_socket(channel: Any, path: str) -> paramiko.Message:
    """Return the message that opens a connection to a Unix socket of the host.

    Source: https://github.com/openssh/openssh-portable/blob/master/PROTOCOL, section 2.4.
    """
    return opening(channel, "direct-streamlocal@openssh.com", path, "", 0)  # the last two are reserved


class EarlyChannel:
    """A session that is requested together with the login, and its command; or a connection to a socket of the host.

    OpenSSH handles requests that follow a login as soon as it has accepted it: the process that serves the session
    takes over the input that the process of the login has not read (ssh_packet_get_state in packet.c). After a login
    that it rejects, it ignores them. Its first session has the number 0, so the command can be sent at the same time.

    Args:
        channel: The channel.
        command: Command line for the shell of the host.
        path: Absolute path of the socket; empty: the channel is a session for the command.
        on_send: Called when the command is about to be sent: from now on, it may run.
    """

    NUMBER = 0

    def __init__(self, channel: Any, command: str, path: str, on_send: Callable[[], object]) -> None:
        self.channel = channel
        self.command = command
        self.path = path
        self.on_send = on_send
        self.is_answered = threading.Event()
        self.is_sent = False
        self.is_running = False

    def request(self) -> paramiko.Message:
        """Return the message that opens the channel."""
        return opening_of_socket(self.channel, self.path) if self.path else opening(self.channel, "session")

    def execution(self, number: int) -> paramiko.Message:
        """Return the message that runs the command in the session which has this number at the host."""
        message = paramiko.Message()
        message.add_byte(cMSG_CHANNEL_REQUEST)
        message.add_int(number)
        message.add_string("exec")
        message.add_boolean(True)
        message.add_string(self.command)
        return message


class DrivenTransport(_Transport):  # type: ignore[misc]
    """A transport without a thread of its own.

    Args:
        sock: A connected socket.
        loop: Calls it when the socket is ready.
        options: Further arguments of paramiko.Transport.
    """

    active: bool
    packetizer: Packets
    _expected_packet: tuple[int, ...]

    def __init__(self, sock: socket, loop: Loop, **options: Any) -> None:
        super().__init__(sock, packetizer_class=Packets, **options)
        sock.setblocking(False)
        self.local_version = VERSION
        self._loop = loop
        self._held: list[paramiko.Message] = []  # until the keys are exchanged
        self._is_over = threading.Lock()  # never released
        self._scheduling = threading.Lock()
        self._keepalive: Timer | None = None
        self.early: EarlyChannel | None = None
        self.packetizer.await_events = lambda events: loop.await_events(sock, events)
        self.packetizer.on_rekey = lambda: loop.call_soon(self._on_used_up)

    # --- calls of other threads -------------------------------------------------------------------------------------

    def start_client(self, event: threading.Event | None = None, timeout: float | None = None) -> None:
        """Exchange the keys: send the version and the first message without waiting for those of the host.

        Raises:
            SSHException: the exchange failed.
        """
        self.active = True
        self.completion_event = done = event or threading.Event()
        with self.packetizer.corked():
            if not (isinstance(self.sock, DialedSocket) and self.sock.is_greeted):
                self.packetizer.write_all(f"{self.local_version}\r\n".encode())
            self._send_kex_init()
            self._expect_packet(MSG_KEXINIT)
        self._loop.register(self.sock, self._on_ready)
        if event is None:
            done.wait(timeout)
            if not self.active:
                raise self.get_exception() or paramiko.SSHException("Negotiation failed.")

    def auth_publickey(self, username: str, key: paramiko.PKey, event: threading.Event | None = None) -> list[str]:
        """Log in with a key, without waiting until the host accepts the request for this service.

        Raises:
            AuthenticationException: the host rejects the key.
            SSHException: the connection broke.
        """
        if not self.active or not self.initial_kex_done:
            raise paramiko.SSHException("No existing session")
        done = event or threading.Event()
        self.auth_handler = handler = _PipelinedAuth(self)
        with self.packetizer.corked():
            handler.auth_publickey(username, key, done)
            if self.early is not None and _PIPELINES.match(self.remote_version):
                self.early.is_sent = True
                self.early.on_send()
                self._send_message(self.early.request())
                if not self.early.path:
                    self._send_message(self.early.execution(EarlyChannel.NUMBER))
        if event is None:
            done.wait(self.auth_timeout)
            if not handler.is_authenticated():  # otherwise, the connection may have ended after the login
                return list(handler.wait_for_response(done))
        return []

    def prepare(self, command: str, path: str, window: int | None, on_send: Callable[[], object]) -> paramiko.Channel:
        """Return a channel that is opened as soon as the login succeeds; called before `start_client`.

        Args:
            command: Command line for the shell of the host, which is run in a session.
            path: Absolute path of a socket of the host to which the channel leads instead; empty: none.
            window: Bytes that the host may send before they are read; None: the default.
            on_send: Called when the command is about to be sent.
        """
        with self.lock:
            number = self._next_channel()
            channel = _Channel(number)
            self.early = EarlyChannel(channel, command, path, on_send)
            self._channels.put(number, channel)
            self.channel_events[number] = self.early.is_answered
            self.channels_seen[number] = True
        channel._set_transport(self)
        channel._set_window(self._sanitize_window_size(window), self._sanitize_packet_size(None))
        channel._event_pending()
        return cast("paramiko.Channel", channel)

    def await_opened(self, session: paramiko.Channel) -> None:
        """Wait until the prepared channel is open.

        Raises:
            SSHException: the host refuses it, or the connection broke.
            EOFError: the connection broke.
        """
        early = self.early
        if early is not None and early.channel is session:
            early.is_answered.wait()
            if not session.active:
                raise self.get_exception() or paramiko.SSHException("Unable to open channel.")

    def set_keepalive(self, interval: float) -> None:
        """Send a message to the host whenever nothing else was sent for `interval` seconds; 0: do not."""
        with self._scheduling:
            if self._keepalive is not None:
                self._keepalive.cancel()
                self._keepalive = None
            if interval and self.active:
                at = max(self.packetizer.written_at + interval, time.monotonic() + interval / 10)
                self._keepalive = self._loop.call_at(at, lambda: self._keep_alive(interval))

    def close(self) -> None:
        """Close the connection; calls that wait for it raise an error."""
        self._end(None)

    def _send_user_message(self, data: paramiko.Message) -> None:
        """Send a message after the exchange of keys; other threads wait until the socket has taken it."""
        if self._loop.is_current():
            self._send_message(data)
            return
        super()._send_user_message(data)
        self.packetizer.wait_until_sent()

    def _send_message(self, data: paramiko.Message) -> None:
        if self._must_hold(data):
            self._held.append(data)
            if len(self._held) > _HELD_MAX:
                raise paramiko.SSHException("the host sends requests instead of new keys")
        else:
            self.packetizer.send_message(data)

    def _must_hold(self, data: paramiko.Message) -> bool:
        """Return whether an answer of the loop must not be sent before the keys are exchanged."""
        is_renewed = self.initial_kex_done and not self.clear_to_send.is_set()
        return is_renewed and data.asbytes()[0] >= _FIRST_HELD and self._loop.is_current()

    # --- calls of the loop ------------------------------------------------------------------------------------------

    def _on_ready(self, events: int) -> None:
        try:
            if events & WRITE:
                self.packetizer.flush()
            if events & READ:
                self._receive()
        except (paramiko.SSHException, EOFError, OSError) as error:
            self._end(error)
        except Exception as error:  # noqa: BLE001 - raised by paramiko while it reads damaged messages
            self._end(paramiko.SSHException(f"the host sent an invalid message: {error!r}"))

    def _on_used_up(self) -> None:
        try:
            self._renew_keys()
        except (paramiko.SSHException, EOFError) as error:  # it is being closed
            self._end(error)

    def _receive(self) -> None:
        if not self.remote_version:
            if not self._receive_version():
                return
        elif not self.packetizer.receive():
            return
        with self.packetizer.corked():
            while self.active and (message := self.packetizer.next_payload()) is not None:
                self._dispatch(*message)
        self._renew_keys()

    def _receive_version(self) -> bool:
        """Return whether the host has sent its version."""
        try:
            self.packetizer.receive()
        except (EOFError, OSError) as error:
            raise paramiko.SSHException(f"Error reading SSH protocol banner{error}") from error
        if not self.packetizer.has_version():
            return False
        self._check_banner()
        return True

    def _dispatch(self, number: int, payload: memoryview) -> None:
        """Handle a message, as paramiko.Transport.run does."""
        kind = payload[0]
        if kind >= _FIRST_OF_CONNECTION and not self.authenticated:
            raise paramiko.SSHException(f"message {kind} came before the login")
        if kind == MSG_CHANNEL_DATA and not self._expected_packet:
            self._take(payload)
            return
        message = paramiko.Message(bytes(payload[1:]))
        message.seqno = number
        if kind == MSG_DISCONNECT:
            self._end(None)
        elif kind in (MSG_IGNORE, MSG_DEBUG):
            self._enforce_strict_kex(kind)
        elif self._expected_packet and kind not in self._expected_packet:
            error = MessageOrderError if self.agreed_on_strict_kex else paramiko.SSHException
            raise error(f"Expecting packet from {self._expected_packet!r}, got {kind}")
        elif self._expected_packet and kind in _KEX_MESSAGES:
            self._expected_packet = ()
            self.kex_engine.parse_next(kind, message)
        else:
            self._expected_packet = ()
            self._handle(kind, message)

    def _handle(self, kind: int, message: paramiko.Message) -> None:
        if kind in self._handler_table:
            self._handler_table[kind](message)
        elif kind in self._channel_handler_table:
            channel = self._channel(message.get_int())
            if channel is not None:
                self._channel_handler_table[kind](channel, message)
        elif self.auth_handler is not None and kind in (handlers := self.auth_handler._handler_table):
            handlers[kind](message)
        elif kind != MSG_UNIMPLEMENTED:
            answer = paramiko.Message()
            answer.add_byte(cMSG_UNIMPLEMENTED)
            answer.add_int(message.seqno)
            self._send_message(answer)

    def _take(self, payload: memoryview) -> None:
        """Handle data of a channel; paramiko would copy it three times."""
        number, size = _DATA.unpack_from(payload, 1)
        channel = self._channel(number)
        if channel is not None:
            channel.in_buffer.feed(bytes(payload[9 : 9 + size]))

    def _channel(self, number: int) -> paramiko.Channel | None:
        """Return a channel; None if it was closed.

        Raises:
            EOFError: it never existed.
        """
        channel: paramiko.Channel | None = self._channels.get(number)
        if channel is None and number not in self.channels_seen:
            raise EOFError
        return channel

    def _auth_trigger(self) -> None:
        super()._auth_trigger()
        early = self.early
        if early is not None and not early.is_sent:
            early.on_send()
            self._send_message(early.request())

    def _parse_channel_open_success(self, message: paramiko.Message) -> None:
        super()._parse_channel_open_success(message)
        early = self.early
        if early is None or early.path or not early.channel.active or early.is_running:
            return
        early.is_running = True
        if not early.is_sent:
            self._send_message(early.execution(early.channel.remote_chanid))
        elif early.channel.remote_chanid != EarlyChannel.NUMBER:
            raise paramiko.SSHException("the host has numbered its first session otherwise")

    def _parse_ext_info(self, message: paramiko.Message) -> None:
        """Read the extensions of the host (RFC 8308); paramiko would read as many as it announces, up to 2**32."""
        content = message.get_remainder()
        if _EXTENSION_MIN * int.from_bytes(content[:4], "big") > len(content):
            raise paramiko.SSHException("the host announces more extensions than it sends")
        super()._parse_ext_info(message)

    def _parse_newkeys(self, message: paramiko.Message) -> None:
        super()._parse_newkeys(message)
        held, self._held = self._held, []
        for each in held:
            self._send_message(each)

    def _renew_keys(self) -> None:
        """Exchange the keys again if they were used for much data."""
        if self.active and self.packetizer.need_rekey() and not self.in_kex:
            self._send_kex_init()

    def _keep_alive(self, interval: float) -> None:
        packets = self.packetizer
        if time.monotonic() >= packets.written_at + interval and not packets.unsent and not self.in_kex:
            with contextlib.suppress(EOFError, paramiko.SSHException):  # the loop reports it
                self.global_request("keepalive@lag.net", wait=False)
        self.set_keepalive(interval)

    def _end(self, error: Exception | None) -> None:
        """Close the connection once, and wake all threads that wait for it."""
        self._loop.unregister(self.sock)  # by each thread that may close the socket, whose number can then be reused
        if not self._is_over.acquire(blocking=False):
            return
        if error is not None:
            self.saved_exception = error
        self.active = False
        self.set_keepalive(0)
        self.packetizer.close()
        for channel in list(self._channels.values()):
            channel._unlink()
        for event in [self.completion_event, *list(self.channel_events.values())]:
            if event is not None:
                event.set()
        if self.auth_handler is not None:
            self.auth_handler.abort()
