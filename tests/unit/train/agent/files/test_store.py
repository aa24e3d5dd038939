from __future__ import annotations

import contextlib
import os
import random
import shutil
from hashlib import sha256
from pathlib import Path

import pytest

from tests.process.train.agent.hosts import Bundle, stored_contents
from train.agent.files.contents import (
    Receiver,
    bytes_needed,
    check_entries,
    materialise,
    missing,
    object_path,
    prune_objects,
)
from train.agent.files.disk import remove_tree
from train.agent.protocol.errors import RefusedError
from train.agent.protocol.records import Entry, EntryKind, Refusal

HASH = "a" * 64


def file(path: str, kind: EntryKind = EntryKind.FILE, **fields: object) -> Entry:
    values = {"sha256": HASH, "size": 1, **fields}
    return Entry(path, kind, **values)  # type: ignore[arg-type]


def link(path: str, target: str) -> Entry:
    return Entry(path, EntryKind.LINK, target=target)


@pytest.mark.parametrize(
    "entries",
    [
        [file("/etc/passwd")],
        [file("../x")],
        [file("a/../../x")],
        [file("a//b")],
        [file("./a")],
        [file("")],
        [file("a\0b")],
        [file("a"), file("a")],
        [file("a"), file("a/b")],
        [link("a", "/etc")],
        [link("a", "..")],
        [link("a/b", "../../x")],
        [link("a", "b/../../x")],
        [link("a", "b/..")],
        [link("a", "")],
        [link("a", "b"), file("a/x")],
        [file("a", sha256="short")],
        [file("a", sha256="../" * 20)],
        [file("a", size=-1)],
        [file("a"), file("b", size=2)],
    ],
)
def test_entries_that_leave_the_directory_or_contradict_each_other_are_refused(entries: list[Entry]) -> None:
    with pytest.raises(RefusedError) as caught:
        check_entries(entries)
    assert caught.value.record.kind is Refusal.REQUEST


def receive(store: Path, bundle: Bundle, data: bytes) -> None:
    want = missing(str(store), bundle.entries)
    sizes = {entry.sha256: entry.size for entry in bundle.entries}
    expected = [(digest, sizes[digest]) for digest in want.objects]
    receiver = Receiver(str(store), expected)
    try:
        for start in range(0, len(data), 3):
            receiver.feed(data[start : start + 3])
        receiver.finish()
    finally:
        receiver.close()


def stream(bundle: Bundle, store: Path) -> bytes:
    return b"".join(bundle.contents[digest] for digest in missing(str(store), bundle.entries).objects)


@pytest.fixture
def bundle() -> Bundle:
    made = Bundle("print(1)")
    made.add("empty", b"")
    made.add("tool", b"#!/bin/sh\n", mode=0o755)
    made.add("again", b"print(1)")
    made.add("data/big", b"0123456789" * 5000, EntryKind.DATA)
    made.entries.append(Entry("nothing", EntryKind.DIRECTORY, 0o755))
    made.entries.append(link("link", "data/big"))
    return made


def test_contents_arrive_once_and_make_the_directory(tmp_path: Path, bundle: Bundle) -> None:
    store, directory = tmp_path / "store", tmp_path / "src"
    want = missing(str(store), bundle.entries)
    assert len(want.objects) == 4
    assert want.size == 8 + 10 + 50000
    assert bytes_needed(bundle.entries, want) == want.size + 8 + 10 + 8
    receive(store, bundle, stream(bundle, store))
    assert missing(str(store), bundle.entries).objects == []
    (directory / "left").mkdir(parents=True)
    (directory / "left" / "over").touch()
    materialise(str(store), bundle.entries, str(directory))
    assert sorted(str(path.relative_to(directory)) for path in directory.rglob("*")) == [
        "again", "data", "data/big", "empty", "link", "nothing", "task.py", "tool",
    ]  # fmt: skip
    assert (directory / "tool").stat().st_mode & 0o777 == 0o755
    assert (directory / "task.py").read_text() == "print(1)"
    (directory / "task.py").write_text("changed by the task")
    assert (directory / "data/big").stat().st_nlink == 2
    assert (directory / "link").read_bytes() == b"0123456789" * 5000
    assert missing(str(store), bundle.entries).objects == []


def test_an_object_that_was_written_to_is_wanted_again(tmp_path: Path, bundle: Bundle) -> None:
    store = tmp_path / "store"
    receive(store, bundle, stream(bundle, store))
    digest = sha256(b"print(1)").hexdigest()
    path = Path(object_path(str(store), digest))
    assert path.stat().st_mode & 0o777 == 0o444
    path.chmod(0o644)
    path.write_bytes(b"print(2)")
    assert missing(str(store), bundle.entries).objects == [digest]
    receive(store, bundle, b"print(1)")
    assert path.read_bytes() == b"print(1)"


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data[:0],
        lambda data: b"x" + data,
        lambda data: data + b"more",
        lambda data: b"P" + data[1:],
    ],
)
def test_a_damaged_stream_is_refused_and_leaves_nothing_half_done(
    tmp_path: Path, bundle: Bundle, damage: object
) -> None:
    store = tmp_path / "store"
    assert callable(damage)
    with pytest.raises(RefusedError) as caught:
        receive(store, bundle, damage(stream(bundle, store)))
    assert caught.value.record.kind is Refusal.BUNDLE
    assert all(sha256(content).hexdigest() == digest for digest, content in stored_contents(store).items())
    assert not list(store.glob("*.new"))


def test_only_contents_that_are_named_stay(tmp_path: Path, bundle: Bundle) -> None:
    store = tmp_path / "store"
    receive(store, bundle, stream(bundle, store))
    (store / "broken.123.new").touch()
    keep = bundle.entries[0].sha256
    prune_objects(str(store), {keep})
    assert [*stored_contents(store)] == [keep]
    assert len([path for path in store.rglob("*") if path.is_file()]) == 1


def test_a_job_changes_neither_the_store_nor_the_files_of_another_job(tmp_path: Path) -> None:
    numbers = random.Random(13)
    store = tmp_path / "store"
    bundle = Bundle("print(1)")
    for size in (0, 10, (1 << 20) - 1, 1 << 20, (3 << 20) + 7):
        bundle.add(f"of {size}", numbers.randbytes(size))
    receive(store, bundle, stream(bundle, store))
    jobs = [tmp_path / str(number) for number in range(3)]
    expected: dict[Path, bytes] = {}
    for job in jobs:
        materialise(str(store), bundle.entries, str(job))
        expected |= {job / entry.path: bundle.contents[entry.sha256] for entry in bundle.entries}
    for path in numbers.choices(sorted(expected), k=12):
        at, written = numbers.randrange(2 << 20), numbers.randbytes(5)
        with path.open("r+b") as file:
            file.seek(at)
            file.write(written)
        expected[path] = expected[path][:at].ljust(at, b"\0") + written + expected[path][at + 5 :]
        assert missing(str(store), bundle.entries).objects == []
    assert all(path.read_bytes() == content for path, content in expected.items())
    assert stored_contents(store) == bundle.contents


def test_contents_that_came_before_the_end_are_kept(tmp_path: Path) -> None:
    store, bundle = tmp_path / "store", Bundle()
    for number in range(30):
        bundle.add(f"d{number % 7}/f{number}", f"{number}".encode() * number)
    data = stream(bundle, store)
    with pytest.raises(RefusedError):
        receive(store, bundle, data[: len(data) // 2])
    kept = stored_contents(store)
    assert 10 < len(kept) < 30
    assert all(bundle.contents[digest] == content for digest, content in kept.items())
    receive(store, bundle, stream(bundle, store))
    assert stored_contents(store) == bundle.contents


def test_a_directory_that_another_process_removes_too_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "job"
    (directory / "task/src").mkdir(parents=True)
    (directory / "result.json").touch()

    def remove_first(path: str) -> contextlib.AbstractContextManager[list[os.DirEntry[str]]]:
        monkeypatch.undo()
        with os.scandir(path) as listing:
            entries = list(listing)
        shutil.rmtree(path)
        return contextlib.nullcontext(entries)

    monkeypatch.setattr(os, "scandir", remove_first)
    remove_tree(str(directory))
    assert not directory.exists()
