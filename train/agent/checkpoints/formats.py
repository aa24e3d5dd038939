"""Decide which state of a checkpoint directory is complete, by the names and the formats of its files.

A *state* is the content of the directory at one moment, without files in progress. A script can continue from it if
TensorFlow or Keras declares it complete, or if the directory was at rest. Only the first is decided here.

TensorFlow saves ``ckpt-4`` as ``ckpt-4.index`` and ``ckpt-4.data-00000-of-00001`` …: it writes data under another
name and renames it, but writes an index in place, and last replaces the file ``checkpoint``, which names the newest.
Source: tensorflow/core/util/tensor_bundle, tensorflow/python/checkpoint/checkpoint_management.py.

``BackupAndRestore`` of Keras 3 copies the previous files to ``.bkp``, and then writes ``latest.weights.h5`` and last
``training_metadata.json``, each in place. Source: keras/src/callbacks/backup_and_restore.py.
"""

from __future__ import annotations

import json
import os
import re
from typing import (
    TYPE_CHECKING,
    Dict,
    FrozenSet,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
)

from train.agent.checkpoints.snapshot import PathItem, PathKind
from train.agent.files.disk import unescape

if TYPE_CHECKING:
    from train.agent.checkpoints.snapshot import Keys

STATE_FILE = "checkpoint"
BACKUP_METADATA = "training_metadata.json"
_BACKUP_WEIGHTS = "latest.weights.h5"
_BACKUP = (_BACKUP_WEIGHTS, _BACKUP_WEIGHTS + ".bkp", BACKUP_METADATA + ".bkp")

_DATA = re.compile(r"^(?P<prefix>.+)\.data-\d{5}-of-(?P<count>\d{5})$")
_INDEX = ".index"
_FIELD = re.compile(r'^\s*(model_checkpoint_path|all_model_checkpoint_paths)\s*:\s*"((?:[^"\\]|\\.)*)"', re.MULTILINE)
_EVENTS = re.compile(r"(?:^|/)events\.out\.tfevents\.[^/]*$")
_IGNORED = re.compile(r"(?:^|/)(?:workertemp_\d+|lost\+found|\.nfs[0-9a-f]{8,}|\.fleet-[^/]*)(?:/|$)")
_TEMPORARY = re.compile(
    r"(?:^|/)(?:[^/]*_temp|[^/]*\.tempstate\d+|checkpoint\.tmp[^/]*|tmp[a-z0-9_]{8}|[^/]*\.orbax-checkpoint-tmp[^/]*"
    r"|[^/]+?(?:\.tmp(?:[._-][^/]*|[0-9a-fA-F]*)|\.temp|\.part|\.partial|\.swp|~))(?:/|$)"
)


class DirectoryListing(NamedTuple):
    """Content of a checkpoint directory at one moment, without files that are never part of a checkpoint."""

    directory: str
    entries: Sequence[PathItem]
    texts: Mapping[str, str]  # of each file that names a checkpoint or ends one


class State(NamedTuple):
    """Content of a checkpoint directory without files in progress."""

    directory: str
    entries: Tuple[PathItem, ...]
    declared_complete: FrozenSet[str]  # paths that TensorFlow or Keras declares complete
    managed_directories: FrozenSet[str]  # directories in which it does so

    @property
    def keys(self) -> Keys:
        """Return the keys of all paths."""
        return {entry.path: entry.key for entry in self.entries}

    @property
    def empty(self) -> bool:
        """Return True if it has no files."""
        return all(entry.kind is PathKind.DIRECTORY for entry in self.entries)

    def declared_part(self, baseline: Keys) -> Optional[State]:
        """Return the state without checkpoints that TensorFlow has not named yet.

        Args:
            baseline: Keys of a state that was complete.

        Returns:
            None if any other file has changed since: it may be in progress.
        """
        files = [entry for entry in self.entries if entry.kind is not PathKind.DIRECTORY]
        changed = {entry.path for entry in files if baseline.get(entry.path) != entry.key}
        undeclared = changed - self.declared_complete
        missing = set(baseline) - set(self.keys)
        if any(not self._is_managed(path) for path in undeclared | missing):
            return None
        return self._replace(entries=tuple(entry for entry in self.entries if entry.path not in undeclared))

    def _is_managed(self, path: str) -> bool:
        return bool(prefix_of(path)) and os.path.dirname(path) in self.managed_directories


def is_ignored(path: str) -> bool:
    """Return True if a path is never part of a checkpoint: of another worker, the file system, `fleet`, or a log."""
    return bool(_IGNORED.search(path)) or is_event_file(path)


def is_event_file(path: str) -> bool:
    """Return True for a log of TensorBoard, which stays open while a script runs and belongs to one host."""
    return bool(_EVENTS.search(path))


def is_data(path: str) -> bool:
    """Return True if TensorFlow never changes this file again."""
    return _DATA.match(path) is not None


def prefix_of(path: str) -> str:
    """Return the name of the TensorFlow checkpoint to which a file belongs; empty if it belongs to none."""
    data = _DATA.match(path)
    if data:
        return data["prefix"]
    return path[: -len(_INDEX)] if path.endswith(_INDEX) else ""


def checkpoint_name(items: Sequence[PathItem]) -> str:
    """Return the name of the newest checkpoint among `items`: the TensorFlow prefix, or else the path of the file.

    Returns an empty string if the file does not exist.
    """
    files = [item for item in items if item.kind is PathKind.FILE]
    # TensorFlow's index file `checkpoint` is written after the checkpoint that it names.
    named = [item for item in files if os.path.basename(item.path) != STATE_FILE] or files
    last = max(named, key=lambda item: (item.mtime_ns, item.path), default=None)
    return (prefix_of(last.path) or last.path) if last is not None else ""


def named_checkpoints(text: str) -> List[str]:
    """Return the prefixes in a file `checkpoint`, the newest first; empty if the file is invalid."""
    newest: List[str] = []
    others: List[str] = []
    for field, value in _FIELD.findall(text):
        (newest if field == "model_checkpoint_path" else others).append(unescape(value))
    return list(dict.fromkeys([*newest[-1:], *others])) if newest else []


def complete_state(listing: DirectoryListing) -> Optional[State]:
    """Return the state of a listing; None if a TensorFlow checkpoint that it must have lacks a file."""
    kept = [
        entry for entry in listing.entries if not _TEMPORARY.search(entry.path) and entry.kind is not PathKind.OTHER
    ]
    paths = {entry.path for entry in kept if entry.kind is PathKind.FILE}
    directories = {entry.path for entry in listing.entries if entry.kind is PathKind.DIRECTORY}
    incomplete = _incomplete_checkpoints(paths, directories)
    declared: Set[str] = set()
    managed: Set[str] = set()
    for path in paths & set(listing.texts):
        if os.path.basename(path) == BACKUP_METADATA:
            declared.update(_complete_backup(path, listing))
            continue
        names = _read_named_checkpoints(listing, path)
        if not names:
            continue
        if names[0] in incomplete or names[0] + _INDEX not in paths:
            return None
        declared.update(names, [path])
        managed.add(os.path.dirname(path))
    # An index without data may belong to something other than a checkpoint.
    partial = {prefix for prefix, shards in incomplete.items() if shards or os.path.dirname(prefix) in managed}
    # Where TensorFlow names its checkpoints, one that lacks a file is the next one, or an old one.
    if any(os.path.dirname(prefix) not in managed and prefix not in declared for prefix in partial):
        return None
    kept = [entry for entry in kept if prefix_of(entry.path) not in partial]
    complete = frozenset(entry.path for entry in kept if entry.path in declared or prefix_of(entry.path) in declared)
    return State(listing.directory, tuple(sorted(kept)), complete, frozenset(managed))


def _incomplete_checkpoints(paths: Set[str], directories: Set[str]) -> Dict[str, Set[int]]:
    """Return the prefixes of which a file is missing or being written, each with its numbers of shards."""
    checkpoints: Dict[str, Set[int]] = {}
    for path in filter(prefix_of, paths):
        totals = checkpoints.setdefault(prefix_of(path), set())
        data = _DATA.match(path)
        if data:
            totals.add(int(data["count"]))
    return {
        prefix: totals
        for prefix, totals in checkpoints.items()
        if not totals
        or prefix + _INDEX not in paths
        or f"{prefix}_temp" in directories
        or any(f"{prefix}.data-{n:05}-of-{total:05}" not in paths for total in totals for n in range(total))
    }


def _complete_backup(metadata: str, listing: DirectoryListing) -> Set[str]:
    """Return the files of a backup of Keras 3; empty if a file is newer than the metadata, which are written last."""
    directory = os.path.dirname(metadata)
    names = {os.path.join(directory, name) for name in (BACKUP_METADATA, *_BACKUP)}
    written_at = {entry.path: entry.mtime_ns for entry in listing.entries if entry.path in names}
    try:
        json.loads(listing.texts[metadata])
    except ValueError:
        return set()
    has_weights = os.path.join(directory, _BACKUP_WEIGHTS) in written_at
    return set(written_at) if has_weights and written_at[metadata] == max(written_at.values()) else set()


def _read_named_checkpoints(listing: DirectoryListing, path: str) -> List[str]:
    """Return the prefixes inside the directory that a file `checkpoint` names, the newest first."""
    prefixes = []
    for name in named_checkpoints(listing.texts[path]):
        full = os.path.normpath(os.path.join(listing.directory, os.path.dirname(path), name))
        if full.startswith(listing.directory.rstrip("/") + "/"):
            prefixes.append(os.path.relpath(full, listing.directory))
    return prefixes
