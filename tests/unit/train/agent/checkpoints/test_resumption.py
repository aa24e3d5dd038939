"""The checkpoint of an ended job, for a job that continues from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from train.agent.checkpoints.formats import complete_state
from train.agent.checkpoints.resumption import copy_checkpoint, held_checkpoint
from train.agent.checkpoints.store import SnapshotStore, newest_stored, read_listing, take_snapshot
from train.agent.files.journal import write_job
from train.agent.files.paths import HostPaths, TaskPaths
from train.agent.protocol.records import HeldCheckpoint, Resumption


@pytest.fixture
def host(tmp_path: Path) -> HostPaths:
    return HostPaths(str(tmp_path / "fleet"))


def ended(host: HostPaths, *, members: int = 1, mib_s: float = 100.0, directory: str = "") -> TaskPaths:
    """Write an ended job of a slot, with a file in its checkpoint directory."""
    paths = host.task("old", "worker-0")
    Path(paths.checkpoints).mkdir(parents=True)
    Path(paths.checkpoints, "weights.h5").write_bytes(b"weights")
    slots = [{"slot": f"worker-{at}", "task": f"worker-{at}"} for at in range(members)]
    write_job(paths, {"slot": "worker-0", "members": slots, "replication": {"directory": directory, "mib_s": mib_s}})
    return paths


def replicate(paths: TaskPaths, attempt: int) -> None:
    state = complete_state(read_listing(paths.checkpoints))
    assert state is not None
    assert take_snapshot(SnapshotStore(paths.replica), "worker-0", attempt, state)


def test_the_newest_snapshot_is_found_and_copied(host: HostPaths) -> None:
    paths = ended(host, members=2)
    assert held_checkpoint(paths) is None  # a directory of one of several tasks proves nothing
    replicate(paths, 2)
    Path(paths.checkpoints, "weights.h5").write_bytes(b"newer weights")
    replicate(paths, 3)
    Path(paths.replica, "making-1").mkdir()
    assert held_checkpoint(paths) == HeldCheckpoint(3, 1, "weights.h5")

    target = host.task("new", "worker-1")
    copy_checkpoint(host, Resumption("old", 2, 1), target)
    assert newest_stored(target.replica) is None  # this host holds another one
    copy_checkpoint(host, Resumption("old", 3, 1), target)
    copied = newest_stored(target.replica)
    assert copied is not None
    assert Path(copied.path(0)).read_bytes() == b"newer weights"
    assert SnapshotStore(target.replica).held == copied.manifest.snapshot
    assert Path(paths.replica, "making-1").is_dir()  # nothing of the earlier job was changed


def test_the_directory_of_a_single_task_is_found_and_copied(host: HostPaths) -> None:
    paths = ended(host)
    assert held_checkpoint(paths) == HeldCheckpoint(1, 1, "weights.h5")
    target = HostPaths(f"{host.root}/slot-1", host.root).task("new", "worker-1")
    copy_checkpoint(HostPaths(f"{host.root}/slot-1", host.root), Resumption("old", 1, 1), target)
    copied = newest_stored(target.replica)
    assert copied is not None
    assert Path(copied.path(0)).read_bytes() == b"weights"
    assert not Path(paths.replica).exists()


def test_a_job_without_a_complete_checkpoint(host: HostPaths) -> None:
    paths = ended(host)
    Path(paths.checkpoints, "weights.h5").unlink()
    assert held_checkpoint(paths) is None
    copy_checkpoint(host, Resumption("../old", 1, 1), host.task("new", "worker-0"))
    assert not Path(host.task("new", "worker-0").replica).exists()


@pytest.mark.parametrize(("mib_s", "directory"), [(0.0, ""), (100.0, "gs://bucket/x"), (100.0, ".")])
def test_checkpoints_that_are_not_replicated_are_not_found(host: HostPaths, mib_s: float, directory: str) -> None:
    assert held_checkpoint(ended(host, mib_s=mib_s, directory=directory)) is None
