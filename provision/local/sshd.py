"""One OpenSSH server on a loopback address: its configuration, its start, its first words."""

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
from threading import Event

from provision.local.processes import MARK, log_name
from provision.provider import ErrorKind, ProviderError

READY_TIMEOUT_S = 20.0
_BANNER_TIMEOUT_S = 2.0
_POLL_S = 0.01
_ATTEMPTS = 5
# Below it are the ports that tasks take, on all addresses, from 2222 upwards.
_LOWEST_PORT = 10_000
_PLACES = ("/usr/sbin", "/usr/local/sbin", "/sbin")
_SEPARATION_DIRECTORY = Path("/run/sshd")

# Debian's bash reads ~/.bashrc for a command that comes through SSH, unless it finds itself below another shell
# (shell.c, SSH_SOURCE_BASHRC). What stands there is for people: it may print, ask, or take its time.
_NO_BASHRC = "SHLVL=1"


class SshdEndedError(Exception):
    """An sshd ended before it answered; the text is what it logged last."""


class StoppedError(Exception):
    """Whoever waited has given up."""


def find() -> str | None:
    """Absolute path of the OpenSSH server; None where it is not installed.

    The usual directories are searched besides PATH, since an ordinary user's PATH often lacks them; and the path is
    absolute because sshd refuses to start under any other.
    """
    places = os.pathsep.join((os.environ.get("PATH", os.defpath), *_PLACES))
    found = shutil.which("sshd", path=places)
    return os.path.abspath(found) if found else None  # noqa: PTH100 - resolve() would follow links


def loopback_address(fleet: str, index: int) -> str:
    """The loopback address of a worker: the same every time, and 127.0.0.1 where the system has no other.

    Args:
        fleet: Name of the fleet; fleets rarely share a network, and never a port.
        index: Of the worker, 0 to 252.
    """
    digest = hashlib.sha256(fleet.encode()).digest()
    address = f"127.{1 + digest[0] % 254}.{digest[1]}.{index + 1}"
    with socket.socket() as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return "127.0.0.1"
    return address


def configuration(directory: Path, address: str, port: int, user: str) -> str:
    """Return an sshd_config that lets `user` in with the fleet's key, and nobody else with anything else.

    All users of this computer connect from the same address, so no limit by source can tell them apart. Connections
    without a login therefore end soon, and many are allowed: else other users could keep `user` out with idle ones.

    Args:
        directory: Holds ``host_key`` and ``authorized_keys``.
        address: To listen on.
        port: To listen on.
        user: Login name; characters that mean something in a pattern match any one character.
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
    """Make the empty directory into which a privileged sshd locks what is not yet logged in.

    Started by root, sshd does not run without it; on most systems only the service that runs sshd makes it, and
    here there may be no such service.
    """
    if os.geteuid() == 0:
        _SEPARATION_DIRECTORY.mkdir(mode=0o755, parents=True, exist_ok=True)


def start(
    program: str, directory: Path, instance_id: str, address: str, user: str, stopped: Event, *, port: int = 0
) -> tuple[int, int]:
    """Start an sshd that outlives this program, and wait until it answers.

    Args:
        program: Absolute path of sshd.
        directory: Holds ``host_key`` and ``authorized_keys``; configuration and log are written there.
        instance_id: Marks the process and everything started through it.
        address: To listen on.
        user: Who may log in.
        stopped: Ends the waiting when set.
        port: TCP port to listen on, if it is free; 0: any.

    Returns:
        Its process and the TCP port that it listens on.

    Raises:
        ProviderError: it ended, or did not answer in time.
        StoppedError: `stopped` was set.
    """
    log = directory / log_name(instance_id)
    for attempt in range(1, _ATTEMPTS + 1):
        port = _free_port(address, wanted=port)
        config = directory / "sshd_config"
        config.write_text(configuration(directory, address, port, user), encoding="utf-8")
        pid = _spawn(program, config, log, instance_id)
        try:
            _await_banner(pid, log, address, port, stopped)
        except SshdEndedError as error:
            if "Address already in use" in str(error) and attempt < _ATTEMPTS:
                port = 0
                continue  # somebody took the port between the look and the start
            raise ProviderError(
                ErrorKind.MISSING, f"{program} ended as soon as it was started", cause=str(error), hint=f"see {log}"
            ) from error
        return pid, port
    raise AssertionError("the last attempt returns or raises")


def _quoted(path: Path) -> str:
    return '"' + str(path).replace("\\", "\\\\").replace('"', '\\"') + '"'


def _free_port(address: str, *, wanted: int) -> int:
    if wanted:
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as sshd does: old connections may linger
            probe.bind((address, wanted))
            return wanted
    while True:
        with socket.socket() as probe:
            probe.bind((address, 0))
            port: int = probe.getsockname()[1]
        if port >= _LOWEST_PORT:
            return port


def _spawn(program: str, config: Path, log: Path, instance_id: str) -> int:
    """Start sshd in a session of its own; its standard error is its log, by which its sessions are known later."""
    mark = f"{MARK}={instance_id}"
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    return os.posix_spawn(
        program,
        [program, "-D", "-e", "-f", str(config), "-o", f"SetEnv={mark} {_NO_BASHRC}"],
        {"PATH": os.defpath, MARK: instance_id},
        file_actions=actions,
        setsid=True,
        setsigmask=(),
        # What this program ignores, Python's SIGPIPE and a nohup's SIGHUP among it, must not be ignored by tasks.
        setsigdef=(signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM),
    )


def _await_banner(pid: int, log: Path, address: str, port: int, stopped: Event) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        if stopped.is_set():
            raise StoppedError
        ended, _ = os.waitpid(pid, os.WNOHANG)
        said = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        if ended:
            raise SshdEndedError("; ".join(said.split("\n")[-4:]).strip("; \r") or "it logged nothing")
        # Its own word comes first: on the port alone somebody else's sshd might answer.
        if "Server listening on" in said and _answers(address, port):
            return
        stopped.wait(_POLL_S)
    raise ProviderError(
        ErrorKind.UNREACHABLE,
        f"No SSH answer from {address} port {port} within {READY_TIMEOUT_S:.0f} seconds of starting sshd",
        hint=f"see {log}",
    )


def _answers(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), timeout=_BANNER_TIMEOUT_S) as connection:
            return connection.recv(64).startswith(b"SSH-")
    except OSError:
        return False
