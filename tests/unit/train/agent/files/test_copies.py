"""Test that a job takes over only unchanged copies, and that no job sees the changes of another one."""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.agent.files.contents import Receiver, materialise, missing, object_path, prune_objects
from train.agent.files.copies import EarlierCopies, record_copies
from train.agent.files.mounts import mount_of, read_mounts
from train.agent.files.packs import PACKED_BYTES
from train.agent.files.paths import HostPaths, TaskPaths
from train.agent.protocol.records import Entry, EntryKind

CONTENT = b"large" * PACKED_BYTES
DIGEST = sha256(CONTENT).hexdigest()
ENTRY = Entry("data/large.bin", EntryKind.FILE, 0o640, len(CONTENT), DIGEST)


class Host:
    """A host whose jobs upload the same large file, one after the other."""

    def __init__(self, root: Path) -> None:
        self.paths = HostPaths(str(root))
        self.jobs: list[TaskPaths] = []
        self.expected: dict[Path, bytes] = {}
        receiver = Receiver(self.paths.store, [(DIGEST, len(CONTENT))])
        receiver.feed(CONTENT)
        receiver.close()

    def run(self, change: Callable[[Path], object] = lambda _path: None) -> Path:
        """Run a job that changes its copy of the file; return its path."""
        assert missing(self.paths.store, [ENTRY]).objects == []
        copies = EarlierCopies(self.paths.store, reversed(self.jobs), [ENTRY])
        task = self.paths.task(f"job-{len(self.jobs)}", "worker-0")
        materialise(self.paths.store, [ENTRY], task.source, copies.take)
        record_copies(task, [ENTRY])
        path = Path(task.source) / ENTRY.path
        assert path.read_bytes() == CONTENT
        assert path.stat().st_mode & 0o777 == ENTRY.mode
        change(path)
        self.jobs.append(task)
        if path.exists():
            self.expected[path] = path.read_bytes()
        self.check()
        return path

    def check(self) -> None:
        assert all(path.read_bytes() == content for path, content in self.expected.items())
        assert Path(object_path(self.paths.store, DIGEST)).read_bytes() == CONTENT


def is_link(path: Path, host: Host) -> bool:
    return path.samefile(object_path(host.paths.store, DIGEST))


def write_in_place(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"LARGE")


def restore_time(path: Path) -> None:
    """Change the content, but neither the size nor the time of change."""
    times = path.stat()
    write_in_place(path)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def replace(path: Path) -> None:
    """Replace the file by another one with the same size and time of change."""
    times = path.stat()
    other = path.with_name("other")
    other.write_bytes(CONTENT[::-1])
    os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
    other.replace(path)


def link_elsewhere(path: Path) -> None:
    """Keep a second name, through which the file could be changed later."""
    path.parent.parent.joinpath("output").hardlink_to(path)


def change_mapped(path: Path) -> None:
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        memory[:5] = b"LARGE"


CHANGES = [write_in_place, restore_time, replace, link_elsewhere, change_mapped, Path.unlink]


def test_an_unchanged_copy_moves_and_its_job_keeps_a_link(tmp_path: Path) -> None:
    host = Host(tmp_path)
    first = host.run()
    inode = first.stat().st_ino
    second = host.run()
    assert second.stat().st_ino == inode
    assert is_link(first, host)
    write_in_place(second)
    assert first.read_bytes() == CONTENT


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_copy_stays_in_its_job(tmp_path: Path, change: Callable[[Path], None]) -> None:
    host = Host(tmp_path)
    first = host.run(change)
    inode = first.stat().st_ino if first.exists() else 0
    assert host.run().stat().st_ino != inode
    host.check()


def test_a_copy_that_a_process_may_write_to_stays(tmp_path: Path) -> None:
    host = Host(tmp_path)
    first = host.run()
    with first.open("r+b") as file:
        second = host.run()
        file.write(b"LARGE")
    assert second.read_bytes() == CONTENT
    assert first.read_bytes() != CONTENT


def test_a_change_without_a_trace_is_found() -> None:
    """On tmpfs, a write through a mapping of which the page was read before changes no time."""
    mount = mount_of(read_mounts(), "/dev/shm")
    if mount is None or mount.kind != "tmpfs" or not os.access("/dev/shm", os.W_OK):
        pytest.skip("this computer has no tmpfs")

    def change(path: Path) -> None:
        settle(host, path)
        before = path.stat()
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
            assert memory[:1] == b"l"
            memory[:1] = b"L"
        after = path.stat()
        assert (before.st_mtime_ns, before.st_ctime_ns) == (after.st_mtime_ns, after.st_ctime_ns)

    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        host = Host(Path(name))
        first = host.run(change)
        second = host.run()
        assert first.read_bytes() != second.read_bytes() == CONTENT


def settle(host: Host, path: Path) -> None:
    """Make the record of a copy that has just been made look older than its time shows."""
    task = host.paths.task(f"job-{len(host.jobs)}", "worker-0")
    os.utime(task.copies, ns=(0, path.stat().st_ctime_ns + 1))


def test_a_file_that_a_job_moved_out_of_its_directory_is_not_changed(tmp_path: Path) -> None:
    host = Host(tmp_path / "root")
    first = host.run()
    outside = tmp_path / "outside"
    first.parent.rename(outside)
    first.parent.symlink_to(outside)
    before = (outside / first.name).stat()
    host.run()
    after = (outside / first.name).stat()
    assert (after.st_ino, after.st_mode, after.st_mtime_ns) == (before.st_ino, before.st_mode, before.st_mtime_ns)


class KilledError(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("calls", range(3))
def test_no_file_disappears_if_the_agent_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    host = Host(tmp_path)
    first = host.run()
    left = [None] * calls

    def kill_after(call: Callable[..., None]) -> Callable[..., None]:
        def made(*args: str) -> None:
            if not left:
                raise KilledError
            left.pop()
            call(*args)

        return made

    with monkeypatch.context() as patch:
        for name in ("link", "rename"):
            patch.setattr(os, name, kill_after(getattr(os, name)))
        with pytest.raises(KilledError):
            host.run()
    assert first.read_bytes() == CONTENT
    shutil.rmtree(host.paths.task("job-1", "worker-0").directory)
    prune_objects(host.paths.store, {DIGEST})
    assert [path.name for path in Path(host.paths.store).iterdir()] == [DIGEST[:2]]
    host.run(write_in_place)
    host.run()


def test_a_job_that_is_deleted_meanwhile_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(tmp_path)
    first = host.run()
    rename = os.rename

    def delete_first(source: str, target: str) -> None:
        host.expected.pop(first, None)
        shutil.rmtree(host.jobs[0].directory)
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", delete_first)
        assert host.run().read_bytes() == CONTENT
    assert not first.exists()


def test_a_change_in_the_tick_of_the_record_is_found(tmp_path: Path) -> None:
    host = Host(tmp_path)
    first = host.run()
    copy = host.jobs[0]
    write_in_place(first)
    host.expected[first] = first.read_bytes()
    record_copies(copy, [ENTRY])  # as if the change had the time of the placement
    os.utime(copy.copies, ns=(0, first.stat().st_ctime_ns))
    assert host.run().read_bytes() == CONTENT


@pytest.mark.parametrize("record", [b"", b"[]", b'{"copies": 3}', b'{"copies": [[1]]}', b'{"copies": [1]}'])
def test_a_broken_record_names_no_copies(tmp_path: Path, record: bytes) -> None:
    host = Host(tmp_path)
    first = host.run()
    Path(host.jobs[0].copies).write_bytes(record)
    assert host.run().stat().st_ino != first.stat().st_ino


@given(st.lists(st.sampled_from([None, None, *CHANGES]), min_size=2, max_size=6), st.data())
def test_every_job_starts_with_what_was_uploaded(
    changes: list[Callable[[Path], None] | None], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as name:
        host = Host(Path(name))
        for change in changes:
            host.run(change or (lambda _path: None))
            later = data.draw(st.sampled_from([None, *(path for path in host.expected if not is_link(path, host))]))
            if later is not None:  # a user changes a file of an ended job
                write_in_place(later)
                host.expected[later] = later.read_bytes()
        host.check()
