"""Paths of pulled results: names from hosts stay within the directory, and nothing is lost silently."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.results.layout import Layout, Listed, Recorded, lay_out, stays_inside
from train.agent.protocol.records import Area, EntryKind, FileEntry


def entry(path: str, content: str = "a", area: Area = Area.MODEL, **fields: object) -> FileEntry:
    values: dict[str, object] = {"kind": EntryKind.FILE, "size": 1, "sha256": content * 64, **fields}
    return FileEntry(area, path, **values)  # type: ignore[arg-type]


def listed(task: str, *entries: FileEntry) -> Listed:
    return Listed(task, entries)


def lay(*tasks: Listed, recorded: Mapping[str, Recorded] = MappingProxyType({})) -> Layout:
    return lay_out(tasks, tasks[0].task, recorded)


def paths(layout: Layout) -> list[tuple[str, int]]:
    return [(item.path, item.source) for item in layout.files]


def test_the_chief_comes_first_and_others_add_what_only_they_have() -> None:
    chief = listed("chief-0", entry("m/weights", "a"), entry("ck-1", "b", Area.CHECKPOINTS))
    worker = listed(
        "worker-0",
        entry("m/weights", "a"),
        entry("shard", "c"),
        entry("m/weights-of-1", "a"),  # equal contents, but the program that reads them needs the name
        entry("empty", kind=EntryKind.DIRECTORY, sha256=""),
        entry("ck-1", "d", Area.CHECKPOINTS),
        entry("out", "a", Area.FILES),
        entry("attempt-1.log", "e", Area.LOGS),
    )
    layout = lay(chief, worker)
    assert [item.path for item in layout.files] == [
        "model/m/weights",
        "checkpoints/ck-1",
        "others/worker-0/model/shard",
        "others/worker-0/model/m/weights-of-1",
        "others/worker-0/checkpoints/ck-1",
        "files/worker-0/out",
        "logs/worker-0/attempt-1.log",
    ]
    assert [item.path for item in layout.directories] == ["others/worker-0/model/empty"]
    assert not layout.notes


def test_without_the_chief_its_model_is_not_replaced_by_that_of_another_task() -> None:
    worker = listed("worker-1", entry("m", "b"), entry("n", "c"))
    recorded = {"model/m": Recorded("a" * 64, 1, 1), "model/n": Recorded("c" * 64, 1, 1)}
    layout = lay_out([worker], "worker-0", recorded)
    assert paths(layout) == [("others/worker-1/model/m", 0), ("model/n", 0)]  # equal contents are stored once
    assert paths(lay_out([worker], "worker-0", {})) == [
        ("others/worker-1/model/m", 0),
        ("others/worker-1/model/n", 0),
    ]
    # Equal to the file of the chief that was copied before, which has changed since.
    chief, worker = listed("worker-0", entry("m", "x")), listed("worker-1", entry("m", "a"))
    assert paths(lay(chief, worker, recorded=recorded)) == [("model/m", 0), ("others/worker-1/model/m", 1)]


def test_of_names_that_collide_the_first_is_stored() -> None:
    layout = lay(listed("worker-0", entry("x\x1b"), entry("x%1B", "b"), entry("x%1B/c"), entry("c/d"), entry("c")))
    assert [item.path for item in layout.files] == ["model/x%1B", "model/c/d"]
    assert layout.lossy == {0}
    assert layout.notes[0].startswith("worker-0: left out 3 files: a name that another file has")


@pytest.mark.parametrize(
    ("path", "target", "inside"),
    [
        ("link", "file", True), ("a/b/link", "../c", True), ("a/link", "..", False), ("link", "..", False),
        ("a/link", "../../x", False), ("link", "/etc/passwd", False), ("link", "a/../../x", False),
        ("link", "a/../b", False), ("link", "", False), ("link", "x\x1b[2J", False),
    ],
)  # fmt: skip
def test_links_stay_inside(path: str, target: str, inside: bool) -> None:
    assert stays_inside(path, target) == inside


NAMES = st.one_of(st.text(max_size=12), st.sampled_from(["../x", "/etc/passwd", "a/../../x", ".", "a//b", "a\0b"]))


@given(
    st.lists(st.tuples(NAMES, st.sampled_from([EntryKind.FILE, EntryKind.LINK]), st.text(max_size=12)), max_size=8)
)
def test_no_name_from_a_host_leads_out_of_the_directory(names: list[tuple[str, EntryKind, str]]) -> None:
    layout = lay(listed("worker-0", *(entry(path, kind=kind, target=target) for path, kind, target in names)))
    for item in [*layout.files, *layout.links]:
        parts = item.path.split("/")
        assert parts[0] in ("model", "others")
        assert not {"", ".", ".."}.intersection(parts)
        assert not any(ord(char) < 32 for char in item.path)


def test_a_name_that_leads_out_is_left_out_and_noted() -> None:
    layout = lay(listed("worker-0", entry("../x"), entry("x" * 300), entry("good", "b")))
    assert [item.path for item in layout.files] == ["model/good"]
    assert layout.lossy == {0}
    assert "worker-0: left out 2 files: a name that points outside" in layout.notes[0]
