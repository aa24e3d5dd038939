"""Certificates with which guests accept the emulator as Google's own hosts."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

HOSTS = ("www.googleapis.com", "storage.googleapis.com")
"""Hosts that TensorFlow and Google's libraries use; TensorFlow cannot use others."""


class Authority:
    """A certificate authority, new each time.

    Attributes:
        certificate: Its certificate, PEM.
    """

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("Emulator")
        signed = self._sign("Emulator", self._key, x509.BasicConstraints(ca=True, path_length=None))
        self.certificate = signed.public_bytes(Encoding.PEM).decode()

    def context(self, directory: Path) -> ssl.SSLContext:
        """Return the settings of a server with all names of `HOSTS`; its key is in a file only for a moment."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.DNSName(host) for host in HOSTS])
        signed = self._sign(HOSTS[0], key, names)
        path = directory / "googleapis.pem"
        path.touch(0o600)
        path.write_bytes(
            signed.public_bytes(Encoding.PEM) + key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        path.unlink()
        return context

    def _sign(self, subject: str, key: ec.EllipticCurvePrivateKey, extension: x509.ExtensionType) -> x509.Certificate:
        now = datetime.datetime.now(datetime.timezone.utc)
        return (
            x509.CertificateBuilder()
            .subject_name(_name(subject))
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=30))
            .add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
            .sign(self._key, hashes.SHA256())
        )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
