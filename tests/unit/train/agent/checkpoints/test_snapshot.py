"""Snapshots: their manifests, and the directories that may be made equal to them."""

from __future__ import annotations

import pytest

from train.agent.checkpoints.snapshot import (
    PathItem,
    PathKind,
    Snapshot,
    SnapshotManifest,
    decode_manifest,
    digest_of,
    encode_manifest,
    identity,
    replicated_keys,
    replication_problem,
)


def files(*paths: str, mtime_ns: int = 1) -> list[PathItem]:
    return [PathItem(path, PathKind.FILE, 0o644, 1, mtime_ns) for path in paths]


def directory(path: str) -> PathItem:
    return PathItem(path, PathKind.DIRECTORY, 0o755)


ITEMS = [
    PathItem("checkpoint", PathKind.FILE, 0o644, 3, 5, "aa"),
    PathItem("sub", PathKind.DIRECTORY, 0o755),
    PathItem("sub/ü\udcff.h5", PathKind.FILE, 0o600, 1 << 40, 7, "bb"),
    PathItem("sub/last", PathKind.LINK, 0o777, content="../checkpoint"),
]
MANIFEST = SnapshotManifest(Snapshot(2, 5, digest_of(ITEMS)), "worker-0", "boot:1:2:", ITEMS)


def test_a_manifest_survives_its_way() -> None:
    assert decode_manifest(encode_manifest(MANIFEST)) == MANIFEST
    assert [number for number, _ in MANIFEST.files] == [0, 2]


def test_a_manifest_that_was_changed_is_refused() -> None:
    data = encode_manifest(MANIFEST)
    for damaged in (data.replace(b'"aa"', b'"ab"'), data[:-1], b"[]", b"{}", b"[1,2,3,4]", b"null"):
        with pytest.raises(ValueError):
            decode_manifest(damaged)


def test_files_that_equal_a_snapshot_are_not_new() -> None:
    items = [PathItem("a", PathKind.FILE, 0o644, 1, 1, "x"), PathItem("d", PathKind.DIRECTORY, 0o700)]
    same = [*files("a"), directory("d")]
    assert replicated_keys(items, same) == {entry.path: entry.key for entry in same}
    for other in ([*files("a", mtime_ns=2), directory("d")], []):
        assert replicated_keys(items, other) != {entry.path: entry.key for entry in other}


# --- directories ----------------------------------------------------------------------------------------------------

STORE = "/home/me/.fleet/jobs/j/worker-0/replica"


def test_only_a_directory_without_other_things_in_it_is_replicated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    task = "/home/me/.fleet/jobs/j/worker-0"
    for live in ("/", "/home", "/home/me", task, f"{task}/src", STORE + "/x"):
        assert "checkpoint directory" in replication_problem(live, STORE)
    for live in ("/tmp/backup", "/home/me/ckpt", f"{task}/src/ckpt", f"{task}/checkpoints"):
        assert replication_problem(live, STORE) == ""


MOUNTS = r"""
22 1 254:0 / / rw - ext4 /dev/vda rw
30 22 0:40 /export/home /home rw,relatime shared:1 - nfs4 filer:/export/home rw,vers=4.2
31 22 0:41 / /mnt/a\040b rw - cifs //filer/share rw
32 22 0:42 / /shared rw - 9p hostshare rw,trans=virtio
33 22 0:43 / /efs rw - nfs4 127.0.0.1:/ rw
34 22 0:44 / /bucket rw - fuse.gcsfuse my-bucket rw
35 22 0:45 / /n rw - nfs filer:/export rw
"""


def whose(path: str, boot: str = "boot", inode: int = 7) -> str:
    return identity(MOUNTS, path, boot, 3, inode, "new")


def test_a_network_directory_is_the_same_on_every_computer() -> None:
    for path in ("/home/x", "/mnt/a b/x", "/bucket/x"):
        assert whose(path, "one", 1) == whose(path, "two", 2)
    assert whose("/home/x") != whose("/home/y")
    assert len({whose(path) for path in ("/home/x", "/mnt/a b/x", "/bucket/x", "/x")}) == 4


def test_the_same_directory_through_two_mounts_is_one() -> None:
    nested = MOUNTS.replace("0:40 /export/home /home", "0:40 / /home")
    assert identity(nested, "/home/x", "a", 1, 1, "") == identity(MOUNTS, "/n/home/x", "b", 2, 2, "")


def test_a_local_directory_is_its_own_on_each_computer() -> None:
    for path in ("/tmp", "/shared/x", "/efs/x", "/homeless"):
        assert whose(path, "one") != whose(path, "two")
        assert whose(path, inode=1) != whose(path, inode=2)
        assert whose(path) == whose(path)
