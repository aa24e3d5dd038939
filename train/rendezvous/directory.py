"""Rendezvous in a directory that all processes can access, for example in their shared working directory.

    DIR/call    by rank 0 until all have joined: {"secret": SECRET, "port": PORT, "addresses": [ADDRESS, …]}

Only the user can access the directory. The processes connect to rank 0 as in train.rendezvous.tcp. The call of an
earlier rendezvous leads to no process that knows its secret: it is read again until the time is over.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import stat
import time
from pathlib import Path

from train.agent.files.disk import read_json, remove_file, write_atomic
from train.agent.host.ports import host_address
from train.errors import RendezvousError
from train.rendezvous.contract import LOOPBACK, SLACK_S, Participants, UnansweredError, address_of_node
from train.rendezvous.tcp import TcpRendezvous, join_tcp

_PAUSE_S = 0.2
_CONNECT_S = 2.0  # to each address
_UNUSABLE = "the directory {} cannot be used for the rendezvous"


def join_directory(
    directory: Path, participants: Participants, deadline_s: float, address: str = ""
) -> TcpRendezvous:
    """Join the rendezvous in `directory`, which is created if it does not exist, and deleted by the last process.

    Args:
        directory: The same for all processes.
        participants: The expected processes.
        deadline_s: Longest time until all have joined, in seconds.
        address: Address at which other nodes reach this one; empty: it is found.

    Raises:
        RendezvousError: Not all joined in time, or other users can access the directory.
    """
    join = _answer if participants.rank else _call
    try:
        return join(directory, participants, deadline_s, address)
    finally:
        with contextlib.suppress(OSError):  # others use it
            directory.rmdir()


def _call(directory: Path, participants: Participants, deadline_s: float, address: str) -> TcpRendezvous:
    _create(directory)
    file, secret = directory / "call", secrets.token_hex(32)
    addresses = [address] if address else _find_addresses(participants)

    def announce(port: int) -> None:
        value = {"secret": secret, "port": port, "addresses": addresses}
        try:
            write_atomic(str(file), json.dumps(value).encode())
        except OSError as error:
            raise RendezvousError(f"{file} cannot be written", cause=error.strerror or "") from error

    try:
        return join_tcp("", 0, participants, secret, deadline_s, place=f"in {directory}", announce=announce)
    finally:
        if (read_json(str(file)) or {}).get("secret") == secret:
            remove_file(str(file))


def _find_addresses(participants: Participants) -> list[str]:
    """Return the addresses at which the other processes may reach this one, the most likely one first."""
    nodes = participants.nodes
    result = [address_of_node(nodes[0], nodes) if nodes else "", host_address("")]
    with contextlib.suppress(OSError):
        result += [str(item[4][0]) for item in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)]
    return [*dict.fromkeys(filter(None, [*result, LOOPBACK]))]


def _answer(directory: Path, participants: Participants, deadline_s: float, _: str) -> TcpRendezvous:
    end = time.monotonic() + deadline_s + SLACK_S
    reason = ""
    while True:
        _create(directory)  # an earlier rendezvous may have deleted it
        call = read_json(str(directory / "call")) or {}
        for host in call.get("addresses", ()):
            port, secret, place = int(call["port"]), str(call["secret"]), f"in {directory}"
            try:
                return join_tcp(host, port, participants, secret, deadline_s, place=place, connect_s=_CONNECT_S)
            except UnansweredError as error:
                reason = error.cause or error.message
        if time.monotonic() >= end:
            raise RendezvousError(
                f"timed out after {deadline_s:g} s waiting for {participants.name(0)} in {directory}: it has not "
                "started, uses another directory, or cannot be reached",
                cause=reason,
                hint="name a directory that all nodes share, --rendezvous DIR, or an address, "
                "--rendezvous tcp://HOST:PORT",
            )
        time.sleep(_PAUSE_S)


def _create(directory: Path) -> None:
    """Create the directory with access for this user only.

    Raises:
        RendezvousError: It belongs to another user, or other users can access it.
    """
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        result = directory.lstat()
    except OSError as error:
        raise RendezvousError(
            _UNUSABLE.format(directory),
            cause=error.strerror or "",
            hint="name another directory that all nodes share: --rendezvous DIR",
        ) from error
    if not stat.S_ISDIR(result.st_mode) or result.st_uid != os.geteuid() or result.st_mode & 0o077:
        raise RendezvousError(
            f"{_UNUSABLE.format(directory)}: other users could read the job's secret",
            cause="it must be a directory owned by you with mode 0700",
            hint="name a directory that does not exist yet: --rendezvous DIR",
        )
