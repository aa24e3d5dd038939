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
import os
import stat
import threading
from collections import Counter
from typing import Iterable, Iterator, List, NamedTuple, Optional, Tuple

from train.agent.checkpoints.formats import (
    BACKUP_METADATA,
    STATE_FILE,
    DirectoryListing,
    State,
    is_data,
    is_event_file,
    is_ignored,
)
from train.agent.checkpoints.snapshot import (
    MODES,
    MOST_ENTRIES,
    PathItem,
    PathKind,
    Snapshot,
    SnapshotManifest,
    decode_manifest,
    digest_of,
    encode_manifest,
    identity,
    is_equal,
    surplus,
)
from train.agent.files.contents import hash_file
from train.agent.files.disk import (
    DISK_RESERVE,
    copy_file,
    free_space,
    list_names,
    make_directory,
    read_mounts,
    read_text,
    readable_size,
    remove_file,
    remove_tree,
    write_atomic,
)
from train.agent.files.paths import inner_target
from train.agent.host.processes import boot_id

MANIFEST = "manifest"
_MAKING = "making-"


class ReplicaError(Exception):
    """A failure, as one sentence for the user."""


class ChangedError(Exception):
    """The directory changed while it was copied."""


# --- listing ----------------------------------------------------------------------------------------------------


def list_directory(directory: str) -> List[PathItem]:
    """Return all paths in `directory` without following links; empty if it is missing.

    Raises:
        ReplicaError: it holds more than can be a checkpoint.
        OSError: it cannot be read.
    """
    listing: List[PathItem] = []
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
                    if entry_info.kind is PathKind.DIRECTORY:
                        queue.append(entry_info.path)
        if len(listing) > MOST_ENTRIES:
            raise ReplicaError(
                f"the checkpoint directory {directory} holds more than {MOST_ENTRIES} files, and is not replicated:"
                " give checkpoints a directory of their own"
            )
    return listing


def _read_entry(base: str, entry: "os.DirEntry[str]") -> Optional[PathItem]:
    try:
        status = entry.stat(follow_symlinks=False)
        target = os.readlink(entry.path) if stat.S_ISLNK(status.st_mode) else ""
    except FileNotFoundError:
        return None
    path = f"{base}/{entry.name}" if base else entry.name
    mode = status.st_mode & MODES
    if stat.S_ISREG(status.st_mode):
        return PathItem(path, PathKind.FILE, mode, status.st_size, status.st_mtime_ns)
    if stat.S_ISDIR(status.st_mode):
        return PathItem(path, PathKind.DIRECTORY, mode)
    if target:
        return PathItem(path, PathKind.LINK, 0o777, content=target)
    return PathItem(path, PathKind.OTHER, mode)


def read_listing(directory: str) -> DirectoryListing:
    """Return the content of a checkpoint directory.

    Raises:
        ReplicaError: it holds more than can be a checkpoint.
        OSError: it cannot be read.
    """
    listing = [entry for entry in list_directory(directory) if not is_ignored(entry.path)]
    texts = {
        entry.path: read_text(os.path.join(directory, entry.path))
        for entry in listing
        if entry.kind is PathKind.FILE and os.path.basename(entry.path) in (STATE_FILE, BACKUP_METADATA)
    }
    return DirectoryListing(directory, listing, texts)


def directory_identity(directory: str) -> str:
    """Return an ID of a directory that is unique across hosts; the directory need not exist."""
    nearest, rest = os.path.realpath(directory), ""
    while not os.path.isdir(nearest):
        nearest, name = os.path.split(nearest)
        rest = os.path.join(name, rest)
    status = os.stat(nearest)
    return identity(read_mounts(), nearest, boot_id(), status.st_dev, status.st_ino, rest.rstrip("/"))


# --- storing ----------------------------------------------------------------------------------------------------


class StoredSnapshot(NamedTuple):
    """One complete snapshot on this disk."""

    directory: str
    manifest: SnapshotManifest

    def path(self, number: int) -> str:
        """Return the path of the file with index `number` in the manifest."""
        return os.path.join(self.directory, str(number))

    def is_intact(self) -> bool:
        """Return True if its files are unchanged, by their sizes and times."""
        with contextlib.suppress(OSError):
            return all(
                _stamp(self.path(number)) == (item.size, item.mtime_ns) for number, item in self.manifest.files
            )
        return False


def _stamp(path: str) -> Tuple[int, int]:
    status = os.stat(path, follow_symlinks=False)
    return status.st_size, status.st_mtime_ns


class SnapshotStore:
    """The newest complete snapshot, and an older one while it is being sent.

    Args:
        directory: Where they are; what was left there by a process that was killed is removed.

    Raises:
        OSError: the directory cannot be used.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._count = 0
        self._readers: Counter[str] = Counter()  # by directory
        make_directory(directory)
        newest = newest_stored(directory)
        self._stored = [newest] if newest is not None else []  # the newest last
        for name in os.listdir(directory):
            path = os.path.join(directory, name)
            if newest is None or path != newest.directory:
                remove_tree(path)

    @property
    def newest(self) -> Optional[StoredSnapshot]:
        """Return the newest complete snapshot."""
        return next(reversed(self._stored), None)

    @property
    def held(self) -> Optional[Snapshot]:
        """Return the ID of the newest complete snapshot."""
        newest = self.newest
        return newest.manifest.snapshot if newest is not None else None

    @contextlib.contextmanager
    def reading(self, snapshot: Snapshot) -> Iterator[Optional[StoredSnapshot]]:
        """Return a snapshot, and keep it while it is read; None if it is not the newest one."""
        with self._lock:
            kept = self.newest
            if kept is None or kept.manifest.snapshot != snapshot:
                kept = None
            else:
                self._readers[kept.directory] += 1
        try:
            yield kept
        finally:
            if kept is not None:
                with self._lock:
                    self._readers[kept.directory] -= 1
                    self._remove_older()

    def make(self) -> str:
        """Return an empty directory for a new snapshot."""
        with self._lock:
            self._count += 1
            directory = os.path.join(self._directory, f"{_MAKING}{self._count}")
        make_directory(directory)
        return directory

    def keep(self, target_directory: str, manifest: SnapshotManifest) -> None:
        """Make the content of a directory of `make` the newest snapshot.

        Raises:
            OSError: the disk is full.
        """
        snapshot = manifest.snapshot
        write_atomic(os.path.join(target_directory, MANIFEST), encode_manifest(manifest))
        directory = os.path.join(self._directory, f"{snapshot.attempt}-{snapshot.number}-{snapshot.digest[:16]}")
        with self._lock:
            while os.path.lexists(directory):  # the same snapshot, which is still being read
                directory += "+"
            os.rename(target_directory, directory)
            self._stored.append(StoredSnapshot(directory, manifest))
            self._remove_older()

    def drop(self) -> None:
        """Discard the newest snapshot, because it is damaged."""
        with self._lock:
            remove_tree(self._stored.pop().directory)

    def _remove_older(self) -> None:
        """Remove the older snapshots, except the newest one that is still being sent."""
        older = self._stored[:-1]
        sent = [kept for kept in older if self._readers[kept.directory]][-1:]
        for kept in older:
            if kept not in sent:
                remove_tree(kept.directory)
        self._stored = [*sent, *self._stored[-1:]]


def newest_stored(directory: str) -> Optional[StoredSnapshot]:
    """Return the newest complete snapshot in the directory of a `SnapshotStore`; None if there is none."""
    names = [name for name in list_names(directory) if not name.startswith(_MAKING)]
    stored = [_read_stored(os.path.join(directory, name)) for name in names]
    intact = [kept for kept in stored if kept is not None and kept.is_intact()]
    return max(intact, key=lambda kept: kept.manifest.snapshot[:2], default=None)


def _read_stored(directory: str) -> Optional[StoredSnapshot]:
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


def _link_or_copy(source: str, target: str, item: PathItem) -> None:
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


def take_snapshot(store: SnapshotStore, slot: str, attempt: int, state: State) -> bool:
    """Store a copy of `state` as the newest snapshot; return False if it equals the newest one.

    Args:
        store: Where to keep it.
        slot: Slot that writes the checkpoints.
        attempt: The attempt that wrote them.
        state: What to copy.

    Raises:
        ChangedError: the directory changed meanwhile.
        ReplicaError: the disk is full.
        OSError: something cannot be read or written.
    """
    target_directory = store.make()
    try:
        items = list(_copy_state(slot, state, target_directory, store.newest))
        held, digest = store.held, digest_of(items)
        if held is not None and held.digest == digest:
            return False
        attempt = max(attempt, held.attempt) if held else attempt
        number = held.number + 1 if held and held.attempt == attempt else 1
        origin = directory_identity(state.directory)
        store.keep(target_directory, SnapshotManifest(Snapshot(attempt, number, digest), slot, origin, items))
        return True
    except FileNotFoundError as error:
        raise ChangedError(str(error)) from error
    finally:
        remove_tree(target_directory)


def _copy_state(
    slot: str, state: State, target_directory: str, previous: Optional[StoredSnapshot]
) -> Iterator[PathItem]:
    """Copy what has changed since the previous snapshot; yield the items of the new one."""
    live = state.directory
    stored = {item.path: (number, item) for number, item in previous.manifest.files} if previous is not None else {}
    files = {entry.path: entry for entry in state.entries if entry.kind is PathKind.FILE}
    fresh = {
        path: entry for path, entry in files.items() if path not in stored or not is_equal(entry, stored[path][1])
    }
    same_disk = os.stat(live).st_dev == os.stat(target_directory).st_dev
    copied = [entry.size for entry in fresh.values() if not (same_disk and is_data(entry.path))]
    need_space(target_directory, sum(copied), f"a copy of {slot}'s checkpoint")
    targets = {entry.path: os.path.join(target_directory, str(at)) for at, entry in enumerate(state.entries)}
    for path, entry in files.items():
        if path in fresh:
            _link_or_copy(os.path.join(live, path), targets[path], entry)
        elif previous is not None:
            os.link(previous.path(stored[path][0]), targets[path])
    for entry in fresh.values():
        if _stamp(os.path.join(live, entry.path)) != (entry.size, entry.mtime_ns):
            raise ChangedError(f"{entry.path} changed while it was copied")
    for entry in state.entries:
        if entry.kind is PathKind.LINK:
            yield entry._replace(content=_inner_target(slot, live, entry))
        elif entry.path in fresh:
            yield entry._replace(content=hash_file(targets[entry.path])[0])
        else:
            yield stored[entry.path][1] if entry.kind is PathKind.FILE else entry


def _inner_target(slot: str, live: str, link: PathItem) -> str:
    target = inner_target(live, link.path, link.content)
    if not target:
        raise ReplicaError(
            f"{slot}'s checkpoints are not copied to other hosts: the link {link.path} points"
            f" outside the checkpoint directory, to {link.content}"
        )
    return target


# --- restoring -----------------------------------------------------------------------------------------------


def restore(live: str, kept: Optional[StoredSnapshot]) -> None:
    """Make the checkpoint directory equal to a snapshot, deletions included; None means empty. Event files stay.

    Killed in the middle, it is done again.

    Raises:
        ReplicaError: it cannot be.
    """
    live = os.path.realpath(live)
    items = kept.manifest.items if kept is not None else ()
    with _restoring(live):
        listing = [entry for entry in list_directory(live) if not is_event_file(entry.path)]
        _remove(live, surplus(listing, items))
        if kept is not None:
            _create_missing(live, kept, listing)


def refresh(live: str, kept: StoredSnapshot, previous: Optional[SnapshotManifest]) -> None:
    """Update a checkpoint directory that is being read to a snapshot; files of others stay.

    What is not needed any more is removed last, unless a file takes the place of a directory or a directory that of
    a file.

    Args:
        live: The checkpoint directory.
        kept: The snapshot.
        previous: Snapshot that the directory had before; None: nothing.

    Raises:
        ReplicaError: it cannot be.
    """
    live = os.path.realpath(live)
    paths = {item.path for item in kept.manifest.items}
    before = {item.path for item in previous.items} if previous is not None else set()
    with _restoring(live):
        listing = list_directory(live)
        gone = [entry for entry in surplus(listing, kept.manifest.items) if entry.path in before]
        is_in_the_way = any(entry.path in paths for entry in gone)
        _remove(live, gone if is_in_the_way else [])
        _create_missing(live, kept, listing)
        _remove(live, [] if is_in_the_way else gone)


@contextlib.contextmanager
def _restoring(live: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if isinstance(error.filename, str) and error.filename != live else ""
        text = f"the checkpoint directory {live} cannot be restored: {error.strerror}{where}"
        raise ReplicaError(text) from error


def _remove(live: str, entries: Iterable[PathItem]) -> None:
    """Remove paths of a listing, none of which is behind a link; a directory that others use stays."""
    for entry in entries:
        path = os.path.join(live, entry.path)
        if entry.kind is PathKind.DIRECTORY:
            with contextlib.suppress(OSError):
                os.rmdir(path)
        else:
            remove_file(path)


def _create_missing(live: str, kept: StoredSnapshot, listing: Iterable[PathItem]) -> None:
    """Create what differs from the snapshot; files that refer to others come last."""
    os.makedirs(live, exist_ok=True)
    existing = {entry.path: entry for entry in listing}
    items = enumerate(kept.manifest.items)
    for number, item in sorted(items, key=lambda entry: os.path.basename(entry[1].path) == STATE_FILE):
        if not is_equal(existing.get(item.path), item):
            _replace_path(live, item, kept.path(number))


def _is_directory(path: str) -> bool:
    """Return True if `path` is a directory, not a link to one."""
    return os.path.isdir(path) and not os.path.islink(path)


def _replace_path(live: str, item: PathItem, source: str) -> None:
    """Create the path of `item` without following or writing through a link."""
    steps = item.path.split("/")
    for count in range(1, len(steps)):
        _make_directory(os.path.join(live, *steps[:count]), 0o700)
    path = os.path.join(live, item.path)
    if item.kind is PathKind.DIRECTORY:
        _make_directory(path, item.mode | 0o700)
        return
    temporary = os.path.join(live, f".fleet-{os.getpid()}")
    remove_file(temporary)
    try:
        if item.kind is PathKind.LINK:
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
