"""A meeting in a directory that all processes see, such as one in their shared working directory.

    DIR/call              of rank 0: {"call": TOKEN, "size": N, "ranks": {"1": NONCE, …}}
    DIR/rank-1            of each other: {"nonce": NONCE, "call": TOKEN}
    DIR/run-TOKEN/        the meeting itself: secret, then ROUND-RANK for what each tells, abandoned-RANK

Tokens and nonces are random, so that nothing that an earlier meeting has left is taken for a part of this one: rank 0
proves to be of now by repeating a process's nonce, and the process by repeating rank 0's token. Files are replaced
whole, and the directory belongs to the user alone. Directories are listed before their files are opened, since NFS
looks again whether a file exists when its directory is opened. Nobody tells when something new is there, so all look
again, less and less often, twice a second at last.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import stat
import time
from pathlib import Path

from train.agent.files.disk import read_json, read_text, remove_file, remove_tree, write_atomic
from train.errors import MeetingError
from train.rendezvous.meeting import FAILED_CODE, SLACK_S, AbandonedError, Party, Value, other_size

_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 0.5
_LEAVE_S = 3.0


class _Patience:
    """Looks again after a pause until a deadline."""

    def __init__(self, deadline_s: float) -> None:
        self._end = time.monotonic() + deadline_s
        self._pause_s = _FIRST_PAUSE_S

    def wait(self) -> bool:
        """Pause; False if there is no time left to."""
        left = self._end - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(self._pause_s, left))
        self._pause_s = min(1.5 * self._pause_s, _LONGEST_PAUSE_S)
        return True


class DirectoryMeeting:
    """A meeting in a directory; see train.rendezvous.meeting.Meeting. Made by `meet_in_directory`.

    Args:
        directory: Where all meet.
        party: Who is expected; its size is known.
        token: Of rank 0.
    """

    address = ""

    def __init__(self, directory: Path, party: Party, token: str) -> None:
        self.size = party.size
        self._directory = directory
        self._party = party
        self._token = token
        self._run = _run(directory, token)
        self.secret = read_text(str(self._run / "secret"))
        if not self.secret:
            raise _left(party)

    def gather(self, about: str, mine: Value, deadline_s: float) -> list[Value]:
        """See Meeting."""
        self._tell(about, mine)
        rank = self._party.rank
        patience = _Patience(deadline_s + (SLACK_S if rank else 0.0))
        while missing := self._missing(about):
            if not patience.wait():
                raise MeetingError(
                    f"waited {deadline_s:g} s for what {self._party.names(missing)} had to tell ({about})",
                    cause=f"the processes meet in {self._directory}",
                )
        return [read_json(str(self._run / f"{about}-{item}")) or {} for item in range(self.size)]

    def give(self, about: str, mine: Value) -> None:
        """See Meeting."""
        with contextlib.suppress(MeetingError):
            self._tell(about, mine)

    def collect(self, about: str, deadline_s: float) -> dict[int, Value]:
        """See Meeting."""
        patience = _Patience(deadline_s)
        while self._missing(about) != [0] and patience.wait():
            continue
        result = {rank: read_json(str(self._run / f"{about}-{rank}")) for rank in range(1, self.size)}
        return {rank: value for rank, value in result.items() if value is not None}

    def abandon(self, message: str, code: int) -> None:
        """See Meeting."""
        self.give("abandoned", {"message": message, "code": code})

    def close(self) -> None:
        """See Meeting. Rank 0 waits a little for the others, and takes the meeting's files away."""
        if self._party.rank:
            remove_file(str(self._directory / f"rank-{self._party.rank}"))
            return
        patience = _Patience(_LEAVE_S)
        while (left := self._present()) and patience.wait():
            continue
        for name in left:
            remove_file(str(self._directory / name))
        if (read_json(str(self._directory / "call")) or {}).get("call") == self._token:
            remove_file(str(self._directory / "call"))
        with contextlib.suppress(OSError):  # somebody else meets there already
            remove_tree(str(self._run))
            self._directory.rmdir()

    def _tell(self, about: str, mine: Value) -> None:
        try:
            write_atomic(str(self._run / f"{about}-{self._party.rank}"), json.dumps(mine).encode())
        except FileNotFoundError:
            raise _left(self._party) from None
        except OSError as error:
            raise MeetingError(f"{self._run} cannot be written", cause=error.strerror or "") from error

    def _missing(self, about: str) -> list[int]:
        """Ranks that have not told anything yet.

        Raises:
            AbandonedError: one has told that it gives up.
        """
        try:
            names = {path.name for path in self._run.iterdir()}
        except FileNotFoundError:
            raise _left(self._party) from None
        for rank in range(self.size):
            if f"abandoned-{rank}" in names and rank != self._party.rank:
                said = read_json(str(self._run / f"abandoned-{rank}")) or {}
                raise AbandonedError(
                    self._party.name(rank), str(said.get("message")), int(said.get("code", FAILED_CODE))
                )
        return [rank for rank in range(self.size) if f"{about}-{rank}" not in names]

    def _present(self) -> list[str]:
        """Files of the others that have joined this meeting and not left it."""
        names = [name for name in _listed(self._directory) if name.startswith("rank-")]
        return [name for name in names if (read_json(str(self._directory / name)) or {}).get("call") == self._token]


def meet_in_directory(directory: Path, party: Party, deadline_s: float) -> DirectoryMeeting:
    """Join the meeting in `directory`, which is made where there is none.

    Args:
        directory: The same for all processes.
        party: Who is expected.
        deadline_s: Longest time until all are there, in seconds.

    Raises:
        MeetingError: not all came in time, or the directory is not the user's own.
    """
    if party.rank == 0:
        return _call(directory, party, deadline_s)
    return _answer(directory, party, deadline_s)


def _call(directory: Path, party: Party, deadline_s: float) -> DirectoryMeeting:
    token = secrets.token_hex(8)
    _make(directory)
    run = _run(directory, token)
    run.mkdir(mode=0o700)
    write_atomic(str(run / "secret"), secrets.token_hex(32).encode())
    meeting = DirectoryMeeting(directory, party, token)
    try:
        _await_all(directory, party, token, deadline_s)
    except BaseException as error:
        meeting.abandon(str(error) or "it was interrupted", FAILED_CODE)
        meeting.close()
        raise
    return meeting


def _await_all(directory: Path, party: Party, token: str, deadline_s: float) -> None:
    """As rank 0, wait until all others have repeated the token."""
    told: dict[str, str] | None = None
    patience = _Patience(deadline_s)
    while True:
        names = set(_listed(directory))
        there = {rank: _read(directory, names, f"rank-{rank}") for rank in range(1, party.size)}
        nonces = {str(rank): str(value.get("nonce")) for rank, value in there.items() if value}
        if told is not None and _read(directory, names, "call").get("call") != token:
            raise _twice(directory, party)
        if nonces != told:
            _write(directory / "call", {"call": token, "size": party.size, "ranks": nonces})
            told = nonces
        missing = [rank for rank, value in there.items() if value.get("call") != token]
        if not missing:
            return
        if not patience.wait():
            raise _absent(directory, party.names(missing), deadline_s)


def _answer(directory: Path, party: Party, deadline_s: float) -> DirectoryMeeting:
    own = directory / f"rank-{party.rank}"
    nonce = secrets.token_hex(8)
    try:
        call = _await_call(directory, party, nonce, deadline_s)
    except BaseException:
        if (read_json(str(own)) or {}).get("nonce") == nonce:
            remove_file(str(own))
        raise
    _write(own, {"nonce": nonce, "call": call["call"]})
    size = int(call["size"])
    meeting = DirectoryMeeting(directory, Party(party.rank, size, party.nodes), str(call["call"]))
    if party.size not in (0, size):
        error = other_size(party, size)
        meeting.abandon(error.message, FAILED_CODE)
        raise error
    return meeting


def _await_call(directory: Path, party: Party, nonce: str, deadline_s: float) -> Value:
    """As another than rank 0, wait until that one has repeated our nonce; what it says."""
    own = f"rank-{party.rank}"
    patience = _Patience(deadline_s + SLACK_S)
    written = False
    while True:
        _make(directory)
        names = set(_listed(directory))
        mine = _read(directory, names, own)
        if written and mine and mine.get("nonce") != nonce:
            raise _twice(directory, party)
        if not written or not mine:  # an earlier meeting has taken its directory away
            _write(directory / own, {"nonce": nonce, "call": ""})
            written = True
        call = _read(directory, names, "call")
        ranks = call.get("ranks")
        if isinstance(ranks, dict) and ranks.get(str(party.rank)) == nonce:
            return call
        if not patience.wait():
            raise _absent(directory, party.name(0), deadline_s)


def _make(directory: Path) -> None:
    """Make the directory, which nobody else may write or read.

    Raises:
        MeetingError: it is somebody else's, or others may.
    """
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        result = directory.lstat()
    except OSError as error:
        raise MeetingError(
            f"the processes cannot meet in {directory}",
            cause=error.strerror or "",
            hint="name another directory that all nodes share: --rendezvous DIR",
        ) from error
    if not stat.S_ISDIR(result.st_mode) or result.st_uid != os.geteuid() or result.st_mode & 0o077:
        raise MeetingError(
            f"the processes cannot meet in {directory}: others could read the job's secret there",
            cause="it is no directory of yours that is closed to others",
            hint="name one that does not exist yet: --rendezvous DIR",
        )


def _run(directory: Path, token: str) -> Path:
    return directory / f"run-{token}"


def _listed(directory: Path) -> list[str]:
    try:
        return [path.name for path in directory.iterdir()]
    except FileNotFoundError:
        return []


def _read(directory: Path, names: set[str], name: str) -> Value:
    return read_json(str(directory / name)) or {} if name in names else {}


def _write(path: Path, value: Value) -> None:
    try:
        write_atomic(str(path), json.dumps(value).encode())
    except OSError as error:
        raise MeetingError(f"{path} cannot be written", cause=error.strerror or "") from error


def _left(party: Party) -> MeetingError:
    return AbandonedError(party.name(0), "it has left", FAILED_CODE)


def _absent(directory: Path, who: str, waited_s: float) -> MeetingError:
    return MeetingError(
        f"waited {waited_s:g} s for {who} in {directory}: it has not started, or sees another directory",
        hint="name a directory that all nodes share, --rendezvous DIR, or an address, --rendezvous tcp://HOST:PORT",
    )


def _twice(directory: Path, party: Party) -> MeetingError:
    return MeetingError(
        f"another process in {directory} is {party.name(party.rank)}, too",
        hint="give each its own --rank, and each start its own --rendezvous DIR",
    )
