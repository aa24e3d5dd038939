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
from typing import TYPE_CHECKING, Callable, NoReturn, Optional, Sequence

from train.agent.files import contents, disk
from train.agent.files.paths import HostPaths
from train.agent.host.ports import listen_for_links
from train.agent.protocol.channel import Channel
from train.agent.protocol.errors import RefusedError
from train.agent.protocol.records import Entry, EntryKind, FilesStored, NeedContents, PushFiles, Refusal
from train.agent.requests.prepare import RELAYED_BYTES, check_space, receive_contents
from train.agent.requests.results import hash_start, heartbeat_of

if TYPE_CHECKING:
    from train.agent.peers.relay import RelayServer

_TEMPORARY = ".fleet-push-"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_IDLE_S = 3600.0  # for the next request, while other hosts receive the contents


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
    heartbeat = heartbeat_of(channel)
    check_parents(directory, request.entries)
    changed = [entry for entry in request.entries if not is_current(directory, entry, heartbeat)]
    files = [entry for entry in changed if entry.kind in (EntryKind.FILE, EntryKind.DATA)]
    if files:
        hint = "free some space on the host, or name another directory with --to"
        check_space(directory, sum(entry.size for entry in files), "the files need", hint)
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
        check_parents(directory, changed)  # a link may have been made in the meantime
        _place(temporary, directory, changed, receiver)
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
    splits = (entry.path.split("/") for entry in entries)
    for path in sorted({"/".join(parts[:count]) for parts in splits for count in range(1, len(parts))}):
        with contextlib.suppress(FileNotFoundError):
            mode = os.lstat(os.path.join(directory, path)).st_mode
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


def _place(temporary: str, directory: str, entries: Sequence[Entry], receiver: contents.Receiver) -> None:
    """Give complete files their names, and create links and directories."""
    uses = Counter(entry.sha256 for entry in entries)
    for entry in entries:
        path = os.path.join(directory, entry.path)
        os.makedirs(path if entry.kind is EntryKind.DIRECTORY else os.path.dirname(path), 0o700, exist_ok=True)
        if entry.kind is EntryKind.DIRECTORY:
            continue
        complete, received = os.path.join(temporary, "next"), os.path.join(temporary, entry.sha256)
        uses[entry.sha256] -= 1
        if entry.kind is EntryKind.LINK:
            os.symlink(entry.target, complete)
        elif uses[entry.sha256]:
            disk.copy_file(received, complete, entry.mode & 0o777)
        else:
            complete = received
            receiver.moved[entry.sha256] = path
            os.utime(received)
            os.chmod(received, entry.mode & 0o777)
        os.rename(complete, path)
