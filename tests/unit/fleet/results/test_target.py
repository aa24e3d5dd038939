"""A directory that receives results: other files are not overwritten, and interrupted transfers continue."""

from __future__ import annotations

import os
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import pytest

from fleet.errors import NotReadyError, UsageError
from fleet.results.layout import Item
from fleet.results.target import Target, check_new, complete_tasks
from tests.next_steps import next_lines
from train.agent.protocol.records import Area, EntryKind, FileEntry


def item(path: str, data: bytes, **fields: object) -> Item:
    values: dict[str, object] = {"size": len(data), "sha256": sha256(data).hexdigest(), "mtime_ns": 10**18, **fields}
    return Item(path, FileEntry(Area.MODEL, path, EntryKind.FILE, **values), 0)  # type: ignore[arg-type]


def receive(target: Target, items: Sequence[Item], data: bytes) -> bool:
    part = target.partial_file(items[0].entry)
    part.write(data[part.offset :])
    good = part.close()
    if good:
        target.store(part, items)
    return good


def test_files_arrive_whole_and_are_not_wanted_again(tmp_path: Path) -> None:
    directory, items = tmp_path / "r", [item("model/a", b"same", mode=0o755), item("files/worker-0/b", b"same")]
    with Target(directory, "j") as target:
        assert target.missing(items) == items
        assert not receive(target, [item("model/a", b"good")], b"evil")  # damaged contents never get their name
        assert not (directory / "model/a").exists()
        assert target.offset(item("model/a", b"good").entry) == 0
        assert receive(target, items, b"same")
        target.finish({})
        with pytest.raises(NotReadyError, match="another fleet pull"):
            Target(directory, "j")
    assert (directory / "model/a").read_bytes() == (directory / "files/worker-0/b").read_bytes() == b"same"
    assert [os.access(directory / each.path, os.X_OK) for each in items] == [True, False]
    assert (directory / "model/a").stat().st_mtime_ns == 10**18
    with Target(directory, "j") as target:
        assert not target.missing(items)
        (directory / "model/a").unlink()
        assert target.missing(items) == items[:1]


def test_a_directory_with_other_contents_is_refused_and_a_new_one_is_not_created_before(tmp_path: Path) -> None:
    check_new(tmp_path / "a/b", "--pull")
    assert not list(tmp_path.iterdir())
    with Target(tmp_path / "r", "other"):
        pass
    (tmp_path / "file").touch()
    for path, reason in (
        (tmp_path / "r", "holds the results of job other"),
        (tmp_path, "is not empty"),
        (tmp_path / "file", "is not a directory"),
        (tmp_path / "file/x", "cannot be"),
    ):
        with pytest.raises(UsageError, match=reason) as caught:
            check_new(path, "--pull")
        assert caught.value.hint == "choose another directory with --pull"
        if path != tmp_path / "file/x":
            with pytest.raises(UsageError, match=reason) as caught:
                Target(path, "j")
            assert next_lines(caught.value) == f"fleet pull j --to {path}/j"


def test_a_file_that_was_changed_here_is_not_replaced(tmp_path: Path) -> None:
    before, after, other = item("model/a", b"1"), item("model/a", b"2"), item("model/b", b"3")
    with Target(tmp_path / "r", "j") as target:
        receive(target, [before], b"1")
        assert target.missing([after]) == [after]  # changed on the host alone
        (tmp_path / "r/model/a").write_bytes(b"mine")
        assert target.missing([after, other]) == [other]  # the others are copied
        with pytest.raises(UsageError, match="model/a' was changed on this computer, and would be replaced"):
            target.raise_problems()


def link(path: str, target: str) -> Item:
    return Item(path, FileEntry(Area.MODEL, path, EntryKind.LINK, target=target), 0)


def test_no_link_of_the_user_is_followed_or_replaced(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    with Target(tmp_path / "r", "j") as target:
        (tmp_path / "r/model").symlink_to(outside)
        assert receive(target, [item("model/a", b"1")], b"1")
        assert target.problems == {"model/a": "was changed on this computer, and would be replaced"}
        (tmp_path / "r/logs").mkdir()
        for name in ("link", "file"):
            (tmp_path / "r/logs" / name).symlink_to(outside / name)
        target.link(link("logs/link", "elsewhere"))
        target.directory(Item("model/empty", item("model/empty", b"").entry, 0))
        assert not target.missing([item("logs/file", b"1")])
        assert {*target.problems} == {"model/a", "logs/link", "model/empty", "logs/file"}
    assert not list(outside.iterdir())
    assert (tmp_path / "r/model").is_symlink()


def test_a_copied_link_is_replaced_when_it_changes_on_the_host(tmp_path: Path) -> None:
    with Target(tmp_path / "r", "j") as target:
        target.link(link("model/latest", "1"))
        target.link(link("model/best", "1"))
    with Target(tmp_path / "r", "j") as target:
        target.link(link("model/latest", "2"))
        assert (tmp_path / "r/model/latest").readlink() == Path("2")
        assert receive(target, [item("model/best/a", b"1")], b"1")  # it became a directory
        assert not target.problems
    assert (tmp_path / "r/model/best/a").read_bytes() == b"1"


def test_only_verified_files_count_as_copied(tmp_path: Path) -> None:
    directory, file = tmp_path / "r", item("model/a", b"1")
    other = item("model/b", b"2")
    with Target(directory, "j") as target:
        receive(target, [file], b"1")
        receive(target, [other], b"2")
        target.finish({"w": ("print", {"model/a": file.entry.sha256}), "v": ("v", {"model/b": other.entry.sha256})})
    assert complete_tasks(str(directory)) == {"w": "print", "v": "v"}
    (directory / "model/a").touch()  # another time, but the same contents
    assert complete_tasks(str(directory)) == {"w": "print", "v": "v"}
    (directory / "model/a").write_bytes(b"x")
    assert complete_tasks(str(directory)) == {"v": "v"}
    with Target(directory, "j") as target:  # another copy replaced the file of the task
        receive(target, [item("model/b", b"3")], b"3")
    (directory / "model/a").unlink()
    assert complete_tasks(str(directory)) == {}
    assert complete_tasks(str(tmp_path / "missing")) == complete_tasks("") == {}
