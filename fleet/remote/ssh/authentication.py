"""Log in with the user's keys, from the SSH agent and from files, in OpenSSH's order."""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import shlex
import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm
from paramiko.agent import AgentKey
from paramiko.auth_strategy import AuthSource, AuthStrategy, InMemoryPrivateKey
from paramiko.config import SSHConfig

from fleet.errors import UnreachableError, WrongHostError
from fleet.remote.fanout import where
from fleet.remote.ssh.errors import SecondFactorError, login_step
from fleet.steps import Shell
from provision.model import Host
from provision.ssh_config.routes import DEFAULT_AGENT, agent_socket

_AGENT_S = 20.0
_ENVIRONMENT = threading.Lock()
_USABLE = ("ssh-ed25519", "ssh-rsa", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521")
_MAGIC = b"openssh-key-v1\0"


def _listens(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
        probe.connect(path)
        return True
    return False


def _open_agent(path: str) -> paramiko.Agent | None:
    """Return the user's SSH agent that listens at a socket; None if it does not answer in time.

    paramiko.Agent takes the socket only from this program's environment, and waits for its answer without a deadline.
    """
    opened: list[paramiko.Agent] = []

    def open_agent() -> None:
        with _ENVIRONMENT, contextlib.suppress(OSError, paramiko.SSHException):
            before = os.environ.get(DEFAULT_AGENT)
            os.environ[DEFAULT_AGENT] = path
            try:
                opened.append(paramiko.Agent())
            finally:
                os.environ.pop(DEFAULT_AGENT)
                if before is not None:
                    os.environ[DEFAULT_AGENT] = before

    if _listens(path):  # paramiko leaves the socket open if it cannot connect
        thread = threading.Thread(target=open_agent, name="ssh-agent", daemon=True)
        thread.start()
        thread.join(_AGENT_S)
    return opened[0] if opened else None


class _Key(InMemoryPrivateKey):
    """A key to log in with."""

    def authenticate(self, transport: paramiko.Transport) -> list[str]:
        """Log in.

        Raises:
            AuthenticationException: the host rejects the key, or requires another factor.
        """
        required = transport.auth_publickey(self.username, self.pkey)
        if required:
            raise SecondFactorError(f"after the key, its SSH server asks for: {', '.join(required)}")
        return required


class FleetKey(AuthStrategy):
    """The key of a fleet, alone: a second factor is not asked for on the terminal."""

    def __init__(self, user: str, key: paramiko.PKey) -> None:
        super().__init__(SSHConfig())
        self._key = _Key(user, key)

    def get_sources(self) -> Iterator[AuthSource]:
        """Yield the key."""
        yield self._key


class UserKeys(AuthStrategy):
    """The user's keys for a host, in the order of sshconnect2.c: configured agent keys, other agent keys, files.

    Args:
        host: The host whose settings name them.
    """

    def __init__(self, host: Host) -> None:
        super().__init__(SSHConfig())
        self._host = host
        self._agent = _open_agent(agent_socket(host.agent))
        self._locked: list[str] = []
        self._offered = 0

    def get_sources(self) -> Iterator[AuthSource]:
        """Yield each key in order."""
        named = [blob for path in self._host.identities if (blob := public_blob(Path(path)))]
        held: Sequence[AgentKey] = self._agent.get_keys() if self._agent is not None else ()
        for blob in named:
            yield from (self._source(key) for key in held if key.asbytes() == blob)
        if not self._host.identities_only:
            yield from (self._source(key) for key in held if key.asbytes() not in named)
        have = {key.asbytes() for key in held}
        for path in self._host.identities:
            blob = public_blob(Path(path))
            if blob not in have and (not blob or paramiko.Message(blob).get_text() in _USABLE):
                yield from (self._source(key) for key in self._loaded(path))

    def refused(self) -> UnreachableError:
        """Return the error of a host that rejects all keys."""
        host = self._host
        if self._locked:
            return WrongHostError(
                f"{where(host)} rejects the login of {host.user}",
                cause=f"{', '.join(self._locked)} has a passphrase and is not loaded in your SSH agent",
                next_steps=[Shell(shlex.join(["ssh-add", self._locked[0]]))],
            )
        tried = (
            f"it accepts none of your keys ({self._offered} tried)"
            if self._offered
            else "no key is configured for it"
        )
        return WrongHostError(
            f"{where(host)} rejects the login of {host.user}",
            cause=tried,
            hint="this command must log in without a password",
            next_steps=[login_step(host)],
        )

    def close(self) -> None:
        """Close the connection to the SSH agent; repeated calls do nothing."""
        if self._agent is not None:
            self._agent.close()

    def _source(self, key: paramiko.PKey) -> AuthSource:
        self._offered += 1
        return _Key(self._host.user, key)

    def _loaded(self, path: str) -> Iterator[paramiko.PKey]:
        """Yield the key of a file, once for each certificate and then alone; nothing if it cannot be used."""
        try:
            key = paramiko.PKey.from_path(path)
        except (TypeError, paramiko.PasswordRequiredException):  # TypeError: cryptography requires a passphrase
            self._locked.append(path)
            return
        except (OSError, ValueError, UnsupportedAlgorithm, paramiko.SSHException, paramiko.pkey.UnknownKeyType):
            return
        for certificate in self._host.certificates:
            certified = paramiko.PKey.from_path(path)
            with contextlib.suppress(ValueError, OSError, paramiko.SSHException):  # a file of another key
                certified.load_certificate(certificate)
                yield certified
        yield key
        if key.public_blob is not None:  # from KEY-cert.pub in the same directory
            key.public_blob = None
            yield key


def public_blob(path: Path) -> bytes:
    """Return the public half of the key in a file, as SSH sends it; empty if reading it requires a passphrase."""
    for file in (Path(f"{path}.pub"), path):
        with contextlib.suppress(OSError, ValueError, IndexError, binascii.Error):
            text = file.read_text(encoding="utf-8")
            if text.startswith("-----BEGIN OPENSSH PRIVATE KEY-----"):
                return _blob_of_private(base64.b64decode("".join(text.split("-----")[2].split())))
            return base64.b64decode(text.split()[1], validate=True)
    return b""


def _blob_of_private(data: bytes) -> bytes:
    """Return the public half of a private key, which is stored unencrypted; format: PROTOCOL.key of OpenSSH."""
    if not data.startswith(_MAGIC):
        return b""
    message = paramiko.Message(data[len(_MAGIC) :])
    for _ in ("cipher", "kdf", "options of the kdf"):
        message.get_binary()
    return message.get_binary() if message.get_int() == 1 else b""
