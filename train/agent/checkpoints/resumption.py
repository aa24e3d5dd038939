"""The newest complete checkpoint of an ended job: find it on this host, and copy it for a new job."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Dict, Iterator, Optional

from train.agent.checkpoints.formats import State, checkpoint_name, complete_state
from train.agent.checkpoints.snapshot import replication_problem
from train.agent.checkpoints.store import (
    ChangedError,
    ReplicaError,
    SnapshotStore,
    StoredSnapshot,
    newest_stored,
    read_listing,
    take_snapshot,
)
from train.agent.files.disk import list_names, make_directory, remove_tree
from train.agent.files.journal import read_job
from train.agent.files.paths import HostPaths, TaskPaths
from train.agent.protocol.records import HeldCheckpoint, Resumption

_UNCOPIED = 1  # attempt and number of a checkpoint that was not replicated, because its job had one task


def held_checkpoint(paths: TaskPaths) -> Optional[HeldCheckpoint]:
    """Return the newest complete checkpoint of an ended job that the directory of a task holds; None: none."""
    stored = _replica(paths)
    if stored is not None:
        snapshot = stored.manifest.snapshot
        return HeldCheckpoint(snapshot.attempt, snapshot.number, checkpoint_name(stored.manifest.items))
    live = _live(paths)
    return HeldCheckpoint(_UNCOPIED, _UNCOPIED, checkpoint_name(live.entries)) if live is not None else None


def copy_checkpoint(host: HostPaths, wanted: Resumption, target: TaskPaths) -> None:
    """Make the checkpoint from which a job continues the newest snapshot of a new task, if this host holds it.

    Raises:
        ReplicaError: the disk is too small for it, or it cannot be copied.
        OSError: something cannot be read or written.
    """
    for paths in _tasks(host, wanted.job):
        held = held_checkpoint(paths)
        if held is None or (held.attempt, held.number) != (wanted.attempt, wanted.number):
            continue
        stored, live = _replica(paths), _live(paths)
        if stored is not None:
            _copy(stored, target.replica)
        elif live is not None:
            slot = str((read_job(paths) or {}).get("slot", ""))
            try:
                take_snapshot(SnapshotStore(target.replica), slot, _UNCOPIED, live)
            except ChangedError as error:
                raise ReplicaError(f"the checkpoint of job {wanted.job} changes while it is copied") from error
        return


def _tasks(host: HostPaths, job: str) -> Iterator[TaskPaths]:
    """Yield the tasks of a job in all slots of this host."""
    if job in ("", ".", "..") or "/" in job:
        return
    for slot in HostPaths(host.common).slots():
        for name in list_names(os.path.join(slot.jobs, job)):
            yield slot.task(job, name)


def _replica(paths: TaskPaths) -> Optional[StoredSnapshot]:
    stored = newest_stored(paths.replica)
    return stored if stored is not None and stored.manifest.files else None


def _live(paths: TaskPaths) -> Optional[State]:
    """Return the checkpoint directory of a job with one slot; None: it is a URL, is not complete, or is empty."""
    job: Dict[str, Any] = read_job(paths) or {}
    replication = job.get("replication") or {}
    given = str(replication.get("directory") or "")
    if len(job.get("members", [])) != 1 or not replication.get("mib_s") or "://" in given:
        return None
    directory = os.path.join(paths.source, os.path.expanduser(given)) if given else paths.checkpoints
    real = os.path.realpath(directory)
    if given and replication_problem(real, paths.replica):
        return None
    with contextlib.suppress(OSError, ReplicaError):
        state = complete_state(read_listing(real))
        return state if state is not None and not state.empty else None
    return None


def _copy(stored: StoredSnapshot, directory: str) -> None:
    """Copy a snapshot into an empty store; its files are never changed, so that hard links are enough."""
    import shutil  # no other job needs it

    make_directory(directory)
    target = os.path.join(directory, os.path.basename(stored.directory))
    try:
        shutil.copytree(stored.directory, target, copy_function=os.link)
    except (OSError, shutil.Error):  # another disk, or one without hard links
        remove_tree(target)
        shutil.copytree(stored.directory, target)
