"""Checkpoint directories and snapshots on this host's disk: list, copy, keep, and restore them.

TASK/replica/
    2-5-3f2a…/         the newest complete snapshot, attempt 2, number 5
        0  1  2 …      its files, by their index in the manifest
        manifest       written last
    making-1/          a snapshot in progress

Files that TensorFlow never changes are hard links into the checkpoint directory if that is on the same disk.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import stat
import struct
import threading
import time
from typing import Dict, FrozenSet, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Set

from train.agent.checkpoints.formats import is_unfinished
from train.agent.checkpoints.snapshot import (
    MODES,
    MOST_ENTRIES,
    STATE_FILE,
    Item,
    Kind,
    Listing,
    Manifest,
    Snapshot,
    State,
    Thread,
    Threads,
    decode_manifest,
    digest_of,
    encode_manifest,
    identity,
    is_data,
    is_equal,
    newer,
    surplus,
)
from train.agent.files.containment import inner_target
from train.agent.files.contents import hash_file
from train.agent.files.disk import (
    DISK_RESERVE,
    copy_file,
    free_space,
    list_names,
    make_directory,
    read_json,
    readable_size,
    remove_file,
    remove_tree,
    write_atomic,
)
from train.agent.files.mounts import read_mounts
from train.agent.files.paths import TaskPaths
from train.agent.host.processes import boot_id, descendants, is_marked, list_processes, read_stat

MANIFEST = "manifest"
_MAKING = "making-"
_LONGEST_STATE_FILE = 1 << 20
_LASTING_S = 1.0
_RESTORE_TRIES = 3

try:
    import ctypes

    _libc = ctypes.CDLL(None, use_errno=True)
    _libc.inotify_init1  # noqa: B018 - whether it is there
except (ImportError, OSError, AttributeError):  # a Python built without libffi
    _libc = None  # type: ignore[assignment]


class ReplicaError(Exception):
    """A failure, as one sentence for the user."""


class ChangedError(Exception):
    """The directory changed while it was copied."""


class UnfinishedError(Exception):
    """The named file was copied before it was complete."""


# --- listing ----------------------------------------------------------------------------------------------------


def list_directory(directory: str) -> List[Item]:
    """Return all paths in `directory` without following links; empty if it is missing.

    Raises:
        ReplicaError: it holds more than can be a checkpoint.
        OSError: it cannot be read.
    """
    listing: List[Item] = []
    queue = [""]
    while queue:
        base = queue.pop()
        try:
            entries = os.scandir(os.path.join(directory, base))
        except FileNotFoundError:
            continue
        with entries:
            for entry in entries:
                entry_info = _read_entry(base, entry)
                if entry_info is not None:
                    listing.append(entry_info)
                    if entry_info.kind is Kind.DIRECTORY:
                        queue.append(entry_info.path)
        if len(listing) > MOST_ENTRIES:
            raise ReplicaError(
                f"the checkpoint directory {directory} holds more than {MOST_ENTRIES} files, and is not replicated:"
                " give checkpoints a directory of their own"
            )
    return listing


def _read_entry(base: str, entry: "os.DirEntry[str]") -> Optional[Item]:
    try:
        status = entry.stat(follow_symlinks=False)
        target = os.readlink(entry.path) if stat.S_ISLNK(status.st_mode) else ""
    except FileNotFoundError:
        return None
    path = f"{base}/{entry.name}" if base else entry.name
    mode = status.st_mode & MODES
    if stat.S_ISREG(status.st_mode):
        return Item(path, Kind.FILE, mode, status.st_size, status.st_mtime_ns, inode=status.st_ino)
    if stat.S_ISDIR(status.st_mode):
        return Item(path, Kind.DIRECTORY, mode)
    if target:
        return Item(path, Kind.LINK, 0o777, content=target, inode=status.st_ino)
    return Item(path, Kind.OTHER, mode)


def read_listing(directory: str, writing: FrozenSet[str]) -> Listing:
    """Return the content of a checkpoint directory; `writing` are its paths that are open for writing.

    Raises:
        ReplicaError: it holds more than can be a checkpoint.
        OSError: it cannot be read.
    """
    listing = list_directory(directory)
    texts = {
        entry.path: _text(os.path.join(directory, entry.path))
        for entry in listing
        if entry.kind is Kind.FILE
        and os.path.basename(entry.path) == STATE_FILE
        and entry.size <= _LONGEST_STATE_FILE
    }
    return Listing(directory, listing, texts, writing, time.time_ns())


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read(_LONGEST_STATE_FILE)
    except OSError:
        return ""


def directory_identity(directory: str) -> str:
    """Return an ID of a directory that is unique across hosts; the directory need not exist."""
    nearest, rest = os.path.realpath(directory), ""
    while not os.path.isdir(nearest):
        nearest, name = os.path.split(nearest)
        rest = os.path.join(name, rest)
    status = os.stat(nearest)
    return identity(read_mounts(), nearest, boot_id(), status.st_dev, status.st_ino, rest.rstrip("/"))


class TaskWatch:
    """The processes of the task, as seen by the replicator.

    Args:
        supervisor: From which they descend.
        mark_directory: What marks those that do not.
        leader: The task's own process; 0 where it is not known.
    """

    def __init__(self, supervisor: int, mark_directory: str, leader: int) -> None:
        self._supervisor = supervisor
        self._mark_directory = mark_directory
        self._leader = leader
        self._marked: Dict[int, int] = {}  # when which process started, of those that are not the task's
        self._since: Dict[int, float] = {}

    def writing(self, directory: str) -> FrozenSet[str]:
        """Return the paths in `directory` that a process of the task has open for writing."""
        now = time.monotonic()
        previous = self._since
        pids = self._pids()
        gone = {pid: since for pid, since in previous.items() if pid not in pids and now - since > _LASTING_S}
        self._since = {**gone, **{pid: previous.get(pid, now) for pid in pids}}
        paths: Set[str] = set()
        for pid in pids:
            paths.update(_writing(pid, directory))
        return frozenset(paths)

    def alive(self) -> bool:
        """Return True if all writers that `writing` saw are alive, so that closed files are complete."""
        ending = [pid for pid in self._since if _is_ending(pid)]
        lost = [pid for pid in ending if pid == self._leader or time.monotonic() - self._since[pid] > _LASTING_S]
        for pid in ending:
            del self._since[pid]
        if self._leader and _is_ending(self._leader):
            return False
        return bool(self._since) and not lost

    def threads(self) -> Threads:
        """Return the threads of the processes that `writing` found."""
        threads = {}
        for pid in self._since:
            with contextlib.suppress(OSError):
                for name in os.listdir(f"/proc/{pid}/task"):
                    stat = read_stat(pid, int(name))
                    if stat is not None:
                        threads[int(name)] = Thread(stat.state, stat.ticks)
        return threads

    def _pids(self) -> Set[int]:
        table = list_processes()
        pids = descendants(self._supervisor, table) - {os.getpid()}
        recorded = read_json(TaskPaths(self._mark_directory).processes) or {}
        leader = (recorded.get("task") or [-1])[0]  # a forked task has another parent
        pids |= {pid for pid, process in table.items() if process.group == leader}
        strangers = {}
        for pid, process in table.items():
            if pid not in pids and pid not in (os.getpid(), self._supervisor):
                if self._marked.get(pid) != process.started and is_marked(pid, self._mark_directory):
                    pids.add(pid)
                else:
                    strangers[pid] = process.started
        self._marked = strangers
        return pids


def _is_ending(pid: int) -> bool:
    stat = read_stat(pid)
    return stat is None or stat.ending


def _writing(pid: int, directory: str) -> Iterator[str]:
    for name in list_names(f"/proc/{pid}/fd"):
        try:
            path = os.readlink(f"/proc/{pid}/fd/{name}")
            if path.startswith(directory + "/") and _opened_for_writing(f"/proc/{pid}/fdinfo/{name}"):
                yield path[len(directory) + 1 :]
        except OSError:
            continue


def _opened_for_writing(path: str) -> bool:
    with open(path, encoding="ascii") as file:
        for line in file:
            if line.startswith("flags:"):
                return int(line.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY
    return False


# --- directory events -----------------------------------------------------------------------------------------------

_CLOSE_WRITE, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x8, 0x40, 0x80, 0x100, 0x200  # inotify(7)
_MOVE_SELF, _OVERFLOW, _IS_DIRECTORY, _ONLY_DIRECTORY = 0x800, 0x4000, 0x40000000, 0x01000000
_EVENT = struct.Struct("iIII")


class DirectoryEvents:
    """Events of a directory and its subdirectories.

    Args:
        directory: Which one; it exists.

    Raises:
        OSError: the kernel does not support it, or watches too many directories.
    """

    def __init__(self, directory: str) -> None:
        if _libc is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        self._directory = directory
        self._fd: int = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self._watched: Dict[int, str] = {}
        self._moved: Set[str] = set()
        try:
            self._watch_all()
        except OSError:
            self.close()
            raise

    def fileno(self) -> int:
        """Return the file descriptor that is readable when there are events."""
        return self._fd

    @property
    def moved(self) -> FrozenSet[str]:
        """Return the paths that were renamed into place and not written to since."""
        return frozenset(self._moved)

    def read(self) -> bool:
        """Process pending events; return True if there were any."""
        happened = rescan = False
        while True:
            try:
                data = os.read(self._fd, 1 << 16)
            except BlockingIOError:
                break
            happened = True
            rescan = self._take(data) or rescan
        if rescan:
            with contextlib.suppress(OSError):  # what is not watched is looked at all the same, later
                self._watch_all()
        return happened

    def close(self) -> None:
        """Close the kernel's watches."""
        os.close(self._fd)

    def _take(self, data: bytes) -> bool:
        rescan, at = False, 0
        while at < len(data):
            watch, mask, _, length = _EVENT.unpack_from(data, at)
            name = os.fsdecode(data[at + _EVENT.size : at + _EVENT.size + length].rstrip(b"\0"))
            at += _EVENT.size + length
            rescan = rescan or bool(mask & (_IS_DIRECTORY | _OVERFLOW | _MOVE_SELF))
            if mask & _OVERFLOW:
                self._moved.clear()
            elif watch in self._watched and name:
                base = self._watched[watch]
                self._note(f"{base}/{name}" if base else name, moved=bool(mask & _MOVED_TO))
        return rescan

    def _note(self, path: str, *, moved: bool) -> None:
        if moved:
            self._moved.add(path)
            return
        while path:
            self._moved.discard(path)
            path = os.path.dirname(path)

    def _watch_all(self) -> None:
        self._watched.clear()
        paths = [entry.path for entry in list_directory(self._directory) if entry.kind is Kind.DIRECTORY]
        mask = _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _MOVE_SELF | _ONLY_DIRECTORY
        for path in ["", *paths]:
            name = os.fsencode(os.path.join(self._directory, path))
            watch = _libc.inotify_add_watch(self._fd, name, mask)
            if watch >= 0:
                self._watched[watch] = path
            elif ctypes.get_errno() not in (errno.ENOENT, errno.ENOTDIR):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def wait_for(fds: Sequence[int], timeout_s: float) -> None:
    """Wait until one of `fds` is readable or the timeout expires."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    poll.poll(max(0.0, timeout_s) * 1000)


# --- storing ----------------------------------------------------------------------------------------------------


class StoredSnapshot:
    """One complete snapshot on this disk.

    Args:
        directory: Where it is.
        manifest: What it consists of.
    """

    def __init__(self, directory: str, manifest: Manifest) -> None:
        self.directory = directory
        self.manifest = manifest
        self.readers = 0
        self.cut = False  # readers have to stop: its space is needed

    def path(self, number: int) -> str:
        """Return the path of the file with index `number` in the manifest."""
        return os.path.join(self.directory, str(number))

    def is_intact(self) -> bool:
        """Return True if its files are unchanged, by their sizes and times."""
        for number, item in self.manifest.files:
            try:
                status = os.stat(self.path(number))
            except OSError:
                return False
            if (status.st_size, status.st_mtime_ns) != (item.size, item.mtime_ns):
                return False
        return True


class Store:
    """The newest complete snapshot, and the one before it while it is being read.

    Args:
        directory: Where they are; what was left there by a process that was killed is removed.

    Raises:
        OSError: the directory cannot be used.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._lock = threading.Lock()
        self._count = 0
        self._retired: Optional[StoredSnapshot] = None
        self._newest: Optional[StoredSnapshot] = None
        make_directory(directory)
        self._load()

    @property
    def held(self) -> Optional[Snapshot]:
        """Return the newest complete snapshot."""
        newest = self._newest
        return newest.manifest.snapshot if newest is not None else None

    @contextlib.contextmanager
    def reading(self, snapshot: Optional[Snapshot] = None) -> Iterator[Optional[StoredSnapshot]]:
        """Return the newest snapshot, or only the given one, and keep it while it is read; None if not held."""
        with self._lock:
            kept = self._newest
            if kept is not None and snapshot not in (None, kept.manifest.snapshot):
                kept = None
            if kept is not None:
                kept.readers += 1
        try:
            yield kept
        finally:
            if kept is not None:
                self._read(kept)

    def make(self) -> str:
        """Return an empty directory for a new snapshot."""
        with self._lock:
            self._count += 1
            directory = os.path.join(self.directory, f"{_MAKING}{self._count}")
        make_directory(directory)
        return directory

    def keep(self, target_directory: str, manifest: Manifest) -> None:
        """Make the content of `making` the newest snapshot.

        Raises:
            OSError: the disk is full.
        """
        snapshot = manifest.snapshot
        write_atomic(os.path.join(target_directory, MANIFEST), encode_manifest(manifest))
        directory = os.path.join(self.directory, f"{snapshot.attempt}-{snapshot.number}-{snapshot.digest[:16]}")
        with self._lock:
            previous = self._newest
            while os.path.lexists(directory):  # the same snapshot, which is still being read
                directory += "+"
            os.rename(target_directory, directory)
            self._newest = StoredSnapshot(directory, manifest)
        if previous is not None:
            self._retire(previous)

    def drop(self) -> None:
        """Discard the newest snapshot, because it is damaged."""
        with self._lock:
            previous, self._newest = self._newest, None
        if previous is not None:
            self._retire(previous)

    def _retire(self, kept: StoredSnapshot) -> None:
        with self._lock:
            kept.cut = kept.readers == 0
            if not kept.cut:
                if self._retired is not None:
                    self._retired.cut = True
                self._retired = kept
        if kept.cut:
            remove_tree(kept.directory)

    def _read(self, kept: StoredSnapshot) -> None:
        with self._lock:
            kept.readers -= 1
            over = kept.readers == 0 and kept is not self._newest
            if over and self._retired is kept:
                self._retired = None
        if over:
            remove_tree(kept.directory)

    def _load(self) -> None:
        snapshots = []
        for name in os.listdir(self.directory):
            directory = os.path.join(self.directory, name)
            kept = None if name.startswith(_MAKING) else _read_kept(directory)
            if kept is None or not kept.is_intact():
                remove_tree(directory)
            else:
                snapshots.append(kept)
        for kept in snapshots:
            if self._newest is None or newer(kept.manifest.snapshot, self._newest.manifest.snapshot):
                self._newest = kept
        for kept in snapshots:
            if kept is not self._newest:
                remove_tree(kept.directory)


def newest_stored(directory: str) -> Optional[StoredSnapshot]:
    """Return the newest complete snapshot in the directory of a `Store` that no process uses; None: none."""
    newest_kept: Optional[StoredSnapshot] = None
    for name in list_names(directory):
        kept = None if name.startswith(_MAKING) else _read_kept(os.path.join(directory, name))
        if kept is None or not kept.is_intact():
            continue
        if newest_kept is None or newer(kept.manifest.snapshot, newest_kept.manifest.snapshot):
            newest_kept = kept
    return newest_kept


def _read_kept(directory: str) -> Optional[StoredSnapshot]:
    try:
        with open(os.path.join(directory, MANIFEST), "rb") as file:
            return StoredSnapshot(directory, decode_manifest(file.read()))
    except (OSError, ValueError):
        return None


def need_space(directory: str, needed: int, subject: str) -> None:
    """Check that `needed` bytes can be written to the disk of `directory`.

    Raises:
        ReplicaError: they would take what is reserved for logs.
    """
    free, _ = free_space(directory)
    if free - needed < DISK_RESERVE:
        raise ReplicaError(
            f"{subject} needs {readable_size(needed)}, but of the {readable_size(free)} that are free on its disk"
            f" {readable_size(DISK_RESERVE)} stay reserved for logs: make room there"
        )


# --- copying ----------------------------------------------------------------------------------------------------


def _link_or_copy(source: str, target: str, item: Item) -> None:
    """Create `target` as a link or copy that later writes to `source` do not change."""
    if is_data(item.path):
        try:
            os.link(source, target)
        except FileNotFoundError:
            raise
        except OSError:  # another disk, or one without hard links
            pass
        else:
            return
    copy_file(source, target, item.mode, item.mtime_ns)


class SnapshotOrigin(NamedTuple):
    """The origin of a copied state."""

    live: str
    slot: str
    origin: str
    attempt: int


def take_snapshot(store: Store, origin: SnapshotOrigin, state: State, checked: FrozenSet[str]) -> bool:
    """Store a copy of `state` as the newest snapshot; return False if it equals the newest one.

    Args:
        store: Where the copy is kept.
        origin: Origin of the state.
        state: What to copy.
        checked: Files whose copies must have been written to their end, as far as their format shows that.

    Raises:
        ChangedError: the directory changed meanwhile.
        UnfinishedError: one of `checked` was not written to its end.
        ReplicaError: there is no room.
        OSError: something cannot be read or written.
    """
    target_directory = store.make()
    try:
        with store.reading() as previous:
            items = _copy_state(origin, state, target_directory, previous)
        for number, entry in enumerate(state.entries):
            if entry.path in checked and is_unfinished(os.path.join(target_directory, str(number)), entry.path):
                raise UnfinishedError(entry.path)
        held = store.held
        attempt = max(origin.attempt, held.attempt) if held else origin.attempt
        number = held.number + 1 if held and held.attempt == attempt else 1
        digest = digest_of(items)
        if held is not None and held.digest == digest:
            return False
        store.keep(
            target_directory, Manifest(Snapshot(attempt, number, digest), origin.slot, origin.origin, tuple(items))
        )
        return True
    except FileNotFoundError as error:
        raise ChangedError(str(error)) from error
    finally:
        remove_tree(target_directory)


def _copy_state(
    origin: SnapshotOrigin, state: State, target_directory: str, previous: Optional[StoredSnapshot]
) -> List[Item]:
    items_by_path = (
        {item.path: (number, item) for number, item in previous.manifest.files} if previous is not None else {}
    )
    same_disk = os.stat(origin.live).st_dev == os.stat(target_directory).st_dev
    fresh = {
        entry.path: entry
        for entry in state.entries
        if entry.kind is Kind.FILE and not _is_unchanged(entry, items_by_path)
    }
    need_space(
        target_directory,
        sum(entry.size for entry in fresh.values() if not (same_disk and is_data(entry.path))),
        f"a copy of {origin.slot}'s checkpoint",
    )
    for number, entry in enumerate(state.entries):
        target = os.path.join(target_directory, str(number))
        if entry.path in fresh:
            _link_or_copy(os.path.join(origin.live, entry.path), target, entry)
            if same_disk and os.stat(target).st_ino == entry.inode:
                del fresh[entry.path]  # the very file: whatever becomes of its name
        elif entry.kind is Kind.FILE and previous is not None:
            os.link(previous.path(items_by_path[entry.path][0]), target)
    _check_unchanged(origin.live, fresh.values())
    return [
        _item(origin, entry, os.path.join(target_directory, str(number)), items_by_path)
        for number, entry in enumerate(state.entries)
    ]


def _is_unchanged(entry: Item, items_by_path: Dict[str, "tuple[int, Item]"]) -> bool:
    return entry.path in items_by_path and is_equal(entry, items_by_path[entry.path][1])


def _check_unchanged(live: str, entries: Iterable[Item]) -> None:
    for entry in entries:
        status = os.stat(os.path.join(live, entry.path), follow_symlinks=False)
        if (status.st_ino, status.st_size, status.st_mtime_ns) != (entry.inode, entry.size, entry.mtime_ns):
            raise ChangedError(f"{entry.path} changed while it was copied")


def _item(origin: SnapshotOrigin, entry: Item, copy: str, items_by_path: Dict[str, "tuple[int, Item]"]) -> Item:
    content = ""
    if entry.kind is Kind.LINK:
        content = inner_target(origin.live, entry.path, entry.content)
        if not content:
            raise ReplicaError(
                f"{origin.slot}'s checkpoints are not copied to other hosts: the link {entry.path} points"
                f" outside the checkpoint directory, to {entry.content}"
            )
    elif _is_unchanged(entry, items_by_path):
        content = items_by_path[entry.path][1].content
    elif entry.kind is Kind.FILE:
        content = hash_file(copy)[0]
    return entry._replace(content=content, inode=0)


# --- restoring -----------------------------------------------------------------------------------------------


def restore(live: str, kept: Optional[StoredSnapshot]) -> None:
    """Make the checkpoint directory equal to a snapshot, deletions included; None means empty.

    Killed in the middle, it is done again.

    Raises:
        ReplicaError: it cannot be.
    """
    live = os.path.realpath(live)
    for tried in range(_RESTORE_TRIES):
        try:
            _restore(live, kept)
        except FileNotFoundError as error:  # another process changes this directory
            if tried + 1 == _RESTORE_TRIES:
                raise ReplicaError(_describe_restore_error(live, error)) from error
        except OSError as error:
            raise ReplicaError(_describe_restore_error(live, error)) from error
        else:
            return


def refresh(live: str, kept: StoredSnapshot, previous: Optional[Manifest]) -> None:
    """Update a checkpoint directory that is being read to a snapshot.

    What refers to other files comes after these, and what is not needed any more goes last; files of others' stay.

    Args:
        live: The checkpoint directory.
        kept: The snapshot.
        previous: Snapshot that the directory had before; None: nothing.

    Raises:
        ReplicaError: it cannot be.
    """
    live = os.path.realpath(live)
    kinds = {item.path: item.kind for item in kept.manifest.items}
    gone = {item.path for item in previous.items} - set(kinds) if previous is not None else set()
    try:
        os.makedirs(live, exist_ok=True)
        for path in sorted(gone, reverse=True):
            if any(kinds.get(above, Kind.DIRECTORY) is not Kind.DIRECTORY for above in _parents(path)):
                _remove(live, path)  # something else takes the place of a directory above it
        _create_missing(live, kept, list_directory(live))
        for path in sorted(gone, reverse=True):
            _remove(live, path)
    except OSError as error:
        raise ReplicaError(_describe_restore_error(live, error)) from error


def _parents(path: str) -> List[str]:
    """Return the directories above a path, the outermost first."""
    steps = path.split("/")
    return ["/".join(steps[:count]) for count in range(1, len(steps))]


def _remove(live: str, path: str) -> None:
    if not all(_is_directory(os.path.join(live, above)) for above in _parents(path)):
        return  # it is gone already, or behind a link
    path = os.path.join(live, path)
    if _is_directory(path):
        with contextlib.suppress(OSError):  # a directory that others put something into stays
            os.rmdir(path)
    else:
        remove_file(path)


def _is_directory(path: str) -> bool:
    """Return True if `path` is a directory, not a link to one."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _describe_restore_error(live: str, error: OSError) -> str:
    where = f" ({error.filename})" if isinstance(error.filename, str) and error.filename != live else ""
    return f"the checkpoint directory {live} cannot be restored: {error.strerror}{where}"


def _restore(live: str, kept: Optional[StoredSnapshot]) -> None:
    listing = list_directory(live)
    for entry in surplus(listing, kept.manifest.items if kept is not None else ()):
        (os.rmdir if entry.kind is Kind.DIRECTORY else remove_file)(os.path.join(live, entry.path))
    if kept is not None:
        os.makedirs(live, exist_ok=True)
        _create_missing(live, kept, listing)


def _create_missing(live: str, kept: StoredSnapshot, listing: Sequence[Item]) -> None:
    """Create what differs from the snapshot; files that refer to others come last."""
    existing = {entry.path: entry for entry in listing}
    items = enumerate(kept.manifest.items)
    for number, item in sorted(items, key=lambda entry: os.path.basename(entry[1].path) == STATE_FILE):
        if not is_equal(existing.get(item.path), item):
            replace_path(live, item, kept.path(number))


def replace_path(live: str, item: Item, source: str) -> None:
    """Create the path of `item` without following or writing through a link."""
    for above in _parents(item.path):
        _make_directory(os.path.join(live, above), 0o700)
    path = os.path.join(live, item.path)
    if item.kind is Kind.DIRECTORY:
        _make_directory(path, item.mode | 0o700)
        return
    temporary = os.path.join(live, f".fleet-{os.getpid()}")
    remove_file(temporary)
    try:
        if item.kind is Kind.LINK:
            os.symlink(item.content, temporary)
        else:
            _link_or_copy(source, temporary, item)
        if _is_directory(path):
            os.rmdir(path)
        os.replace(temporary, path)
    finally:
        remove_file(temporary)  # two names of one file are left alone by rename(2)


def _make_directory(path: str, mode: int) -> None:
    if not _is_directory(path):
        remove_file(path)
        os.mkdir(path, mode)
