"""Mutual authentication of two agents by the job's secret, and sealing of their messages.

    peer  → {"hello": [job, attempt, slot], "nonce": …}
    chief → {"nonce": …, "proof": HMAC(secret, "chief", hello, both nonces)}
    peer  → {"proof": HMAC(secret, "peer", hello, both nonces)}

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
from typing import TYPE_CHECKING, Any, Dict, NamedTuple, Optional, Protocol, Tuple

from train.agent.protocol.strict_json import JsonError, parse_object

if TYPE_CHECKING:
    from typing import TypeAlias

    class Greeting(Protocol):
        """One side of the authentication of a connection."""

        slot: str  # of the other end, once it is known

        def first(self) -> bytes:
            """Return the first line to send; empty if the other end begins."""

        def take(self, line: bytes) -> Tuple[bytes, Optional[Session]]:
            """Process the next line; return the answer, and the session once the other end has authenticated.

            Raises:
                LinkError: it cannot.
            """

else:
    Greeting = object

NONCE_BYTES = 16
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


def _greeting(job: str, attempt: int, slot: str) -> bytes:
    return json.dumps([job, attempt, slot]).encode()


def _read(line: bytes, limit_bytes: int) -> Message:
    try:
        return parse_object(line, limit_bytes)
    except JsonError as error:
        raise LinkError(f"a line that is not a message: {error}") from error


def _proves(given: object, expected: str) -> bool:
    # As bytes: compare_digest refuses text that is not ASCII.
    return isinstance(given, str) and hmac.compare_digest(given.encode("utf-8", "surrogatepass"), expected.encode())


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise LinkError("a name that is not text")
    return value


def _nonce(message: Message) -> bytes:
    try:
        nonce = bytes.fromhex(message["nonce"])
    except (KeyError, TypeError, ValueError) as error:
        raise LinkError("no nonce") from error
    if len(nonce) != NONCE_BYTES:
        raise LinkError("a nonce of the wrong length")
    return nonce


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


class _Transcript:
    def __init__(self, secret: bytes, greeting: bytes, peer_nonce: bytes, chief_nonce: bytes) -> None:
        self._secret = secret
        self._parts = (greeting, peer_nonce, chief_nonce)

    def proof(self, of: bytes) -> str:
        return _digest(self._secret, b"proof", of, *self._parts).hex()

    def check(self, of: bytes, message: Message) -> None:
        if not _proves(message.get("proof"), self.proof(of)):
            raise LinkError("the other end does not know the job's secret")

    def key(self, of: bytes) -> bytes:
        return _digest(self._secret, b"key", of, *self._parts)


class ChiefGreeting:
    """The chief's side of the authentication of one connection.

    Args:
        secret: The job's secret.
        job: Name of the job.
        attempt: Number of the attempt.
        nonce: Random bytes, never used before.
    """

    def __init__(self, secret: bytes, job: str, attempt: int, nonce: bytes) -> None:
        self._secret = secret
        self._job = job
        self._attempt = attempt
        self._nonce = nonce
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
        if self._transcript is None:
            return self._answer(message), None
        self._transcript.check(b"peer", message)
        return b"", Session(self._transcript.key(b"chief"), self._transcript.key(b"peer"))

    def _answer(self, message: Message) -> bytes:
        hello = message.get("hello")
        if not isinstance(hello, list) or len(hello) != 3 or hello[:2] != [self._job, self._attempt]:
            raise LinkError("a greeting of another job or attempt")
        self.slot = _text(hello[2])
        greeting = _greeting(self._job, self._attempt, self.slot)
        self._transcript = _Transcript(self._secret, greeting, _nonce(message), self._nonce)
        return _line({"nonce": self._nonce.hex(), "proof": self._transcript.proof(b"chief")})


class PeerGreeting:
    """The other tasks' side of the authentication of one connection.

    Args:
        secret: The job's secret.
        job: Name of the job.
        attempt: Number of the attempt.
        slot: Local slot.
        nonce: Random bytes, never used before.
    """

    def __init__(self, secret: bytes, job: str, attempt: int, slot: str, nonce: bytes) -> None:
        self._secret = secret
        self._hello = [job, attempt, slot]
        self._greeting = _greeting(job, attempt, slot)
        self._nonce = nonce
        self.slot = ""

    def first(self) -> bytes:
        """Return the first line to send."""
        return _line({"hello": self._hello, "nonce": self._nonce.hex()})

    def take(self, line: bytes) -> Tuple[bytes, Session]:
        """Process the chief's answer; return what to send, and the session.

        Raises:
            LinkError: the other end is not the chief of our job.
        """
        message = _read(line, LONGEST_GREETING)
        transcript = _Transcript(self._secret, self._greeting, self._nonce, _nonce(message))
        transcript.check(b"chief", message)
        return _line({"proof": transcript.proof(b"peer")}), Session(transcript.key(b"peer"), transcript.key(b"chief"))


class Credentials(NamedTuple):
    """Data that the ends of a job's connections share, and the name of this end."""

    job: str
    secret: bytes
    slot: str
    attempt: int = 0  # 0: the connection outlives attempts

    def chief_greeting(self) -> ChiefGreeting:
        """Return the chief's side of a new authentication."""
        return ChiefGreeting(self.secret, self.job, self.attempt, os.urandom(NONCE_BYTES))

    def peer_greeting(self, prefix: str = "") -> PeerGreeting:
        """Return the other side of a new authentication, with `prefix` before the slot."""
        return PeerGreeting(self.secret, self.job, self.attempt, prefix + self.slot, os.urandom(NONCE_BYTES))


# --- who listens on a slot's port -------------------------------------------------------------------------------
#
#     peer  → {"port": [job, attempt, asker], "nonce": …}
#     agent → {"slot": …, "proof": HMAC(secret, "port", slot, greeting of the asker, nonce)}


def _port_proof(secret: bytes, slot: str, greeting: bytes, nonce: bytes) -> str:
    return _digest(secret, b"port", slot.encode("utf-8", "surrogatepass"), greeting, nonce).hex()


def port_question(job: str, attempt: int, asker: str, nonce: bytes) -> bytes:
    """Return the line that asks whether an agent of this job listens here; `nonce` is random."""
    return _line({"port": [job, attempt, asker], "nonce": nonce.hex()})


def port_answer(secret: bytes, job: str, attempt: int, slot: str, line: bytes) -> bytes:
    """Return the line that answers it for the agent of `slot`.

    Raises:
        LinkError: the question is malformed, or belongs to another job or attempt.
    """
    message = _read(line, LONGEST_GREETING)
    question = message.get("port")
    if not isinstance(question, list) or len(question) != 3 or question[:2] != [job, attempt]:
        raise LinkError("a question of another job or attempt")
    greeting = _greeting(job, attempt, _text(question[2]))
    return _line({"slot": slot, "proof": _port_proof(secret, slot, greeting, _nonce(message))})


def port_owner(secret: bytes, job: str, attempt: int, asker: str, nonce: bytes, line: bytes) -> str:
    """Return the slot whose agent sent the answer `line` to our question.

    Raises:
        LinkError: it is not of this job.
    """
    message = _read(line, LONGEST_GREETING)
    slot = _text(message.get("slot"))
    if not _proves(message.get("proof"), _port_proof(secret, slot, _greeting(job, attempt, asker), nonce)):
        raise LinkError("the other end does not know the job's secret")
    return slot
