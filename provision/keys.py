"""SSH key pairs of a fleet and of its local hosts."""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass, field


@dataclass(frozen=True)
class KeyPair:
    """A key pair as OpenSSH stores it.

    Attributes:
        private: The private key, unencrypted, in the text format of OpenSSH; it is left out of the repr.
        public: The public key on one line, ``ssh-ed25519 AAAA… comment``.
    """

    private: str = field(repr=False)
    public: str


def generate_ed25519(comment: str) -> KeyPair:
    """Return a new ed25519 key pair.

    Args:
        comment: Purpose of the key; the last field of the public key.

    Raises:
        ValueError: `comment` does not fit on one line.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    if not comment.isprintable():
        raise ValueError("the comment of a key must be a single line of printable characters")
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode("ascii")
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode("ascii")
    return KeyPair(private, f"{public} {comment}".rstrip())


def public_key(private: bytes, comment: str) -> str:
    """Return the public key that belongs to a private key.

    Args:
        private: An unencrypted private key in the text format of OpenSSH.
        comment: The last field of the public key.

    Raises:
        ValueError: `private` is not such a key.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key

    try:
        key = load_ssh_private_key(private, None).public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ValueError(f"not a private key of OpenSSH: {error}") from error
    return f"{key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode('ascii')} {comment}".rstrip()


def fingerprint(public: str) -> str:
    """Return the fingerprint of an OpenSSH public key, ``SHA256:…``, as `ssh-keygen -l` prints it.

    Raises:
        ValueError: `public` is not a public key.
    """
    try:
        blob = base64.b64decode(public.split()[1], validate=True)
    except (IndexError, binascii.Error):
        raise ValueError("not an OpenSSH public key; expected e.g. 'ssh-ed25519 AAAA…'") from None
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode("ascii").rstrip("=")
