"""Test that checkpoints from other hosts write, remove, and link nothing outside the checkpoint directory."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from tests.process.train.agent.replicators import Yard
from train.agent.checkpoints.snapshot import (
    PathItem,
    PathKind,
    Snapshot,
    SnapshotManifest,
    decode_manifest,
    digest_of,
    encode_manifest,
)
from train.agent.checkpoints.store import StoredSnapshot, refresh, restore

WHEN = 10**18
CONTENT = b"ssh-ed25519 EVIL"


class Shop:
    """Snapshots as another host sends them, the checkpoint directory, and a directory outside it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._count = 0
        self.live = directory / "live"
        self.outside = directory / "outside"
        for path in (self.live, self.outside):
            path.mkdir()

    def snapshot(self, *items: PathItem) -> StoredSnapshot:
        self._count += 1
        named = Snapshot(1, self._count, digest_of(items))
        manifest = decode_manifest(encode_manifest(SnapshotManifest(named, "worker-0", "x", list(items))))
        directory = self._directory / f"snapshot-{self._count}"
        directory.mkdir()
        for number, item in manifest.files:
            path = directory / str(number)
            path.write_bytes(CONTENT)
            path.chmod(item.mode)
            os.utime(path, ns=(item.mtime_ns, item.mtime_ns))
        return StoredSnapshot(str(directory), manifest)


def directory(path: str) -> PathItem:
    return PathItem(path, PathKind.DIRECTORY, 0o755)


def file(path: str, mode: int = 0o644) -> PathItem:
    return PathItem(path, PathKind.FILE, mode, len(CONTENT), WHEN, sha256(CONTENT).hexdigest())


def link(path: str, target: str) -> PathItem:
    return PathItem(path, PathKind.LINK, 0o777, content=target)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


Bring = Callable[[Shop, StoredSnapshot, "StoredSnapshot | None"], None]


def bring_refreshed(shop: Shop, kept: StoredSnapshot, before: StoredSnapshot | None) -> None:
    refresh(str(shop.live), kept, before.manifest if before is not None else None)


def bring_restored(shop: Shop, kept: StoredSnapshot, before: StoredSnapshot | None) -> None:
    del before
    restore(str(shop.live), kept)


@pytest.fixture(params=[bring_refreshed, bring_restored], ids=["refresh", "restore"])
def bring(request: pytest.FixtureRequest) -> Bring:
    chosen: Bring = request.param
    return chosen


@pytest.mark.parametrize("order", [1, -1], ids=["directory first", "file first"])
def test_a_link_in_the_place_of_a_directory_is_replaced_and_not_followed(
    shop: Shop, bring: Bring, order: int
) -> None:
    (shop.live / "a").symlink_to(shop.outside)
    kept = shop.snapshot(*[directory("a"), directory("a/b"), file("a/b/keys")][::order])
    bring(shop, kept, None)
    assert list(shop.outside.iterdir()) == []
    assert not (shop.live / "a").is_symlink()
    assert (shop.live / "a" / "b" / "keys").read_bytes() == CONTENT


def test_a_link_in_the_place_of_a_file_is_replaced_and_not_followed(shop: Shop, bring: Bring) -> None:
    (shop.outside / "keys").write_text("mine")
    (shop.live / "a").symlink_to(shop.outside / "keys")
    bring(shop, shop.snapshot(file("a")), None)
    assert (shop.outside / "keys").read_text() == "mine"
    assert (shop.live / "a").read_bytes() == CONTENT


def test_nothing_is_removed_behind_a_link(shop: Shop, bring: Bring) -> None:
    (shop.outside / "keys").write_text("mine")
    before = shop.snapshot(directory("a"), file("a/keys"))
    (shop.live / "a").symlink_to(shop.outside)
    bring(shop, shop.snapshot(file("b")), before)
    assert (shop.outside / "keys").read_text() == "mine"


def test_a_directory_becomes_a_link_and_a_directory_again(shop: Shop, bring: Bring) -> None:
    first = shop.snapshot(directory("a"), file("a/x"), directory("b"), file("b/x"))
    second = shop.snapshot(link("a", "b"), directory("b"), file("b/x"))
    bring(shop, first, None)
    bring(shop, second, first)
    assert (shop.live / "a").is_symlink()
    assert (shop.live / "b" / "x").read_bytes() == CONTENT
    bring(shop, first, second)
    assert not (shop.live / "a").is_symlink()
    assert (shop.live / "a" / "x").read_bytes() == CONTENT


HOSTILE = {
    "absolute link": [link("a", "/etc")],
    "link above": [link("a", "../x")],
    "link above by a detour": [directory("d"), link("d/a", "x/../../../y")],
    "link to nothing": [link("a", "")],
    "path below a link": [link("a", "b"), file("a/x")],
    "path above": [file("../x")],
    "setuid": [file("a", 0o4755)],
    "time beyond 64 bits": [file("a")._replace(mtime_ns=1 << 70)],
    "negative size": [file("a")._replace(size=-1)],
    "half a character": [file("\ud800")],
    "zero byte": [file("a\0b")],
    "twice": [file("a"), file("a")],
}


@pytest.mark.parametrize("items", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_manifest_is_refused(items: list[PathItem]) -> None:
    data = encode_manifest(SnapshotManifest(Snapshot(1, 1, digest_of(items)), "worker-1", "x", items))
    with pytest.raises(ValueError, match=r"."):
        decode_manifest(data)


# --- snapshots that are sent to others ---


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    yard = Yard(tmp_path)
    yield yard
    yard.close()


def test_links_within_the_checkpoint_directory_and_plain_modes_travel(yard: Yard) -> None:
    chief, other = yard.host(), yard.host("worker-1")
    other.replicator.update_live(on=True)
    chief.write(("run/ckpt.h5", "one"))
    (chief.live / "run" / "ckpt.h5").chmod(0o4755)
    (chief.live / "latest").symlink_to(chief.live / "run")
    (chief.live / "run" / "same").symlink_to("ckpt.h5")
    other.fetch(chief.snapshot(), chief)
    assert (other.live / "latest").readlink() == Path("run")
    assert (other.live / "run" / "same").readlink() == Path("ckpt.h5")
    assert stat.S_IMODE((other.live / "run" / "ckpt.h5").stat().st_mode) == 0o755


def test_a_link_that_leads_out_is_named_and_nothing_is_copied(yard: Yard) -> None:
    chief = yard.host()
    chief.write(("ckpt.h5", "one"))
    (chief.live / "away").symlink_to("/etc")
    chief.settle(is_orderly=True)
    yard.until(lambda: any("the link away points outside" in note for note in chief.notes), "a note")
    assert chief.held is None
