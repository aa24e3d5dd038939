"""Run one command on a host over SSH, and pass its output on while it runs."""

from __future__ import annotations

import select
import time
from collections.abc import Callable

import paramiko

from fleet.errors import UnreachableError
from fleet.remote.fanout import where
from fleet.remote.ssh.connection import HostConnection
from fleet.remote.ssh.errors import translate
from fleet.steps import Step

ANSWER_S = 20.0
_TICK_S = 0.5
_LINGER_S = 1.0  # for output of processes that the command left running
_EXIT_S = 5.0
_READ = 64 * 1024

OnOutput = Callable[[str, bytes], None]
"""Called with the stream, ``stdout`` or ``stderr``, and its bytes; with no bytes now and then."""


def run_remote(connection: HostConnection, command: str, on_output: OnOutput) -> int:
    """Run a command line, and return its exit code.

    Args:
        connection: Connection to the host; the command ends if it is severed.
        command: The command line, for the shell of the host.
        on_output: Takes the output.

    Raises:
        UnreachableError: the connection broke, or the host does not start the command.
    """
    session = connection.execute(command, ANSWER_S, "starting the command")
    _read_all(connection, session, on_output)
    session.status_event.wait(_EXIT_S)
    if session.exit_status < 0:
        raise _broken(connection, session, EOFError(), "running the command")
    return int(session.exit_status)


def _read_all(connection: HostConnection, session: paramiko.Channel, on_output: OnOutput) -> None:
    """Pass the output on until its end, or until the command has ended and is quiet."""
    readable = select.poll()  # select() takes no descriptor above 1023
    readable.register(session.fileno(), select.POLLIN)
    last_at = time.monotonic()
    while True:
        ended = session.eof_received or session.closed
        readable.poll(_TICK_S * 1000)
        read = []
        if session.recv_ready():
            read.append(("stdout", session.recv(_READ)))
        if session.recv_stderr_ready():
            read.append(("stderr", session.recv_stderr(_READ)))
        for stream, data in read:
            connection.has_read(len(data))
            on_output(stream, data)
        if read:
            last_at = time.monotonic()
            continue
        if ended or (session.exit_status_ready() and time.monotonic() - last_at > _LINGER_S):
            return
        on_output("stdout", b"")


def _broken(connection: HostConnection, session: paramiko.Channel, error: Exception, doing: str) -> UnreachableError:
    host = connection.host
    cause = session.get_transport().get_exception() or error
    translated = translate(host, cause, doing)
    if isinstance(translated, UnreachableError):
        return translated
    return UnreachableError(f"{where(host)} is gone", cause=str(cause), next_steps=[Step("status")])
