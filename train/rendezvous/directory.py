"""Rendezvous in a directory that all processes can access, for example in their shared working directory.

    DIR/call              by rank 0: {"call": TOKEN, "size": N, "ranks": {"1": NONCE, …}}
    DIR/rank-1            by each other rank: {"nonce": NONCE, "call": TOKEN}
    DIR/run-TOKEN/        the rendezvous: secret, then ROUND-RANK with each value, abandoned-RANK

Tokens and nonces are random, so that files of an earlier rendezvous are not mistaken for this one: rank 0 proves that
it is current by repeating a process's nonce, and the process by repeating rank 0's token. Files are replaced
atomically, and only the user can access the directory. A directory is listed before its files are opened, because NFS
refreshes its cache of names when a directory is opened. There are no notifications: all processes poll, at decreasing
frequency down to twice a second.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import stat
import time
from pathlib import Path

from train.agent.files.disk import list_names, read_json, read_text, remove_file, remove_tree, write_atomic
from train.errors import RendezvousError
from train.rendezvous.contract import FAILED_CODE, SLACK_S, AbandonedError, Participants, Value, other_size

_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 0.5
DEPARTURE_S = 3.0


class _Poll:
    """Poll with growing pauses until a deadline."""

    def __init__(self, deadline_s: float) -> None:
        self._end = time.monotonic() + deadline_s
        self._pause_s = _FIRST_PAUSE_S

    def wait(self) -> bool:
        """Pause; return False if no time is left."""
        left = self._end - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(self._pause_s, left))
        self._pause_s = min(1.5 * self._pause_s, _LONGEST_PAUSE_S)
        return True


class DirectoryRendezvous:
    """A rendezvous in a directory; see train.rendezvous.contract.Rendezvous. Created by `join_directory`.

    Args:
        directory: The directory.
        participants: The processes; their number is known.
        token: Token of rank 0.
    """

    address = ""

    def __init__(self, directory: Path, participants: Participants, token: str) -> None:
        self.size = participants.size
        self._directory = directory
        self._participants = participants
        self._token = token
        self._run = _directory_of(directory, token)
        self.secret = read_text(str(self._run / "secret"))
        if not self.secret:
            raise _left(participants)

    def gather(self, about: str, mine: Value, deadline_s: float) -> list[Value]:
        """See Rendezvous."""
        self._put(about, mine)
        rank = self._participants.rank
        poll = _Poll(deadline_s + (SLACK_S if rank else 0.0))
        while missing := self._missing(about):
            if not poll.wait():
                raise RendezvousError(
                    f"timed out after {deadline_s:g} s waiting for {self._participants.names(missing)} ({about})",
                    cause=f"the rendezvous is in {self._directory}",
                )
        return [read_json(str(self._run / f"{about}-{item}")) or {} for item in range(self.size)]

    def send_to_rank_0(self, about: str, mine: Value) -> None:
        """See Rendezvous."""
        with contextlib.suppress(RendezvousError):
            self._put(about, mine)

    def collect(self, about: str, deadline_s: float) -> dict[int, Value]:
        """See Rendezvous."""
        poll = _Poll(deadline_s)
        while self._missing(about) != [0] and poll.wait():
            continue
        result = {rank: read_json(str(self._run / f"{about}-{rank}")) for rank in range(1, self.size)}
        return {rank: value for rank, value in result.items() if value is not None}

    def abandon(self, message: str, code: int) -> None:
        """See Rendezvous."""
        self.send_to_rank_0("abandoned", {"message": message, "code": code})

    def close(self) -> None:
        """See Rendezvous. Rank 0 waits briefly for the others, and deletes the files of the rendezvous."""
        if self._participants.rank:
            remove_file(str(self._directory / f"rank-{self._participants.rank}"))
            return
        poll = _Poll(DEPARTURE_S)
        while (left := self._present()) and poll.wait():
            continue
        for name in left:
            remove_file(str(self._directory / name))
        if (read_json(str(self._directory / "call")) or {}).get("call") == self._token:
            remove_file(str(self._directory / "call"))
        with contextlib.suppress(OSError):  # another rendezvous uses the directory already
            remove_tree(str(self._run))
            self._directory.rmdir()

    def _put(self, about: str, mine: Value) -> None:
        try:
            write_atomic(str(self._run / f"{about}-{self._participants.rank}"), json.dumps(mine).encode())
        except FileNotFoundError:
            raise _left(self._participants) from None
        except OSError as error:
            raise RendezvousError(f"{self._run} cannot be written", cause=error.strerror or "") from error

    def _missing(self, about: str) -> list[int]:
        """Return the ranks that have not written their value yet.

        Raises:
            AbandonedError: A process gave up.
        """
        try:
            names = {path.name for path in self._run.iterdir()}
        except FileNotFoundError:
            raise _left(self._participants) from None
        for rank in range(self.size):
            if f"abandoned-{rank}" in names and rank != self._participants.rank:
                message = read_json(str(self._run / f"abandoned-{rank}")) or {}
                raise AbandonedError(
                    self._participants.name(rank), str(message.get("message")), int(message.get("code", FAILED_CODE))
                )
        return [rank for rank in range(self.size) if f"{about}-{rank}" not in names]

    def _present(self) -> list[str]:
        """Return the files of other processes that have joined this rendezvous and not left it."""
        names = [name for name in list_names(str(self._directory)) if name.startswith("rank-")]
        return [name for name in names if (read_json(str(self._directory / name)) or {}).get("call") == self._token]


def join_directory(directory: Path, participants: Participants, deadline_s: float) -> DirectoryRendezvous:
    """Join the rendezvous in `directory`, which is created if it does not exist.

    Args:
        directory: The same for all processes.
        participants: The expected processes.
        deadline_s: Longest time until all have joined, in seconds.

    Raises:
        RendezvousError: Not all joined in time, or other users can access the directory.
    """
    if participants.rank == 0:
        return _call(directory, participants, deadline_s)
    return _answer(directory, participants, deadline_s)


def _call(directory: Path, participants: Participants, deadline_s: float) -> DirectoryRendezvous:
    token = secrets.token_hex(8)
    _create(directory)
    run = _directory_of(directory, token)
    run.mkdir(mode=0o700)
    write_atomic(str(run / "secret"), secrets.token_hex(32).encode())
    rendezvous = DirectoryRendezvous(directory, participants, token)
    try:
        _await_all(directory, participants, token, deadline_s)
    except BaseException as error:
        rendezvous.abandon(str(error) or "it was interrupted", FAILED_CODE)
        rendezvous.close()
        raise
    return rendezvous


def _await_all(directory: Path, participants: Participants, token: str, deadline_s: float) -> None:
    """Wait, as rank 0, until all other processes have repeated the token."""
    announced: dict[str, str] | None = None
    poll = _Poll(deadline_s)
    while True:
        names = set(list_names(str(directory)))
        seen = {rank: _read(directory, names, f"rank-{rank}") for rank in range(1, participants.size)}
        nonces = {str(rank): str(value.get("nonce")) for rank, value in seen.items() if value}
        if announced is not None and _read(directory, names, "call").get("call") != token:
            raise _duplicate(directory, participants)
        if nonces != announced:
            _write(directory / "call", {"call": token, "size": participants.size, "ranks": nonces})
            announced = nonces
        missing = [rank for rank, value in seen.items() if value.get("call") != token]
        if not missing:
            return
        if not poll.wait():
            raise _timed_out(directory, participants.names(missing), deadline_s)


def _answer(directory: Path, participants: Participants, deadline_s: float) -> DirectoryRendezvous:
    path = directory / f"rank-{participants.rank}"
    nonce = secrets.token_hex(8)
    try:
        call = _await_call(directory, participants, nonce, deadline_s)
    except BaseException:
        if (read_json(str(path)) or {}).get("nonce") == nonce:
            remove_file(str(path))
        raise
    _write(path, {"nonce": nonce, "call": call["call"]})
    size = int(call["size"])
    members = Participants(participants.rank, size, participants.nodes)
    rendezvous = DirectoryRendezvous(directory, members, str(call["call"]))
    if participants.size not in (0, size):
        error = other_size(participants, size)
        rendezvous.abandon(error.message, FAILED_CODE)
        raise error
    return rendezvous


def _await_call(directory: Path, participants: Participants, nonce: str, deadline_s: float) -> Value:
    """Wait, as another rank, until rank 0 has repeated our nonce; return its call."""
    file_name = f"rank-{participants.rank}"
    poll = _Poll(deadline_s + SLACK_S)
    written = False
    while True:
        _create(directory)
        names = set(list_names(str(directory)))
        mine = _read(directory, names, file_name)
        if written and mine and mine.get("nonce") != nonce:
            raise _duplicate(directory, participants)
        if not written or not mine:  # an earlier rendezvous deleted its directory
            _write(directory / file_name, {"nonce": nonce, "call": ""})
            written = True
        call = _read(directory, names, "call")
        ranks = call.get("ranks")
        if isinstance(ranks, dict) and ranks.get(str(participants.rank)) == nonce:
            return call
        if not poll.wait():
            raise _timed_out(directory, participants.name(0), deadline_s)


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
            f"the directory {directory} cannot be used for the rendezvous",
            cause=error.strerror or "",
            hint="name another directory that all nodes share: --rendezvous DIR",
        ) from error
    if not stat.S_ISDIR(result.st_mode) or result.st_uid != os.geteuid() or result.st_mode & 0o077:
        raise RendezvousError(
            f"the directory {directory} cannot be used for the rendezvous: other users could read the job's secret",
            cause="it must be a directory owned by you with mode 0700",
            hint="name a directory that does not exist yet: --rendezvous DIR",
        )


def _directory_of(directory: Path, token: str) -> Path:
    return directory / f"run-{token}"


def _read(directory: Path, names: set[str], name: str) -> Value:
    return read_json(str(directory / name)) or {} if name in names else {}


def _write(path: Path, value: Value) -> None:
    try:
        write_atomic(str(path), json.dumps(value).encode())
    except OSError as error:
        raise RendezvousError(f"{path} cannot be written", cause=error.strerror or "") from error


def _left(participants: Participants) -> RendezvousError:
    return AbandonedError(participants.name(0), "it left the rendezvous", FAILED_CODE)


def _timed_out(directory: Path, missing: str, waited_s: float) -> RendezvousError:
    return RendezvousError(
        f"timed out after {waited_s:g} s waiting for {missing} in {directory}: it has not started, or uses "
        "another directory",
        hint="name a directory that all nodes share, --rendezvous DIR, or an address, --rendezvous tcp://HOST:PORT",
    )


def _duplicate(directory: Path, participants: Participants) -> RendezvousError:
    return RendezvousError(
        f"another process in {directory} has the same rank: {participants.name(participants.rank)}",
        hint="give each its file_name --rank, and each start its file_name --rendezvous DIR",
    )
