"""Test that a cached hash is never that of an earlier content, on a simulated disk with a coarse clock."""

from __future__ import annotations

import os
import tempfile
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.remote import hashes
from fleet.remote.hashes import HashCache

FILE = "/data/file"


class Disk:
    """One file, on a file system whose clock has a resolution."""

    def __init__(self, resolution_ns: int) -> None:
        self.resolution_ns = resolution_ns
        self.now_ns = 1_700_000_000_123_456_789
        self.inode, self.mtime_ns = 1, 0
        self.write(b"aaaa")

    def write(self, content: bytes, keeps_mtime: bool = False, is_renamed: bool = False) -> None:
        """Write another content; with the old modification time as cp -p and tar do, or by renaming another file."""
        self.content, self.ctime_ns = content, self.now_ns // self.resolution_ns * self.resolution_ns
        self.mtime_ns = self.mtime_ns if keeps_mtime else self.ctime_ns
        self.inode = 3 - self.inode if is_renamed else self.inode

    def stat(self) -> os.stat_result:
        size = len(self.content)
        seconds = (0, self.mtime_ns // 10**9, self.ctime_ns // 10**9)
        named = {"st_mtime_ns": self.mtime_ns, "st_ctime_ns": self.ctime_ns}
        return os.stat_result((0o100644, self.inode, 1, 1, 0, 0, size, *seconds), named)

    def hash_file(self, _path: str) -> tuple[str, int]:
        return sha256(self.content).hexdigest(), len(self.content)


CHANGES = st.one_of(
    st.tuples(st.sampled_from([b"aaaa", b"bbbb", b"cccccc"]), st.booleans(), st.booleans()),  # write
    st.sampled_from([0, 1, 5 * 10**6, 999_999_999, 10**9, 3 * 10**9]),  # wait
    st.none(),  # scan
)


@given(resolution_ns=st.sampled_from([1, 4 * 10**6, 10**9]), changes=st.lists(CHANGES, max_size=30))
def test_a_changed_file_is_never_taken_for_unchanged(
    resolution_ns: int, changes: list[tuple[bytes, bool, bool] | int | None]
) -> None:
    disk = Disk(resolution_ns)
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        cache = Path(name) / "hashes.json"
        patch.setattr(hashes, "Path", lambda _path: disk)
        patch.setattr(hashes, "hash_file", disk.hash_file)
        patch.setattr("time.time_ns", lambda: disk.now_ns)
        for change in [*changes, None]:
            if isinstance(change, tuple):
                disk.write(*change)
            elif isinstance(change, int):
                disk.now_ns += change
            else:
                used = HashCache(cache)
                assert used.hash(FILE) == disk.hash_file(FILE)
                used.save()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"x": 3}', b"\xff\xfe"])
def test_an_old_file_is_read_once_and_a_broken_cache_is_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    file, path = tmp_path / "file", tmp_path / "hashes.json"
    file.write_bytes(b"content")
    path.write_bytes(content)
    monkeypatch.setattr(hashes, "SETTLED_NS", -1)
    cache = HashCache(path)
    first = cache.hash(str(file))
    cache.save()
    monkeypatch.setattr(hashes, "hash_file", lambda _path: pytest.fail("it was read again"))
    assert HashCache(path).hash(str(file)) == first
