"""Test that a job takes over only unchanged copies, and that no job sees the changes of another one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.agent.files.contents import Receiver, materialise, missing, object_path
from train.agent.files.copies import EarlierCopies, record_copies
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
    import mmap

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
