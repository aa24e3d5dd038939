"""CPU time of the live console."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Sequence

from benchmarks.harness.accounting import family_s
from benchmarks.harness.command import CommandError, end
from benchmarks.harness.hosts import Hosts
from benchmarks.harness.model import Goal, Sample
from benchmarks.harness.scripts import RATE, write_script
from benchmarks.harness.session import Session

TITLE = "The live console"
_ROWS, _COLUMNS = 50, 160


def measure(session: Session) -> None:
    """Show the output of all hosts on a terminal, and write it to a pipe."""
    workers, rate, seconds = session.pick((2, 20, 1.5), (8, 100, 10.0), (8, 100, 60.0))
    hosts, script = session.local(workers), write_script(session.directory(), RATE)
    arguments = ["train", str(script), "--", str(rate), str(seconds)]
    command = f"{sys.executable} {script} {rate} {seconds}"
    session.measure(
        f"{workers} hosts, {rate} lines per second each",
        {
            "fleet train on a terminal": lambda: _load(hosts, hosts.fleet(*arguments), seconds, terminal=True),
            "fleet train to a pipe": lambda: _load(hosts, hosts.fleet(*arguments), seconds),
            "pdsh to a pipe": lambda: _load(hosts, hosts.pdsh(command), seconds),
        },
        [
            Goal("load", "fleet train on a terminal", "", 5.0),
            Goal("load", "fleet train on a terminal", "pdsh to a pipe"),
        ],
        metric="load",
        runs=session.pick(1, 3, 5),
        warmups=0,
    )


def _load(hosts: Hosts, arguments: Sequence[str], seconds: float, *, terminal: bool = False) -> Sample:
    """Return the CPU time of the client and its children in the middle of its output, in percent of a core.

    Raises:
        CommandError: It failed.
    """
    if terminal:
        reading, writing = pty.openpty()
        fcntl.ioctl(writing, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
    else:
        reading, writing = os.pipe()
    client = subprocess.Popen(
        arguments,
        env=hosts.environment(TERM="xterm-256color"),
        stdin=writing if terminal else subprocess.DEVNULL,
        stdout=writing,
        stderr=writing if terminal else subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(writing)
    try:
        load = _sample(client, reading, seconds)
        if client.wait(60):
            raise CommandError(f"{arguments[0]} ended with {client.returncode}")
    finally:
        end(client)
        os.close(reading)
    return {"load": load}


def _sample(client: subprocess.Popen[bytes], reading: int, seconds: float) -> float:
    """Read until the end; measure from a fifth to four fifths of the time after the first line of a task."""
    begin = end_at = 0.0
    cpu: float | None = None
    load: float | None = None
    tail = b""
    give_up = time.monotonic() + seconds + 60
    while time.monotonic() < give_up:
        ready, _, _ = select.select([reading], [], [], 0.05)
        now = time.monotonic()
        if ready:
            try:
                data = os.read(reading, 1 << 16)
            except OSError:  # the other side of the terminal was closed
                data = b""
            if not data:
                break
            tail = (tail + data)[-100_000:] if not begin else b""
            if not begin and b" step " in tail:
                begin, end_at = now + seconds / 5, now + seconds * 4 / 5
        if begin and cpu is None and now >= begin:
            begin, cpu = now, family_s(client.pid)
        if cpu is not None and load is None and now >= end_at:
            load = 100 * (family_s(client.pid) - cpu) / (now - begin)
    if load is None:
        raise CommandError("the output ended too early")
    return load
