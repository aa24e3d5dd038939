"""Encode and decode the packets of one SSH connection (RFC 4253, section 6) without waiting for its socket."""

from __future__ import annotations

import contextlib
import hmac
import os
import threading
import time
from collections.abc import Callable, Iterator
from socket import socket
from struct import Struct
from typing import Any

import paramiko
from cryptography.exceptions import InvalidTag

from fleet.remote.ssh.loop import READ, WRITE

_RECEIVE = 256 * 1024
_PACKET_MAX = 256 * 1024  # as in OpenSSH; RFC 4253 requires 35,000
_UNSENT_MAX = 1024 * 1024
_BANNER_MAX = 64 * 1024
_BANNER_LINES = 100
_SEQUENCE = 1 << 32
_LENGTH = Struct(">I")
_HEADER = Struct(">IB")


class _Cipher:
    """The encryption of one direction.

    Args:
        engine: Encrypts or decrypts; None: nothing is encrypted.
        block_size: Bytes to a multiple of which packets are padded.
        mac_engine: Hash function of the MAC; None: there is no MAC of its own.
        mac_size: Bytes of the MAC, or of the tag of an AEAD cipher.
        mac_key: Its key.
        etm: The MAC is that of the encrypted packet.
        nonce: First nonce of an AEAD cipher (RFC 5647); empty: it is none.
    """

    def __init__(
        self,
        engine: Any = None,
        block_size: int = 8,
        mac_engine: Any = None,
        mac_size: int = 0,
        mac_key: bytes = b"",
        *,
        etm: bool = False,
        nonce: bytes = b"",
    ) -> None:
        self.engine = engine
        self.block_size = block_size
        self.mac_size = mac_size
        self.etm = etm
        self.aead = bool(nonce)
        self.plain_length = engine is None or etm or self.aead
        self._mac_engine = mac_engine
        self._mac_key = mac_key
        self._nonce = nonce[:4]
        self._counter = int.from_bytes(nonce[4:], "big")
        self.bytes = 0
        self.packets = 0

    def next_nonce(self) -> bytes:
        """Return the nonce of the next packet."""
        nonce = self._nonce + self._counter.to_bytes(8, "big")
        self._counter = (self._counter + 1) % (1 << 64)
        return nonce

    def mac(self, *parts: bytes | memoryview) -> bytes:
        """Return the MAC of the parts."""
        return hmac.digest(self._mac_key, b"".join(parts), self._mac_engine().name)[: self.mac_size]

    def count(self, size: int) -> None:
        """Count a packet of `size` bytes."""
        self.bytes += size
        self.packets += 1


class Packets:
    """The packets of one connection: what paramiko.Transport expects of a packetizer, for a loop.

    `receive` and `next_payload` are called only in the thread of the loop, the other methods in any thread. Nothing
    waits for the socket: data that it does not take is kept, and `flush` sends it when the socket takes more.

    Args:
        sock: The socket, which does not block.

    Attributes:
        await_events: Called with the events of the loop for which the connection waits, when they change.
        on_rekey: Called when the keys must be exchanged again because of what was sent.
        written_at: Time of the last packet that was sent, of `time.monotonic`.
        closed: Whether the connection is closed.
    """

    REKEY_BYTES = 1 << 29
    REKEY_PACKETS = 1 << 29
    REKEY_OVERFLOW_BYTES = 1 << 29  # that the host may send before it exchanges the keys

    def __init__(self, sock: socket) -> None:
        self._sock = sock
        self._lock = threading.RLock()
        self._reading = threading.Lock()
        self._is_sent = threading.Condition(self._lock)
        self._out, self._in = _Cipher(), _Cipher()
        self._sequence_out = self._sequence_in = 0
        self._unsent = bytearray()
        self._corks = 0
        self._received = b""
        self._at = 0  # of the first byte of _received that is not decoded
        self._head = b""  # decrypted first block of a packet whose length is encrypted
        self._needs_rekey = False
        self._renewed = 0
        self._initial_kex_done = False  # set by paramiko
        self.closed = False
        self.written_at = time.monotonic()
        self._events = READ
        self.await_events: Callable[[int], object] = lambda _: None
        self.on_rekey: Callable[[], object] = lambda: None

    # --- settings, as paramiko.Transport makes them -----------------------------------------------------------------

    def set_log(self, _log: object) -> None:
        """Do nothing: packets are not logged."""

    def set_outbound_cipher(  # noqa: PLR0913, PLR0917 - of paramiko's interface
        self,
        block_engine: Any,
        block_size: int,
        mac_engine: Any,
        mac_size: int,
        mac_key: bytes | None,
        sdctr: bool = False,  # noqa: ARG002 - of paramiko's interface
        etm: bool = False,
        aead: bool = False,  # noqa: ARG002 - there is a nonce
        iv_out: bytes | None = None,
    ) -> None:
        """Encrypt packets with new keys."""
        self._out = _Cipher(
            block_engine, block_size, mac_engine, mac_size, mac_key or b"", etm=etm, nonce=iv_out or b""
        )
        self._renew(1)

    def set_inbound_cipher(
        self,
        block_engine: Any,
        block_size: int,
        mac_engine: Any,
        mac_size: int,
        mac_key: bytes | None,
        etm: bool = False,
        aead: bool = False,  # noqa: ARG002 - there is a nonce
        iv_in: bytes | None = None,
    ) -> None:
        """Decrypt packets with new keys."""
        self._in = _Cipher(
            block_engine, block_size, mac_engine, mac_size, mac_key or b"", etm=etm, nonce=iv_in or b""
        )
        self._renew(2)

    def _renew(self, direction: int) -> None:
        self._renewed |= direction
        if self._renewed == 3:
            self._renewed = 0
            self._needs_rekey = False

    def reset_seqno_out(self) -> None:
        """Number the packets to send from 0."""
        self._sequence_out = 0

    def reset_seqno_in(self) -> None:
        """Number the received packets from 0."""
        self._sequence_in = 0

    def need_rekey(self) -> bool:
        """Return whether the keys have been used for so much data that they must be exchanged again."""
        return self._needs_rekey

    # --- sending ----------------------------------------------------------------------------------------------------

    @property
    def unsent(self) -> int:
        """Return the number of bytes that the socket has not taken yet."""
        return len(self._unsent)

    def send_message(self, message: Any) -> None:
        """Encrypt a message, and send it or keep it for `flush`.

        Raises:
            EOFError: the connection is closed.
        """
        payload = message.asbytes()
        with self._lock:
            packet = self._encrypted(payload)
            self._sequence_out = self._next(self._sequence_out)
            self.write_all(packet)
            self._out.count(len(packet))
            must_rekey = not self._needs_rekey and self._is_used_up(self._out)
            self._needs_rekey |= must_rekey
        if must_rekey:
            self.on_rekey()

    def _encrypted(self, payload: bytes) -> bytes:
        cipher = self._out
        excluded = 4 if cipher.etm or cipher.aead else 0  # the length is not part of what is encrypted
        size = cipher.block_size
        padding = 3 + size - (len(payload) + 8 - excluded) % size
        head = _HEADER.pack(len(payload) + padding + 1, padding)
        packet = b"".join((head, payload, os.urandom(padding) if cipher.engine else bytes(padding)))
        if cipher.engine is None:
            return packet
        if cipher.aead:
            return head[:4] + bytes(cipher.engine.encrypt(cipher.next_nonce(), memoryview(packet)[4:], head[:4]))
        number = _LENGTH.pack(self._sequence_out)
        if cipher.etm:
            encrypted = head[:4] + cipher.engine.update(memoryview(packet)[4:])
            return bytes(encrypted + cipher.mac(number, encrypted))
        return bytes(cipher.engine.update(packet) + cipher.mac(number, packet))

    def _next(self, sequence: int) -> int:
        following = (sequence + 1) % _SEQUENCE
        if following == 0 and not self._initial_kex_done:
            raise paramiko.SSHException("Sequence number rolled over during initial kex!")
        return following

    def _is_used_up(self, cipher: _Cipher) -> bool:
        return cipher.bytes >= self.REKEY_BYTES or cipher.packets >= self.REKEY_PACKETS

    @contextlib.contextmanager
    def corked(self) -> Iterator[None]:
        """Send what is written inside the block together, at its end."""
        with self._lock:
            self._corks += 1
        try:
            yield
        finally:
            with self._lock:
                self._corks -= 1
                self.flush()

    def write_all(self, data: bytes) -> None:
        """Send bytes or keep them for `flush`.

        Raises:
            EOFError: the connection is closed.
        """
        with self._lock:
            if self.closed:
                raise EOFError
            self.written_at = time.monotonic()
            if self._corks or self._unsent:
                self._unsent += data
                return
            sent = self._send(data)
            if sent < len(data):
                self._unsent += memoryview(data)[sent:]
                self._await()

    def flush(self) -> None:
        """Send as much of the kept data as the socket takes now."""
        with self._lock:
            if not self._unsent or self._corks or self.closed:
                return
            del self._unsent[: self._send(self._unsent)]
            if not self._unsent:
                self._is_sent.notify_all()
            self._await()

    def _await(self) -> None:
        """Await space in the socket if data is kept, and nothing of a host that does not read the answers to it."""
        events = (WRITE if self._unsent else 0) | (READ if len(self._unsent) < _UNSENT_MAX else 0)
        if events != self._events:
            self._events = events
            self.await_events(events)

    def _send(self, data: bytes | bytearray) -> int:
        try:
            return self._sock.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            raise EOFError from None

    def wait_until_sent(self) -> None:
        """Wait until the socket has taken all data, or the connection is closed."""
        with self._lock:
            while self._unsent and not self.closed:
                self._is_sent.wait()

    # --- receiving --------------------------------------------------------------------------------------------------

    def receive(self) -> bool:
        """Read what the socket has; return False if it has nothing.

        Raises:
            EOFError: the host has closed the connection.
        """
        with self._reading:
            if self.closed:
                raise EOFError
            try:
                data = self._sock.recv(_RECEIVE)
            except (BlockingIOError, InterruptedError):
                return False
        if not data:
            raise EOFError
        self._received = self._received[self._at :] + data
        self._at = 0
        return True

    def has_version(self) -> bool:
        """Return whether the host has sent its version, or so much that it is not an SSH server.

        Raises:
            SSHException: it has sent too many bytes without a line end.
        """
        lines = self._received.split(b"\n")[:-1]
        if any(line.startswith(b"SSH-") for line in lines) or len(lines) >= _BANNER_LINES:
            return True
        if len(self._received) > _BANNER_MAX:
            raise paramiko.SSHException("Error reading SSH protocol banner")
        return False

    def readline(self, _timeout: float) -> str:
        """Return the next received line, without its end."""
        end = self._received.index(b"\n", self._at)
        line = self._received[self._at : end]
        self._at = end + 1
        return line.removesuffix(b"\r").decode()

    def next_payload(self) -> tuple[int, memoryview] | None:
        """Return the next message and its number; None if it is not complete.

        Raises:
            SSHException: the packet was damaged, or has an invalid size.
        """
        cipher, data, at = self._in, self._received, self._at
        size = self._packet_size(cipher, data, at)
        if size is None or len(data) - at < 4 + size + cipher.mac_size:
            return None
        end = at + 4 + size
        packet = self._decrypted(cipher, memoryview(data)[at : end + cipher.mac_size], 4 + size)
        padding = packet[0]
        if padding + 1 >= size:
            raise paramiko.SSHException("Invalid packet blocking")
        number, self._sequence_in = self._sequence_in, self._next(self._sequence_in)
        self._at = end + cipher.mac_size
        cipher.count(4 + size + cipher.mac_size)
        if self._is_used_up(cipher):
            if cipher.bytes >= self.REKEY_BYTES + self.REKEY_OVERFLOW_BYTES:
                raise paramiko.SSHException("Remote transport is ignoring rekey requests")
            self._needs_rekey = True
        return number, memoryview(packet)[1 : size - padding]

    def _packet_size(self, cipher: _Cipher, data: bytes, at: int) -> int | None:
        """Return the size of the packet without its length field and MAC; None if it is not received yet."""
        if cipher.plain_length:
            if len(data) - at < 4:
                return None
            size: int = _LENGTH.unpack_from(data, at)[0]
        else:
            if not self._head:
                if len(data) - at < cipher.block_size:
                    return None
                self._head = cipher.engine.update(data[at : at + cipher.block_size])
            size = _LENGTH.unpack_from(self._head)[0]
        if not 2 <= size <= _PACKET_MAX or (not cipher.plain_length and (size + 4) % cipher.block_size):
            raise paramiko.SSHException("Invalid packet blocking")
        return size

    def _decrypted(self, cipher: _Cipher, sealed: memoryview, size: int) -> bytes:
        """Return a packet of `size` bytes, which its MAC follows, without its length field."""
        if cipher.aead:
            try:
                return bytes(cipher.engine.decrypt(cipher.next_nonce(), sealed[4:], sealed[:4]))
            except InvalidTag:
                raise paramiko.SSHException("Mismatched MAC") from None
        packet, mac = sealed[:size], sealed[size:]
        if cipher.engine is None:
            return bytes(packet[4:])
        number = _LENGTH.pack(self._sequence_in)
        if cipher.etm:
            self._check(cipher.mac(number, packet), mac)
            return bytes(cipher.engine.update(packet[4:]))
        plain = self._head + cipher.engine.update(packet[len(self._head) :])
        self._head = b""
        self._check(cipher.mac(number, plain), mac)
        return bytes(plain[4:])

    @staticmethod
    def _check(expected: bytes, mac: memoryview) -> None:
        if not hmac.compare_digest(expected, mac):
            raise paramiko.SSHException("Mismatched MAC")

    # --- end --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the socket; wake the threads that wait for it."""
        with self._reading, self._lock:  # the number of a closed socket may be used for another one at once
            self.closed = True
            self._sock.close()
            self._is_sent.notify_all()
