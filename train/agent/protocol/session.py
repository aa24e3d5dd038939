"""Mutual authentication of two agents by the job's secret, and sealing of their messages.

    peer  → {"hello": [job, attempt, slot], "nonce": …}
    chief → {"slot": …, "nonce": …, "proof": HMAC(secret, "chief", hello, slot, both nonces)}
    peer  → {"proof": HMAC(secret, "peer", hello, slot, both nonces)}

A probe of a task's port needs only the answer of the chief.

From then on each line is ``HMAC TEXT``, with a key for this connection and direction, over the message and its number
in the direction. Messages cannot be replayed, reflected, reordered, left out, or moved to another connection.
The text is the message as JSON; a long one is compressed, because the state of a large gang goes to all of its hosts.
"""

from __future__ import annotations

import binascii
import hmac
import json
import os
import zlib
from typing import TYPE_CHECKING, Any, Dict, NamedTuple, Optional, Tuple, Union

from train.agent.protocol.strict_json import JsonError, parse_object

if TYPE_CHECKING:
    from typing import TypeAlias

NONCE_BYTES = 16
_NONCE = 2 * NONCE_BYTES  # hexadecimal digits
LONGEST_LINE = 1 << 20  # bytes
LONGEST_MESSAGE = 16 << 20  # bytes, of an authenticated peer; readers may set a lower limit
LONGEST_GREETING = 1 << 12  # bytes, of an unauthenticated peer
_HEX = 64
_COMPRESSED_FROM = 1 << 12  # bytes of JSON
_COMPRESSED = b"z"  # before Base64 of compressed JSON; JSON of a message begins with a brace

Message: TypeAlias = "Dict[str, Any]"


class LinkError(Exception):
    """The other end is not authentic, or a message was tampered with."""


def _digest(key: bytes, *parts: bytes) -> bytes:
    # Each part with its length, so that no two lists of parts are the same bytes.
    return hmac.digest(key, b"".join(b"%d:%s" % (len(part), part) for part in parts), "sha256")


def _read(line: bytes, limit_bytes: int) -> Message:
    try:
        return parse_object(line, limit_bytes)
    except JsonError as error:
        raise LinkError(f"a line that is not a message: {error}") from error


def _line(message: Message) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def encode_message(message: Message) -> bytes:
    """Return the text of a message, for one connection or for many."""
    text = _line(message)[:-1]
    if len(text) < _COMPRESSED_FROM:
        return text
    return _COMPRESSED + binascii.b2a_base64(zlib.compress(text, 1), newline=False)


def decode_message(text: bytes) -> Message:
    """Return the message of a text.

    Raises:
        LinkError: it cannot be read.
    """
    if text.startswith(_COMPRESSED):
        try:
            text = zlib.decompressobj().decompress(binascii.a2b_base64(text[1:]), LONGEST_MESSAGE + 1)
        except (binascii.Error, zlib.error) as error:
            raise LinkError(f"a message that cannot be decompressed: {error}") from error
    return _read(text, LONGEST_MESSAGE)


class Session:
    """Seal sent messages and verify received ones on one authenticated connection.

    Args:
        send_key: Key of this direction.
        receive_key: Key of the other one.
    """

    def __init__(self, send_key: bytes, receive_key: bytes) -> None:
        self._send_key = send_key
        self._receive_key = receive_key
        self._sent = 0
        self._received = 0

    def seal(self, text: bytes) -> bytes:
        """Return the line that carries an encoded message, newline included."""
        mac = _digest(self._send_key, b"%d" % self._sent, text)
        self._sent += 1
        return mac.hex().encode() + b" " + text + b"\n"

    def open(self, line: bytes) -> Message:
        """Return the message of a line.

        Raises:
            LinkError: it is not the next one that the other end sealed for us.
        """
        mac, text = line[:_HEX], line[_HEX + 1 :]
        expected = _digest(self._receive_key, b"%d" % self._received, text).hex().encode()
        if not hmac.compare_digest(mac, expected):
            raise LinkError("a message that the other end did not seal")
        self._received += 1
        return decode_message(text)


class Credentials(NamedTuple):
    """Data that the ends of a job's connections share, and the name of this end."""

    job: str
    secret: bytes
    slot: str
    attempt: int = 0  # 0: the connection outlives attempts

    @property
    def hello(self) -> Tuple[str, int, str]:
        """Return the claim of a peer, which is not secret."""
        return self.job, self.attempt, self.slot

    def chief_greeting(self) -> ChiefGreeting:
        """Return the chief's side of a new authentication."""
        return ChiefGreeting(self)

    def peer_greeting(self, prefix: str = "") -> PeerGreeting:
        """Return the other side of a new authentication, with `prefix` before the slot."""
        return PeerGreeting(self._replace(slot=prefix + self.slot))


class _Transcript:
    """Everything that both ends have sent.

    Args:
        peer: What the peer claims.
        peer_nonce: Its nonce, hexadecimal.
        chief: Slot of the chief.
        chief_nonce: Its nonce, hexadecimal.
        secret: Secret of the job.

    Raises:
        LinkError: the other end sent something else.
    """

    def __init__(self, peer: Credentials, peer_nonce: Any, chief: Any, chief_nonce: Any, *, secret: bytes) -> None:
        nonces = (peer_nonce, chief_nonce)
        if not isinstance(chief, str) or any(not isinstance(nonce, str) or len(nonce) != _NONCE for nonce in nonces):
            raise LinkError("a greeting without a name or a nonce")
        self._secret = secret
        self._text = json.dumps([peer.hello, chief, nonces]).encode()

    def proof(self, side: bytes) -> str:
        return _digest(self._secret, b"proof", side, self._text).hex()

    def check(self, side: bytes, message: Message) -> None:
        given = message.get("proof")
        # As bytes: compare_digest refuses text that is not ASCII.
        if not isinstance(given, str) or not hmac.compare_digest(
            given.encode("utf-8", "surrogatepass"), self.proof(side).encode()
        ):
            raise LinkError("the other end does not know the job's secret")

    def session(self, sends: bytes, receives: bytes) -> Session:
        return Session(*(_digest(self._secret, b"key", side, self._text) for side in (sends, receives)))


class ChiefGreeting:
    """The chief's side of the authentication of one connection.

    Args:
        credentials: Of the chief.

    Attributes:
        slot: That the peer claims to have; verified once there is a session.
    """

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._nonce = os.urandom(NONCE_BYTES).hex()
        self._transcript: Optional[_Transcript] = None
        self.slot = ""

    def first(self) -> bytes:
        """Return nothing: the peer begins."""
        return b""

    def take(self, line: bytes) -> Tuple[bytes, Optional[Session]]:
        """Process the next line of the peer; return the answer, and the session once the peer has authenticated.

        Raises:
            LinkError: it cannot.
        """
        message = _read(line, LONGEST_GREETING)
        if self._transcript is not None:
            self._transcript.check(b"peer", message)
            return b"", self._transcript.session(b"chief", b"peer")
        ours, hello = self._credentials, message.get("hello")
        if not isinstance(hello, list) or len(hello) != 3 or hello[:2] != [ours.job, ours.attempt]:
            raise LinkError("a greeting of another job or attempt")
        if not isinstance(hello[2], str):
            raise LinkError("a name that is not text")
        self.slot = hello[2]
        peer = ours._replace(slot=self.slot)
        self._transcript = _Transcript(peer, message.get("nonce"), ours.slot, self._nonce, secret=ours.secret)
        return _line({"slot": ours.slot, "nonce": self._nonce, "proof": self._transcript.proof(b"chief")}), None


class PeerGreeting:
    """The other tasks' side of the authentication of one connection.

    Args:
        credentials: Of the peer.

    Attributes:
        slot: Of the chief, verified; empty before.
    """

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._nonce = os.urandom(NONCE_BYTES).hex()
        self.slot = ""

    def first(self) -> bytes:
        """Return the first line to send."""
        return _line({"hello": self._credentials.hello, "nonce": self._nonce})

    def take(self, line: bytes) -> Tuple[bytes, Session]:
        """Process the chief's answer; return what to send, and the session.

        Raises:
            LinkError: the other end is not the chief of our job.
        """
        message, ours = _read(line, LONGEST_GREETING), self._credentials
        chief, nonce = message.get("slot"), message.get("nonce")
        transcript = _Transcript(ours, self._nonce, chief, nonce, secret=ours.secret)
        transcript.check(b"chief", message)
        self.slot = str(chief)
        return _line({"proof": transcript.proof(b"peer")}), transcript.session(b"peer", b"chief")


Greeting: TypeAlias = "Union[ChiefGreeting, PeerGreeting]"
