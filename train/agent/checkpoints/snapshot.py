"""Snapshots of checkpoint directories and their manifests, without reading or writing files.

A *snapshot* is a copy of a complete state of a checkpoint directory, numbered within its attempt. Its *manifest*
lists its content, and snapshots with one digest are equal.
"""

from __future__ import annotations

import hashlib
import json
import os
from enum import Enum
from typing import TYPE_CHECKING, Any, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from train.agent.files.disk import contains, mount_of
from train.agent.files.paths import is_inner_link, is_inner_path
from train.agent.protocol.records import build, to_dict
from train.agent.protocol.strict_json import parse_json

if TYPE_CHECKING:
    from typing import TypeAlias

    from train.agent.files.disk import Mount

    Keys: TypeAlias = "Mapping[str, Tuple[Any, ...]]"  # PathItem.key of each path

MOST_ENTRIES = 100_000
MODES = 0o777  # what is kept of a file's mode

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
    """Return True if `snapshot` was taken after `other`."""
    return other is None or (snapshot.attempt, snapshot.number) > (other.attempt, other.number)


def newest(*held: Optional[Snapshot]) -> Optional[Snapshot]:
    """Return the newest of several snapshots, or None."""
    snapshots = [snapshot for snapshot in held if snapshot is not None]
    return max(snapshots, key=lambda snapshot: (snapshot.attempt, snapshot.number), default=None)


class PathKind(str, Enum):
    """Type of a path."""

    FILE = "file"
    DIRECTORY = "directory"
    LINK = "link"
    OTHER = "other"  # a socket, a pipe, a device: no part of a checkpoint


class PathItem(NamedTuple):
    """One path of a snapshot or of a listing, relative to the checkpoint directory, with forward slashes."""

    path: str
    kind: PathKind
    mode: int
    size: int = 0
    mtime_ns: int = 0
    content: str = ""  # SHA-256 of a file of a snapshot, target of a link

    @property
    def key(self) -> Tuple[Any, ...]:
        """Return a value that changes whenever the file of a listing does; constant for a directory."""
        return (self.kind,) if self.kind is PathKind.DIRECTORY else self[1:]


class SnapshotManifest(NamedTuple):
    """Content of a snapshot."""

    snapshot: Snapshot
    slot: str  # whose checkpoint directory it was taken from
    origin: str  # identity of that directory
    items: List[PathItem]

    @property
    def files(self) -> List[Tuple[int, PathItem]]:
        """Return the files, each with its index among the items."""
        return [(number, item) for number, item in enumerate(self.items) if item.kind is PathKind.FILE]


def digest_of(items: Sequence[PathItem]) -> str:
    """Return a hash of the content of a snapshot, independent of its time."""
    text = json.dumps([[item.path, item.kind.value, item.mode, item.size, item.content] for item in items])
    return hashlib.sha256(text.encode()).hexdigest()


def encode_manifest(manifest: SnapshotManifest) -> bytes:
    """Return a manifest as JSON."""
    return json.dumps(to_dict(manifest), separators=(",", ":")).encode()


def decode_manifest(data: bytes) -> SnapshotManifest:
    """Return the manifest in JSON of `encode_manifest`.

    Raises:
        ValueError: it is none, or one that would write elsewhere than in the directory it is for.
    """
    manifest: SnapshotManifest = build(SnapshotManifest, parse_json(data))
    items = manifest.items
    if len(items) > MOST_ENTRIES:
        raise ValueError(f"a manifest of more than {MOST_ENTRIES} paths")
    if digest_of(items) != manifest.snapshot.digest:
        raise ValueError("a manifest that does not fit its digest")
    directories = {item.path for item in items if item.kind is PathKind.DIRECTORY} | {""}
    for item in items:
        is_inner = is_inner_path(item.path) and os.path.dirname(item.path) in directories
        if not is_inner or item.kind is PathKind.OTHER:
            raise ValueError(f"a manifest with a path that leads elsewhere: {item.path!r}")
        if item.kind is PathKind.LINK and not is_inner_link(item.path, item.content):
            raise ValueError(f"a manifest with a link that leads elsewhere: {item.path!r}")
        if not 0 <= item.mode <= MODES or item.size < 0:
            raise ValueError(f"a manifest with an impossible mode or size: {item.path!r}")
    if len({item.path for item in items}) != len(items):
        raise ValueError("a manifest that names a path twice")
    return manifest


# --- making a directory equal to a snapshot ------------------------------------------------------------------------


def is_equal(path_info: Optional[PathItem], item: PathItem) -> bool:
    """Return True if a path equals an item of a snapshot, by its size and time."""
    if path_info is None or path_info.kind is not item.kind:
        return False
    if item.kind is PathKind.FILE:
        return path_info[2:5] == item[2:5]
    return item.kind is PathKind.DIRECTORY or path_info.content == item.content


def replicated_keys(items: Sequence[PathItem], listing: Sequence[PathItem]) -> Keys:
    """Return the keys that a directory would have if it contained only `items`."""
    by_path = {entry.path: entry for entry in listing}
    return {item.path: by_path[item.path].key if is_equal(by_path.get(item.path), item) else item for item in items}


def surplus(listing: Sequence[PathItem], items: Sequence[PathItem]) -> List[PathItem]:
    """Return what must be removed before the directory can equal `items`, the contents of a directory first."""
    kinds = {item.path: item.kind for item in items}
    gone = [entry for entry in listing if kinds.get(entry.path) is not entry.kind]
    return sorted((entry for entry in gone if entry.path != "lost+found"), key=lambda entry: entry.path, reverse=True)


def replication_problem(live: str, store: str) -> str:
    """Return why a directory must not be replicated because it contains other files; empty if it may be.

    Args:
        live: The checkpoint directory, absolute.
        store: Where the task's snapshots are.
    """
    live, store = os.path.realpath(live), os.path.realpath(store)
    source, home = os.path.join(os.path.dirname(store), "src"), os.path.expanduser("~")
    for owner, path in (("job's own", store), ("task's", source), ("user's", home)):
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
