"""The request PushFiles: write files that the client sends into a directory of the user.

Contents are received in a temporary directory there. A file appears under its name only when it is complete.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
import tempfile
from collections import Counter
from typing import TYPE_CHECKING, Callable, NoReturn, Optional, Sequence, Set

from train.agent.files import contents, disk
from train.agent.files.paths import HostPaths
from train.agent.host.ports import listen_for_links
from train.agent.protocol.channel import Channel
from train.agent.protocol.errors import RefusedError
from train.agent.protocol.records import Entry, EntryKind, FilesStored, NeedContents, PushFiles, Refusal
from train.agent.requests.prepare import RELAYED_BYTES, receive_contents
from train.agent.requests.results import Heartbeat, hash_start

if TYPE_CHECKING:
    from train.agent.peers.relay import RelayServer

_TEMPORARY = ".fleet-push-"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_IDLE_S = 3600.0  # for the next request, while other hosts receive the contents
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def push_files(channel: Channel, _host: HostPaths, request: PushFiles) -> None:
    """Answer PushFiles; until the client's next request, pass the contents on to other hosts.

    Raises:
        RefusedError: the files cannot be written; those that were replaced before are complete.
        ClientGoneError: the client disconnected.
    """
    contents.check_entries(request.entries)
    directory = os.path.abspath(os.path.join(os.path.expanduser("~"), request.directory))
    with contextlib.ExitStack() as stack:
        try:
            disk.make_directory(directory)
            channel.send(_push(channel, directory, request, stack))
        except OSError as error:
            if error.errno in _FULL:
                raise RefusedError(
                    Refusal.DISK, f"no space left for {directory}", "free some space on the host"
                ) from error
            reason = error.strerror or str(error)
            raise RefusedError(
                Refusal.REQUEST, f"cannot write to {directory}: {reason}", "name another directory with --to"
            ) from error
        channel.await_request(_IDLE_S)


def _push(channel: Channel, directory: str, request: PushFiles, stack: contextlib.ExitStack) -> FilesStored:
    heartbeat = Heartbeat(channel)
    check_parents(directory, request.entries)
    changed = [entry for entry in request.entries if not is_current(directory, entry, heartbeat)]
    files = [entry for entry in changed if entry.kind in (EntryKind.FILE, EntryKind.DATA)]
    _check_space(directory, sum(entry.size for entry in files))
    sizes = {entry.sha256: entry.size for entry in files}
    temporary = tempfile.mkdtemp(prefix=_TEMPORARY, dir=directory)
    try:
        need = NeedContents(list(sizes), sum(sizes.values()))
        relay = _relay(request.address, need.size, stack)
        channel.send(need._replace(port=relay.port) if relay else need)
        path_of = functools.partial(os.path.join, temporary)
        receiver = contents.Receiver(temporary, list(sizes.items()), path_of=path_of)
        if sizes:
            receive_contents(channel, receiver, relay)
        _Placement(temporary, directory, receiver).place_all(changed, heartbeat)
    finally:
        disk.remove_tree(temporary)
    return FilesStored(directory, len(files))


def _relay(address: str, size: int, stack: contextlib.ExitStack) -> Optional[RelayServer]:
    """Return what passes contents of this size on; None: they are not worth it, or no host could connect."""
    if not address or size < RELAYED_BYTES:
        return None
    from train.agent.peers.relay import RelayServer

    try:
        relay = RelayServer(listen_for_links(address))
    except RefusedError:
        return None
    stack.callback(relay.close)
    return relay


def check_parents(directory: str, entries: Sequence[Entry]) -> None:
    """Check that the directories of all entries are directories or missing.

    Raises:
        RefusedError: one of them is something else, such as a link.
    """
    checked: Set[str] = set()
    for entry in entries:
        parts = entry.path.split("/")
        for count in range(1, len(parts)):
            path = "/".join(parts[:count])
            if path in checked:
                continue
            checked.add(path)
            try:
                mode = os.lstat(os.path.join(directory, path)).st_mode
            except FileNotFoundError:
                break
            if not stat.S_ISDIR(mode):
                _refuse(os.path.join(directory, path), mode)


def is_current(directory: str, entry: Entry, tick: Callable[[], None]) -> bool:
    """Return True if the directory has this entry already.

    Raises:
        RefusedError: an entry cannot replace what is there.
    """
    path = os.path.join(directory, entry.path)
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(status.st_mode) != (entry.kind is EntryKind.DIRECTORY):
        _refuse(path, status.st_mode)
    if entry.kind is EntryKind.DIRECTORY:
        return True
    if entry.kind is EntryKind.LINK:
        return stat.S_ISLNK(status.st_mode) and os.readlink(path) == entry.target
    if not stat.S_ISREG(status.st_mode) or status.st_size != entry.size:
        return False
    is_same = stat.S_IMODE(status.st_mode) == entry.mode & 0o777
    return is_same and hash_start(path, entry.size, tick) == entry.sha256


def _refuse(path: str, mode: int) -> NoReturn:
    kind = "a directory" if stat.S_ISDIR(mode) else "a link" if stat.S_ISLNK(mode) else "not a directory"
    raise RefusedError(Refusal.REQUEST, f"{path} is {kind}", "remove it there, or name another directory with --to")


def _check_space(directory: str, needed: int) -> None:
    free, _ = disk.free_space(directory)
    if needed and needed + disk.DISK_RESERVE > free:
        raise RefusedError(
            Refusal.DISK,
            f"no space left: {directory} has {disk.readable_size(free)} free, "
            f"and the files need {disk.readable_size(needed + disk.DISK_RESERVE)}",
            "free some space on the host, or name another directory with --to",
        )


class _Placement:
    """Give complete files their names.

    Args:
        temporary: Directory of the received contents, by hash.
        directory: Directory of the user.
        receiver: Learns where the contents are.
    """

    def __init__(self, temporary: str, directory: str, receiver: contents.Receiver) -> None:
        self._temporary = temporary
        self._directory = directory
        self._receiver = receiver

    def place_all(self, entries: Sequence[Entry], tick: Callable[[], None]) -> None:
        """Create or replace files and links, and create directories; the entries are sorted by path."""
        uses = Counter(entry.sha256 for entry in entries)
        above, parent = "", _open_directory(self._directory, "")
        try:
            for entry in entries:
                tick()
                path, _, name = entry.path.rpartition("/")
                if entry.kind is EntryKind.DIRECTORY:
                    path = entry.path
                if path != above:
                    os.close(parent)
                    parent = -1
                    parent = _open_directory(self._directory, path)
                    above = path
                if entry.kind is not EntryKind.DIRECTORY:
                    uses[entry.sha256] -= 1
                    os.rename(self._complete(entry, is_last=not uses[entry.sha256]), name, dst_dir_fd=parent)
        finally:
            if parent >= 0:
                os.close(parent)

    def _complete(self, entry: Entry, *, is_last: bool) -> str:
        """Return the path of the complete file or link, which then gets its name."""
        path = os.path.join(self._temporary, "next")
        if entry.kind is EntryKind.LINK:
            os.symlink(entry.target, path)
            return path
        received = os.path.join(self._temporary, entry.sha256)
        if not is_last:
            disk.copy_file(received, path, entry.mode & 0o777)
            return path
        self._receiver.moved[entry.sha256] = os.path.join(self._directory, entry.path)
        os.utime(received)
        os.chmod(received, entry.mode & 0o777)
        return received


def _open_directory(directory: str, path: str) -> int:
    """Return a descriptor of the directory at `path` below `directory`, created if missing; follow no link below."""
    fd = os.open(directory, _DIRECTORY)
    for part in filter(None, path.split("/")):
        above = fd
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o700, dir_fd=above)
            fd = os.open(part, _DIRECTORY | os.O_NOFOLLOW, dir_fd=above)
        finally:
            os.close(above)
    return fd
