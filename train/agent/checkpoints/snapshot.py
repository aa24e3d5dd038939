"""Define complete states of a checkpoint directory, and snapshots of them. No input or output.

A *state* is the content of a checkpoint directory at one moment, without files in progress. It is complete if a
script can continue from it. A *snapshot* is a copy of a complete state, numbered within its attempt. Its *manifest*
lists its content, and snapshots with one digest are equal.

TensorFlow saves ``ckpt-4`` as ``ckpt-4.index`` and ``ckpt-4.data-00000-of-00001`` …: it writes data under another
name and renames it, but writes an index in place, and last replaces the file ``checkpoint``, which names the newest.
Source: tensorflow/core/util/tensor_bundle, tensorflow/python/checkpoint/checkpoint_management.py.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from enum import Enum
from typing import TYPE_CHECKING, Any, Dict, FrozenSet, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from train.agent.files.containment import contains, is_inner_link, is_inner_path
from train.agent.files.mounts import mount_of, unescape
from train.agent.protocol.strict_json import check_number, check_text, parse_json

if TYPE_CHECKING:
    from typing import TypeAlias

    from train.agent.files.mounts import Mount

STATE_FILE = "checkpoint"
MOST_ENTRIES = 100_000
MODES = 0o777  # what is kept of a file's mode
FRESH_NS = 5_000_000_000  # a temporary file that was not changed for this time is a leftover
QUIET_S = 0.4  # between the two looks that must be alike
QUIET_PROVEN_S = 0.2  # … where each file is whole by itself
STARVING_S = 3.0  # after this time without a snapshot of a new state, a shorter pause is sufficient …
CALM_S = 1.0  # … until a state is unchanged for this time
UNLIKELY_QUIET_S = 30.0  # for a state that is hardly meant to last: an emptied directory, a file cut short
MAX_INCOMPLETE = 3  # a file that does not fit the format of its name in this many states has another format
RAN_TICKS = 2  # of CPU time: enough to get from the end of one file to the beginning of the next

_ASLEEP = ("S", "I", "Z", "X")  # states of threads that wait for something else than a CPU or a disk; proc(5)
_DATA = re.compile(r"^(?P<prefix>.+)\.data-(?P<shard>\d{5})-of-(?P<count>\d{5})$")
_INDEX = ".index"
_FIELD = re.compile(r'^\s*(model_checkpoint_path|all_model_checkpoint_paths)\s*:\s*"((?:[^"\\]|\\.)*)"', re.MULTILINE)
_IGNORED = re.compile(r"(?:^|/)(?:workertemp_\d+|lost\+found|\.nfs[0-9a-f]{8,}|\.fleet-[^/]*)(?:/|$)")
_TENSORFLOW_TEMPORARY = re.compile(r"(?:^|/)(?:[^/]*_temp|[^/]*\.tempstate\d+|checkpoint\.tmp[^/]*)(?:/|$)")
_TEMPORARY = re.compile(
    r"(?:^|/)(?:tmp[a-z0-9_]{8}|[^/]*\.orbax-checkpoint-tmp[^/]*"
    r"|(?P<base>[^/]+?)(?:\.tmp(?:[._-][^/]*|[0-9a-fA-F]*)|\.temp|\.part|\.partial|\.swp|~))(?:/|$)"
)
# Where the source of a mount names the same thing on every computer that mounts it.
_NETWORK = (
    *("nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "ceph", "fuse.ceph-fuse", "fuse.glusterfs", "glusterfs"),
    *("beegfs", "beegfs_nodev", "fuse.gcsfuse", "fuse.sshfs", "fuse.juicefs"),
)
_HERE = ("127.", "localhost:", "[::1]")  # a mount through a proxy on this computer


# --- snapshots --------------------------------------------------------------------------------------------------


class Snapshot(NamedTuple):
    """ID of a copy of a complete state."""

    attempt: int
    number: int  # counts up within the attempt
    digest: str  # of what is in it


def newer(snapshot: Snapshot, other: Optional[Snapshot]) -> bool:
    """Return True if `one` was taken after `other`."""
    return other is None or (snapshot.attempt, snapshot.number) > (other.attempt, other.number)


def newest(*held: Optional[Snapshot]) -> Optional[Snapshot]:
    """Return the newest of several snapshots, or None."""
    snapshots = [snapshot for snapshot in held if snapshot is not None]
    return max(snapshots, key=lambda snapshot: (snapshot.attempt, snapshot.number), default=None)


def read_snapshot(value: Any) -> Optional[Snapshot]:
    """Return the snapshot of a JSON list; None for null.

    Raises:
        ValueError: it names none.
    """
    if value is None:
        return None
    shape = [type(item) for item in value] if isinstance(value, (list, tuple)) else []
    if shape != [int, int, str]:
        raise ValueError(f"no snapshot: {value!r}")
    return Snapshot(*value)


class Kind(str, Enum):
    """Type of a path."""

    FILE = "file"
    DIRECTORY = "directory"
    LINK = "link"
    OTHER = "other"  # a socket, a pipe, a device: no part of a checkpoint


class Item(NamedTuple):
    """One path of a snapshot or of a listing, relative to the checkpoint directory, with forward slashes."""

    path: str
    kind: Kind
    mode: int
    size: int = 0
    mtime_ns: int = 0
    content: str = ""  # SHA-256 of a file of a snapshot, target of a link
    inode: int = 0  # of a file or link of a listing

    @property
    def key(self) -> Tuple[Any, ...]:
        """Return a value that changes whenever the file of a listing does; constant for a directory."""
        return (self.kind,) if self.kind is Kind.DIRECTORY else self[1:]


class Manifest(NamedTuple):
    """Content of a snapshot."""

    snapshot: Snapshot
    slot: str  # whose checkpoint directory it was taken from
    origin: str  # identity of that directory
    items: Tuple[Item, ...]

    @property
    def files(self) -> List[Tuple[int, Item]]:
        """Return the files, each with its index among the items."""
        return [(number, item) for number, item in enumerate(self.items) if item.kind is Kind.FILE]


def digest_of(items: Sequence[Item]) -> str:
    """Return a hash of the content of a snapshot, independent of its time."""
    text = json.dumps([[item.path, item.kind.value, item.mode, item.size, item.content] for item in items])
    return hashlib.sha256(text.encode()).hexdigest()


def encode_manifest(manifest: Manifest) -> bytes:
    """Return a manifest as JSON."""
    items = [[item.path, item.kind.value, *item[2:6]] for item in manifest.items]
    return json.dumps([manifest.snapshot, manifest.slot, manifest.origin, items], separators=(",", ":")).encode()


def decode_manifest(data: bytes) -> Manifest:
    """Return the manifest in JSON of `encode_manifest`.

    Raises:
        ValueError: it is none, or one that would write elsewhere than in the directory it is for.
    """
    parts = parse_json(data)
    if not isinstance(parts, list) or len(parts) != 4:
        raise ValueError("not a manifest")
    named, slot, origin, rows = parts
    if not isinstance(slot, str) or not isinstance(origin, str) or not isinstance(rows, list):
        raise ValueError("not a manifest")
    if len(rows) > MOST_ENTRIES:
        raise ValueError(f"a manifest of more than {MOST_ENTRIES} paths")
    items = tuple(map(_item, rows))
    snapshot = read_snapshot(named)
    if snapshot is None or digest_of(items) != snapshot.digest:
        raise ValueError("a manifest that does not fit its digest")
    _check_paths(items)
    return Manifest(snapshot, slot, origin, items)


def _check_paths(items: Sequence[Item]) -> None:
    directories = {item.path for item in items if item.kind is Kind.DIRECTORY} | {""}
    for item in items:
        if not is_inner_path(item.path) or os.path.dirname(item.path) not in directories or item.kind is Kind.OTHER:
            raise ValueError(f"a manifest with a path that leads elsewhere: {item.path!r}")
        if item.kind is Kind.LINK and not is_inner_link(item.path, item.content):
            raise ValueError(f"a manifest with a link that leads elsewhere: {item.path!r}")
    if len({item.path for item in items}) != len(items):
        raise ValueError("a manifest that names a path twice")


_ROW = [str, str, int, int, int, str]


def _item(row: Any) -> Item:
    if not isinstance(row, list) or [type(value) for value in row] != _ROW:
        raise ValueError("a manifest with a row of another shape")
    path, kind, mode, size, mtime_ns, content = row
    for text in (path, content):
        check_text(text)
    for number in (size, mtime_ns):
        check_number(number)
    if not 0 <= mode <= MODES or size < 0:
        raise ValueError(f"a manifest with an impossible mode or size: {path!r}")
    return Item(path, Kind(kind), mode, size, mtime_ns, content)


def is_data(path: str) -> bool:
    """Return True if TensorFlow never changes this file again."""
    return _DATA.match(path) is not None


# --- complete states --------------------------------------------------------------------------------------------


Keys: TypeAlias = "Mapping[str, Tuple[Any, ...]]"


class Thread(NamedTuple):
    """A thread of the task at one moment."""

    state: str  # as in /proc/PID/stat
    ticks: int  # of CPU time since it started


Threads: TypeAlias = "Mapping[int, Thread]"  # by thread ID


class Listing(NamedTuple):
    """Content of a checkpoint directory at one moment."""

    directory: str
    entries: Sequence[Item]
    texts: Mapping[str, str]  # of each file that is called `checkpoint`
    writing: FrozenSet[str]  # paths that are open for writing
    now_ns: int


class State(NamedTuple):
    """A complete state."""

    entries: Tuple[Item, ...]
    declared_complete: FrozenSet[str]  # paths that TensorFlow itself declares complete
    managed_directories: FrozenSet[str]  # directories in which it does so

    @property
    def keys(self) -> Keys:
        """Return the keys of all paths."""
        return {entry.path: entry.key for entry in self.entries}

    @property
    def empty(self) -> bool:
        """Return True if there are no files."""
        return all(entry.kind is Kind.DIRECTORY for entry in self.entries)


def named_checkpoints(text: str) -> List[str]:
    """Return the prefixes in a file `checkpoint`, the newest first; empty if the file is invalid."""
    newest: List[str] = []
    others: List[str] = []
    for field, value in _FIELD.findall(text):
        (newest if field == "model_checkpoint_path" else others).append(unescape(value))
    return list(dict.fromkeys([*newest[-1:], *others])) if newest else []


class _Checkpoint:
    """The files of one prefix."""

    def __init__(self) -> None:
        self.index = False
        self.writing = False
        self.shards: Set[str] = set()
        self.counts: Set[str] = set()

    @property
    def whole(self) -> bool:
        return self.index and not self.writing and {len(self.shards)} == {int(count) for count in self.counts}


def _prefix_of(path: str) -> str:
    data = _DATA.match(path)
    if data:
        return data["prefix"]
    return path[: -len(_INDEX)] if path.endswith(_INDEX) else ""


def checkpoint_name(items: Sequence[Item]) -> str:
    """Return the name of the newest checkpoint among `items`: the TensorFlow prefix, or else the path of the file.

    Returns an empty string if there is no file.
    """
    files = [item for item in items if item.kind is Kind.FILE]
    # TensorFlow's index file `checkpoint` is written after the checkpoint that it names.
    named = [item for item in files if os.path.basename(item.path) != "checkpoint"] or files
    last = max(named, key=lambda item: (item.mtime_ns, item.path), default=None)
    return (_prefix_of(last.path) or last.path) if last is not None else ""


def _checkpoints(listing: Listing, paths: Sequence[str]) -> Dict[str, _Checkpoint]:
    checkpoints: Dict[str, _Checkpoint] = {}
    for path in paths:
        data = _DATA.match(path)
        if data is None and not path.endswith(_INDEX):
            continue
        checkpoint = checkpoints.setdefault(_prefix_of(path), _Checkpoint())
        checkpoint.writing = checkpoint.writing or path in listing.writing
        if data is None:
            checkpoint.index = True
        else:
            checkpoint.shards.add(data["shard"])
            checkpoint.counts.add(data["count"])
    for entry in listing.entries:
        if (
            entry.kind is Kind.DIRECTORY
            and entry.path.endswith("_temp")
            and entry.path[: -len("_temp")] in checkpoints
        ):
            checkpoints[entry.path[: -len("_temp")]].writing = True
    return checkpoints


def _read_named_checkpoints(listing: Listing, path: str) -> List[str]:
    """Return the prefixes inside the directory that a file `checkpoint` names, the newest first."""
    prefixes = []
    for name in named_checkpoints(listing.texts[path]):
        full = os.path.normpath(os.path.join(listing.directory, os.path.dirname(path), name))
        if full.startswith(listing.directory.rstrip("/") + "/"):
            prefixes.append(os.path.relpath(full, listing.directory))
    return prefixes


def _is_temporary(path: str) -> bool:
    return bool(_TEMPORARY.search(path) or _TENSORFLOW_TEMPORARY.search(path))


def complete_state(listing: Listing, baseline: Keys) -> Optional[State]:
    """Return the complete state of a listing, or None while files are in progress.

    Args:
        listing: Content of the directory.
        baseline: Keys of the state of the newest snapshot.
    """
    kept = [entry for entry in listing.entries if not _IGNORED.search(entry.path) and entry.kind is not Kind.OTHER]
    temporary = [entry for entry in kept if _is_temporary(entry.path)]
    kept = [entry for entry in kept if not _is_temporary(entry.path)]
    checkpoints = _checkpoints(listing, [entry.path for entry in kept if entry.kind is Kind.FILE])
    declared_complete: Set[str] = set()
    managed_directories: Set[str] = set()
    for path in [entry.path for entry in kept if entry.path in listing.texts]:
        names = _read_named_checkpoints(listing, path)
        if names:
            if names[0] not in checkpoints or not checkpoints[names[0]].whole:
                return None
            declared_complete.update(names, [path])
            managed_directories.add(os.path.dirname(path))
    # An index without data may belong to something other than a checkpoint.
    incomplete_prefixes = {
        at
        for at, entry in checkpoints.items()
        if not entry.whole and (entry.shards or os.path.dirname(at) in managed_directories)
    }
    if any(
        os.path.dirname(prefix) not in managed_directories and prefix not in declared_complete
        for prefix in incomplete_prefixes
    ):
        return None
    kept = [
        entry for entry in kept if entry.kind is not Kind.FILE or _prefix_of(entry.path) not in incomplete_prefixes
    ]
    if any(entry.path in listing.writing for entry in kept) or _has_pending_files(listing, temporary, kept, baseline):
        return None
    declared = frozenset(
        entry.path for entry in kept if entry.path in declared_complete or _prefix_of(entry.path) in declared_complete
    )
    return State(tuple(sorted(kept)), declared, frozenset(managed_directories))


def _has_pending_files(listing: Listing, temporary: Sequence[Item], kept: Sequence[Item], baseline: Keys) -> bool:
    """Return True if a temporary file announces a missing part of the state.

    One for a file that is new already belongs to what comes after this state.
    """
    files = {entry.path: entry for entry in kept if entry.kind is not Kind.DIRECTORY}
    for entry in temporary:
        match = _TEMPORARY.search(entry.path)
        if match is None or entry.kind is Kind.DIRECTORY or _TENSORFLOW_TEMPORARY.search(entry.path):
            continue
        if entry.path not in listing.writing and abs(listing.now_ns - entry.mtime_ns) > FRESH_NS:
            continue
        base = entry.path[: match.end("base")] if match["base"] else ""
        if base in files and baseline.get(base) != files[base].key:
            continue
        if base in files or len(files) != 1:
            return True
    return False


class Observer:
    """Decide, from one listing to the next, when to take a snapshot.

    While the task lives, a state counts once it was unchanged for a moment. On a loaded host time alone
    proves nothing: the task may wait for a CPU or a disk between two files of one checkpoint. So a thread that could
    continue must also have run since the state was first seen, unless each file is whole by itself. A task that was
    killed may have left any file half written, and closed: then only such a state counts, what was renamed into its
    place, and what TensorFlow declares complete.

    Args:
        baseline: Keys of the state of the newest snapshot.
    """

    def __init__(self, baseline: Keys) -> None:
        self.baseline = baseline
        self._seen: Optional[State] = None
        self._since = 0.0
        self._threads: Threads = {}  # when `_seen` was first seen
        self._settled_state: Optional[State] = (
            None  # the newest state that the task left unchanged although it could run
        )
        self._unfinished: Keys = {}  # of the newest state with a file that was not written to its end
        self._incomplete_counts: Dict[str, int] = {}  # how often each file was not
        self._starving: Optional[float] = None  # since when
        self._is_starving = False
        self._due: Optional[float] = None

    def is_due(self, state: Optional[State], moved: FrozenSet[str], now: float, threads: Threads) -> bool:
        """Return True if a snapshot of `state` is due; `state` was seen at `now` while the task was alive.

        Args:
            state: None where it was not complete, or the task had ended.
            moved: Paths that were renamed into their place, and not written to afterwards.
            now: In seconds.
            threads: Of the task, later than `state`.
        """
        self._due = None
        if state is None:
            return False
        keys = state.keys
        if self._seen is None or self._seen.keys != keys:
            self._is_starving = self._is_starving and now - self._since <= CALM_S
            self._seen, self._since, self._threads = state, now, threads
        if keys == self.baseline:
            self._starving = None
            return False
        if self._starving is None:
            self._starving = now
        self._is_starving = self._is_starving or now - self._starving >= STARVING_S
        could_continue = _could_continue(self._threads, threads)
        if could_continue and keys != self._unfinished:
            self._settled_state = state
        is_proven = self._is_proven(state, moved, {})
        self._due = self._since + self._quiet_s(state, is_proven=is_proven)
        return now >= self._due and (is_proven or could_continue)

    def to_check(self, state: State, moved: FrozenSet[str]) -> FrozenSet[str]:
        """Return the files of `state` whose format must show that they were written to their end."""
        if state.keys == self._unfinished:  # it was unchanged for a long time
            return frozenset()
        files = {
            entry.path for entry in state.entries if entry.kind is Kind.FILE and not _is_under(entry.path, moved)
        }
        return frozenset(
            files
            - state.declared_complete
            - {path for path, times in self._incomplete_counts.items() if times >= MAX_INCOMPLETE}
        )

    def unfinished(self, state: State, path: str) -> None:
        """Record that a file of `state` is incomplete."""
        self._unfinished = state.keys
        self._incomplete_counts[path] = self._incomplete_counts.get(path, 0) + 1
        if self._settled_state is not None and self._settled_state.keys == state.keys:
            self._settled_state = None

    def _quiet_s(self, state: State, *, is_proven: bool) -> float:
        if state.empty or state.keys == self._unfinished:
            return UNLIKELY_QUIET_S
        if self._is_starving:
            return 0.0 if is_proven else QUIET_PROVEN_S
        return QUIET_PROVEN_S if is_proven else QUIET_S

    def wait_s(self, now: float) -> Optional[float]:
        """Return the seconds until the next listing if no event occurs, or None."""
        return None if self._due is None else max(0.0, self._due - now)

    def last(self, state: Optional[State], moved: FrozenSet[str], *, is_orderly: bool) -> Optional[State]:
        """Return the state to take after the task has ended, or None.

        Args:
            state: What is there; None where it is not complete.
            moved: Paths that were renamed into their place, and not written to afterwards.
            is_orderly: The task ended by itself, so that every file is as it meant it to be.
        """
        if state is None or state.keys == self.baseline or (state.keys == self._unfinished and not is_orderly):
            return None
        seen = self._settled_state.keys if self._settled_state is not None else {}
        if is_orderly or (seen == state.keys and not state.empty):
            return state
        state = self._without_unnamed(state, {**self.baseline, **seen})
        return (
            state if state.keys != self.baseline and not state.empty and self._is_proven(state, moved, seen) else None
        )

    @staticmethod
    def _without_unnamed(state: State, before: Keys) -> State:
        """Leave out a checkpoint in progress, which no file `checkpoint` names yet."""
        old = {_prefix_of(path) for path in before}
        entries = [
            entry
            for entry in state.entries
            if entry.path in state.declared_complete
            or not _prefix_of(entry.path)
            or _prefix_of(entry.path) in old
            or os.path.dirname(entry.path) not in state.managed_directories
        ]
        return state._replace(entries=tuple(entries))

    def mark_taken(self, state: State) -> None:
        """Record that a snapshot of `state` was taken."""
        self.baseline = state.keys
        self._starving = self._due = None

    def _is_proven(self, state: State, moved: FrozenSet[str], seen: Keys) -> bool:
        keys = state.keys
        for entry in state.entries:
            is_proven = (
                entry.kind is not Kind.FILE or entry.path in state.declared_complete or _is_under(entry.path, moved)
            )
            if not is_proven and entry.key not in (self.baseline.get(entry.path), seen.get(entry.path)):
                return False
        before = {**self.baseline, **seen}
        missing = [path for path in before if path not in keys]
        managed_directories = [
            path for path in missing if _prefix_of(path) and os.path.dirname(path) in state.managed_directories
        ]
        # Who keeps the newest few removes at most as many as it added.
        return len(missing) - len(managed_directories) <= len([path for path in keys if path not in before])


def _could_continue(before: Threads, now: Threads) -> bool:
    """Return True if each thread has run since `before`, or waits for something other than a CPU or a disk."""
    none = Thread("", 0)
    return all(
        thread.state in _ASLEEP or thread.ticks - before.get(tid, none).ticks >= RAN_TICKS
        for tid, thread in now.items()
    )


def _is_under(path: str, moved: FrozenSet[str]) -> bool:
    while path:
        if path in moved:
            return True
        path = os.path.dirname(path)
    return False


# --- making a directory equal to a snapshot ------------------------------------------------------------------------


def is_equal(path_info: Optional[Item], item: Item) -> bool:
    """Return True if a path equals an item of a snapshot, by its size and time."""
    if path_info is None or path_info.kind is not item.kind:
        return False
    if item.kind is Kind.FILE:
        return path_info[2:5] == item[2:5]
    return item.kind is Kind.DIRECTORY or path_info.content == item.content


def replicated_keys(items: Sequence[Item], listing: Sequence[Item]) -> Keys:
    """Return the keys that a directory would have if it contained only `items`."""
    by_path = {entry.path: entry for entry in listing}
    return {item.path: by_path[item.path].key if is_equal(by_path.get(item.path), item) else item for item in items}


def surplus(listing: Sequence[Item], items: Sequence[Item]) -> List[Item]:
    """Return what must be removed before the directory can equal `items`, the contents of a directory first."""
    kinds = {item.path: item.kind for item in items}
    gone = [entry for entry in listing if kinds.get(entry.path) is not entry.kind]
    return sorted((entry for entry in gone if entry.path != "lost+found"), key=lambda entry: entry.path, reverse=True)


def replication_problem(live: str, store: str, home: str) -> str:
    """Return why a directory must not be replicated because it contains other files; empty if it may be.

    Args:
        live: The checkpoint directory, absolute, with links resolved.
        store: Where the task's snapshots are.
        home: The user's home directory.
    """
    task = os.path.dirname(store)
    for owner, path in (("job's own", store), ("task's", os.path.join(task, "src")), ("user's", home)):
        if contains(live, path):
            return (
                f"the checkpoint directory {live} holds the {owner} files: give checkpoints a directory of their own"
            )
    if contains(store, live):
        return f"the checkpoint directory {live} lies within the job's own files"
    return ""


# --- which directory it is -----------------------------------------------------------------------------------------


def identity(mountinfo: str, path: str, boot: str, device: int, inode: int, rest: str) -> str:
    """Return an ID of a directory that is unique across hosts, and equal if two hosts share it.

    Args:
        mountinfo: Text of /proc/self/mountinfo; format: proc(5).
        path: The nearest directory that exists, absolute, with links resolved.
        boot: Identifies this start of this computer.
        device: Number of the device that holds `path`.
        inode: Number of `path` on it.
        rest: What is missing from `path` to the directory.
    """
    mount = mount_of(mountinfo, path)
    if mount is not None and _is_network(mount):
        within = os.path.normpath(mount.root + "/" + os.path.relpath(path, mount.point) + "/" + rest)
        return f"{mount.source.rstrip('/')}:{within}" if ":" not in mount.source else _joined(mount.source, within)
    return f"{boot}:{device}:{inode}:{rest}"


def _is_network(mount: Mount) -> bool:
    if mount.kind == "9p":  # otherwise its source is a tag that is not unique
        return "trans=tcp" in mount.options.split(",")
    return mount.kind in _NETWORK and not mount.source.startswith(_HERE)


def _joined(source: str, within: str) -> str:
    host, _, path = source.rpartition(":")
    return f"{host}:{os.path.normpath(path + '/' + within)}"
