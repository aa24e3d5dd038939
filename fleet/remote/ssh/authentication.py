"""Log in with the fleet's key, or with the user's keys from the SSH agent and from files, in OpenSSH's order."""

from __future__ import annotations

import base64
import contextlib
import functools
import os
import shlex
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm
from paramiko.auth_strategy import AuthSource, AuthStrategy, InMemoryPrivateKey
from paramiko.config import SSHConfig

from fleet.errors import NotFoundError, UnreachableError, WrongHostError
from fleet.remote.fanout import where
from fleet.remote.ssh.errors import SecondFactorError, login_step
from fleet.steps import Shell, Step
from provision.model import Host
from provision.ssh_config.routes import DEFAULT_AGENT, agent_socket

_AGENT_S = 20.0
_ENVIRONMENT = threading.Lock()
_USABLE = ("ssh-ed25519", "ssh-rsa", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521")
_PRIVATE, _MAGIC = "-----BEGIN OPENSSH PRIVATE KEY-----", b"openssh-key-v1\0"
_INVALID = (OSError, ValueError, UnsupportedAlgorithm, paramiko.SSHException, paramiko.pkey.UnknownKeyType)


class _Key(InMemoryPrivateKey):
    """A key to log in with."""

    def authenticate(self, transport: paramiko.Transport) -> list[str]:
        """Log in.

        Raises:
            AuthenticationException: the host rejects the key, or requires another factor.
        """
        required = transport.auth_publickey(self.username, self.pkey)
        if required:  # it is not asked for on the terminal
            raise SecondFactorError(f"after the key, its SSH server asks for: {', '.join(required)}")
        return required


class Keys(AuthStrategy):
    """The keys for a host: that of its fleet, or those of the user if the host belongs to the user.

    The order is that of sshconnect2.c: configured agent keys, other agent keys, files.

    Args:
        host: The host whose settings name the user's keys.
        fleet_key: File with the private key of the fleet.

    Raises:
        NotFoundError: the fleet was deleted.
        UnreachableError: its key cannot be read.
    """

    def __init__(self, host: Host, fleet_key: Path) -> None:
        super().__init__(SSHConfig())
        self._host = host
        self._fleet_key = None if host.is_users else _load_key(fleet_key)
        self._agent = _open_agent(agent_socket(host.agent)) if host.is_users else None
        self._locked: list[str] = []
        self._offered = 0

    def get_sources(self) -> Iterator[AuthSource]:
        """Yield each key in order."""
        for key in self._of_user() if self._fleet_key is None else (self._fleet_key,):
            self._offered += 1
            yield _Key(self._host.user, key)

    def _of_user(self) -> Iterator[paramiko.PKey]:
        host = self._host
        named = [blob for path in host.identities if (blob := public_blob(Path(path)))]
        held = {key.asbytes(): key for key in (self._agent.get_keys() if self._agent is not None else ())}
        yield from (held[blob] for blob in named if blob in held)
        if not host.identities_only:
            yield from (key for blob, key in held.items() if blob not in named)
        for path in host.identities:
            blob = public_blob(Path(path))
            if blob not in held and (not blob or paramiko.Message(blob).get_text() in _USABLE):
                yield from self._loaded(path)

    def _loaded(self, path: str) -> Iterator[paramiko.PKey]:
        """Yield the key of a file, once for each certificate and then alone; nothing if it cannot be used."""
        try:
            key = paramiko.PKey.from_path(path)
        except (TypeError, paramiko.PasswordRequiredException):  # TypeError: cryptography requires a passphrase
            self._locked.append(path)
            return
        except _INVALID:
            return
        for certificate in self._host.certificates:
            certified = paramiko.PKey.from_path(path)
            with contextlib.suppress(*_INVALID):  # a file of another key
                certified.load_certificate(certificate)
                yield certified
        yield key
        if key.public_blob is not None:  # from KEY-cert.pub in the same directory
            key.public_blob = None
            yield key

    def refused(self) -> UnreachableError:
        """Return the error of a host that rejects all keys of the user."""
        cause, hint, step = "no key is configured for it", "this command must log in without a password", None
        if self._locked:
            cause, hint = f"{', '.join(self._locked)} has a passphrase and is not loaded in your SSH agent", ""
            step = Shell(shlex.join(["ssh-add", self._locked[0]]))
        elif self._offered:
            cause = f"it accepts none of your keys ({self._offered} tried)"
        message = f"{where(self._host)} rejects the login of {self._host.user}"
        return WrongHostError(message, cause=cause, hint=hint, next_steps=[step or login_step(self._host)])

    def close(self) -> None:
        """Close the connection to the SSH agent; repeated calls do nothing."""
        if self._agent is not None:
            self._agent.close()


def _load_key(path: Path) -> paramiko.PKey:
    try:
        return _parsed_key(path, path.stat().st_mtime_ns)
    except _INVALID as error:
        if not path.parent.exists():
            message = f"fleet {path.parent.name!r} was deleted meanwhile"
            raise NotFoundError(message, next_steps=[Step("up")]) from error
        message = f"the fleet's key {path} cannot be read"
        raise UnreachableError(message, cause=str(error), next_steps=[Step("down"), Step("up")]) from error


@functools.lru_cache(maxsize=8)
def _parsed_key(path: Path, _changed_at: int) -> paramiko.PKey:
    """Return the key in a file, which logs in on all hosts of a fleet."""
    return paramiko.PKey.from_path(path)


def _open_agent(path: str) -> paramiko.Agent | None:
    """Return the user's SSH agent that listens at a socket; None if it does not answer in time.

    paramiko.Agent takes the socket only from this program's environment, and waits for its answer without a deadline.
    It leaves the socket open if it cannot connect.
    """
    opened: list[paramiko.Agent] = []

    def open_agent() -> None:
        with _ENVIRONMENT, contextlib.suppress(OSError, paramiko.SSHException):
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(path)
            before = os.environ.get(DEFAULT_AGENT, "")
            os.environ[DEFAULT_AGENT] = path
            try:
                opened.append(paramiko.Agent())
            finally:
                os.environ[DEFAULT_AGENT] = before

    thread = threading.Thread(target=open_agent, name="ssh-agent", daemon=True)
    thread.start()
    thread.join(_AGENT_S)
    return opened[0] if opened else None


def public_blob(path: Path) -> bytes:
    """Return the public half of the key in a file, as SSH sends it; empty if reading it requires a passphrase."""
    for file in (Path(f"{path}.pub"), path):
        with contextlib.suppress(OSError, ValueError, IndexError):
            text = file.read_text(encoding="utf-8")
            if text.startswith(_PRIVATE):
                return _blob_of_private(base64.b64decode("".join(text.split("-----")[2].split())))
            return base64.b64decode(text.split()[1], validate=True)
    return b""


def _blob_of_private(data: bytes) -> bytes:
    """Return the public half of a private key, which is stored unencrypted; format: PROTOCOL.key of OpenSSH."""
    message = paramiko.Message(data.removeprefix(_MAGIC))
    for _ in ("cipher", "kdf", "options of the kdf"):
        message.get_binary()
    return message.get_binary() if data.startswith(_MAGIC) and message.get_int() == 1 else b""
