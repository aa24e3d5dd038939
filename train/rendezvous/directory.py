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
    try:
        if participants.rank:
            return _answer(directory, participants, deadline_s)
        return _call(directory, participants, deadline_s, address)
    finally:
        with contextlib.suppress(OSError):  # others use it
            directory.rmdir()


def _call(directory: Path, participants: Participants, deadline_s: float, address: str) -> TcpRendezvous:
    _create(directory)
    file, secret, nodes = str(directory / "call"), secrets.token_hex(32), participants.nodes
    addresses = [address]
    if not address:  # those at which the other processes may reach this one, the most likely one first
        addresses = [address_of_node(nodes[0], nodes) if nodes else "", host_address("")]
        with contextlib.suppress(OSError):
            addresses += [str(item[4][0]) for item in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)]
        addresses = [*dict.fromkeys(filter(None, [*addresses, LOOPBACK]))]

    def announce(port: int) -> None:
        try:
            write_atomic(file, json.dumps({"secret": secret, "port": port, "addresses": addresses}).encode())
        except OSError as error:
            raise RendezvousError(f"{file} cannot be written", cause=error.strerror or "") from error

    try:
        return join_tcp("", 0, participants, secret, deadline_s, place=f"in {directory}", announce=announce)
    finally:
        if (read_json(file) or {}).get("secret") == secret:
            remove_file(file)


def _answer(directory: Path, participants: Participants, deadline_s: float) -> TcpRendezvous:
    end = time.monotonic() + deadline_s + SLACK_S
    place, reason = f"in {directory}", ""
    while True:
        _create(directory)  # an earlier rendezvous may have deleted it
        call = read_json(str(directory / "call")) or {}
        for host in call.get("addresses", ()):
            port, secret = int(call["port"]), str(call["secret"])
            try:
                return join_tcp(host, port, participants, secret, deadline_s, place=place, connect_s=_CONNECT_S)
            except UnansweredError as error:
                reason = error.cause or error.message
        if time.monotonic() >= end:
            raise RendezvousError(
                f"timed out after {deadline_s:g} s waiting for {participants.name(0)} {place}: it has not "
                "started, uses another directory, or cannot be reached",
                cause=reason,
                hint="name a directory that all nodes share, --rendezvous DIR, or an address, "
                "--rendezvous tcp://HOST:PORT",
            )
        time.sleep(_PAUSE_S)


def _create(directory: Path) -> None:
    """Create the directory with access for this user only.

    Raises:
        RendezvousError: It cannot be created, belongs to another user, or other users can access it.
    """
    unusable = f"the directory {directory} cannot be used for the rendezvous"
    hint = "name another directory that all nodes share, and that does not exist yet: --rendezvous DIR"
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        result = directory.lstat()
    except OSError as error:
        raise RendezvousError(unusable, cause=error.strerror or "", hint=hint) from error
    if not stat.S_ISDIR(result.st_mode) or result.st_uid != os.geteuid() or result.st_mode & 0o077:
        cause = "it must be a directory owned by you with mode 0700"
        raise RendezvousError(f"{unusable}: other users could read the job's secret", cause=cause, hint=hint)
