"""Configures and starts one OpenSSH server on a loopback address."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import signal
import socket
import time
from pathlib import Path

from provision.directories import make_directory
from provision.local.processes import MARK, log_name
from provision.provider import ErrorKind, ProviderError

READY_TIMEOUT_S = 20.0
_POLL_S = 0.01
_ATTEMPTS = 5
_ADDRESSES = 253
# Tasks use lower ports, on all addresses, from 2222.
_LOWEST_PORT = 10_000
SYSTEM_DIRECTORIES = ("/usr/sbin", "/usr/local/sbin", "/sbin")
_SEPARATION_DIRECTORY = Path("/run/sshd")

# Debian's bash reads ~/.bashrc for a command that comes through SSH, unless another shell started it
# (shell.c, SSH_SOURCE_BASHRC). That file is for interactive use: it may print, prompt, or be slow.
_NO_BASHRC = "SHLVL=1"
AGENTS_VARIABLE = "FLEET_AGENTS"


def find() -> str | None:
    """Return the absolute path of the OpenSSH server; None if it is not installed.

    The usual directories are searched in addition to PATH, because the PATH of an ordinary user often lacks them. The
    path is absolute because sshd refuses to start with a relative one.
    """
    directories = os.pathsep.join((os.environ.get("PATH", os.defpath), *SYSTEM_DIRECTORIES))
    program = shutil.which("sshd", path=directories)
    return os.path.abspath(program) if program else None  # noqa: PTH100 - resolve() would follow links


def loopback_address(fleet: str, index: int) -> str:
    """Return the loopback address of a worker, always the same; 127.0.0.1 if the system has no other.

    Args:
        fleet: Name of the fleet; two fleets rarely share a network, and never a port.
        index: Index of the worker; each 253 workers share the first three bytes of their address.
    """
    digest = hashlib.sha256(fleet.encode()).digest()
    third, last = divmod(index, _ADDRESSES)
    address = f"127.{1 + digest[0] % 254}.{(digest[1] + third) % 256}.{last + 1}"
    with socket.socket() as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return "127.0.0.1"
    return address


def configuration(directory: Path, address: str, port: int, user: str) -> str:
    """Return an sshd_config that accepts only `user`, and only with the fleet's key.

    All users of this computer connect from the same address, so a limit by source cannot separate them. Connections
    without a login therefore have a short timeout, and many are allowed: else other users could block `user` with
    idle ones.

    Args:
        directory: Holds ``host_key`` and ``authorized_keys``.
        address: Address to listen on.
        port: TCP port to listen on.
        user: Login name; pattern characters are replaced by a wildcard for one character.
    """
    pattern = re.sub(r"[^A-Za-z0-9._-]", "?", user)
    return f"""\
ListenAddress {address}:{port}
HostKey {_quoted(directory / "host_key")}
AuthorizedKeysFile {_quoted(directory / "authorized_keys").replace("%", "%%")}
AllowUsers {pattern}
PermitRootLogin prohibit-password
PubkeyAuthentication yes
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
PermitUserRC no
PrintMotd no
PrintLastLog no
UseDNS no
LoginGraceTime 30
MaxStartups 1000
MaxSessions 100
LogLevel VERBOSE
PidFile none
Subsystem sftp internal-sftp
"""


def make_separation_directory() -> None:
    """Create the empty directory in which a privileged sshd confines connections before login.

    An sshd that root starts requires it. On most systems only the sshd service creates it, and this computer may not
    have this service.
    """
    if os.geteuid() == 0:
        _SEPARATION_DIRECTORY.mkdir(mode=0o755, parents=True, exist_ok=True)


class Server:
    """An sshd that has been started, and outlives this program.

    Args:
        program: Absolute path of sshd.
        directory: Holds ``host_key`` and ``authorized_keys``; configuration and log are written there.
        instance_id: Marks the process and everything started through it.
        address: Address to listen on.
        user: User that may log in.
        port: TCP port to listen on, if it is free; 0: any.

    Attributes:
        port: TCP port to listen on.
        pid: Its process.
    """

    def __init__(
        self, program: str, directory: Path, instance_id: str, address: str, user: str, port: int = 0
    ) -> None:
        self._program = program
        self._directory = directory
        self._id = instance_id
        self._address = address
        self._user = user
        self._log = directory / log_name(instance_id)
        self._start(port)

    def _start(self, port: int) -> None:
        self._deadline = time.monotonic() + READY_TIMEOUT_S
        self.port = free_port(self._address, preferred=port)
        config = self._directory / "sshd_config"
        config.write_text(configuration(self._directory, self._address, self.port, self._user), encoding="utf-8")
        self.pid = _spawn(self._program, config, self._log, self._id)

    def wait(self) -> None:
        """Wait until it listens. If another process took the port meanwhile, start it on another one.

        Raises:
            ProviderError: it ended, or did not listen in time.
        """
        attempts = 1
        while time.monotonic() < self._deadline:
            ended, _ = os.waitpid(self.pid, os.WNOHANG)
            text = self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""
            if ended and "Address already in use" in text and attempts < _ATTEMPTS:
                attempts += 1
                self._start(0)
            elif ended:
                raise ProviderError(
                    ErrorKind.MISSING,
                    f"{self._program} exited immediately after its start",
                    cause="; ".join(text.split("\n")[-4:]).strip("; \r") or "no log output",
                    hint=f"see {self._log}",
                )
            # A connection would show the same, but sshd starts a process for it, and another sshd might answer.
            elif "Server listening on" in text:
                return
            time.sleep(_POLL_S)
        raise ProviderError(
            ErrorKind.UNREACHABLE,
            f"no SSH response from {self._address} port {self.port} within {READY_TIMEOUT_S:.0f} s "
            "after the start of sshd",
            hint=f"see {self._log}",
        )


def agents_directory() -> Path | None:
    """Return the directory that all local hosts share for agents, because compiling one takes 0.4 s of CPU time.

    Returns:
        ``FLEET_AGENTS``, else a directory in the user's cache; None if it cannot be used, or if another user owns it
        or can write to it, who could then replace the agent.
    """
    from platformdirs import user_cache_path

    directory = Path(os.environ.get(AGENTS_VARIABLE) or user_cache_path("fleet") / "agents").absolute()
    with contextlib.suppress(OSError):
        make_directory(directory)
        status = directory.stat()
        is_private = status.st_uid == os.geteuid() and not status.st_mode & 0o022
        if is_private and os.access(directory, os.W_OK) and not re.search(r"[\"\\\x00-\x1f]", str(directory)):
            return directory
    return None


def _quoted(path: Path) -> str:
    return '"' + str(path).replace("\\", "\\\\").replace('"', '\\"') + '"'


def free_port(address: str, *, preferred: int) -> int:
    """Return a free port of an address: `preferred` if it is free, otherwise any that tasks do not use."""
    if preferred:
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as sshd does: old connections may remain
            probe.bind((address, preferred))
            return preferred
    while True:
        with socket.socket() as probe:
            probe.bind((address, 0))
            port: int = probe.getsockname()[1]
        if port >= _LOWEST_PORT:
            return port


def _spawn(program: str, config: Path, log: Path, instance_id: str) -> int:
    """Start sshd in a new session; its standard error is its log, which later identifies its sessions."""
    variables = f"{MARK}={instance_id} {_NO_BASHRC}"
    if (agents := agents_directory()) is not None:
        variables += f' "{AGENTS_VARIABLE}={agents}"'
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    return os.posix_spawn(
        program,
        [program, "-D", "-e", "-f", str(config), "-o", f"SetEnv={variables}"],
        {"PATH": os.defpath, MARK: instance_id},
        file_actions=actions,
        setsid=True,
        setsigmask=(),
        # Tasks must not ignore the signals that this program ignores, such as SIGPIPE (Python) and SIGHUP (nohup).
        setsigdef=(signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM),
    )
