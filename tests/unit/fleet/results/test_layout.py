"""Paths of pulled results: names from hosts stay within the directory, and nothing is lost silently."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.results.layout import Layout, Listed, Recorded, choose_sources, lay_out, stays_inside
from train.agent.protocol.records import Area, EntryKind, FileEntry


def entry(path: str, content: str = "a", area: Area = Area.MODEL, **fields: object) -> FileEntry:
    values: dict[str, object] = {"kind": EntryKind.FILE, "size": 1, "sha256": content * 64, **fields}
    return FileEntry(area, path, **values)  # type: ignore[arg-type]


def listed(task: str, *entries: FileEntry) -> Listed:
    return Listed(task, entries, f"host of {task}")


def lay(*tasks: Listed, source: int = 0, recorded: Mapping[str, Recorded] = MappingProxyType({})) -> Layout:
    return lay_out(tasks, dict.fromkeys((Area.MODEL, Area.CHECKPOINTS), tasks[source].key), recorded)


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


@pytest.mark.parametrize(
    ("holding", "chief", "certain", "source"),
    [
        (["a", "b"], True, True, "a"),
        (["a", "b"], True, False, "a"),
        (["b"], True, True, "b"),  # the chief has no model
        (["b"], True, False, "a"),  # the chief may write one
        (["b"], False, False, ""),  # the chief does not answer
        (["b"], False, True, "b"),  # its host was replaced
        ([], True, True, ""),
    ],
)
def test_the_source_is_the_chief_unless_it_is_certain_that_it_has_no_model(
    holding: list[str], chief: bool, certain: bool, source: str
) -> None:
    tasks = [(key, [Area.MODEL] if key in holding else []) for key in ("a", "b")]
    assert choose_sources(tasks, {}, chief=chief, certain=certain).get(Area.MODEL, "") == source
    earlier = {Area.MODEL: "c"}
    assert choose_sources(tasks, earlier, chief=chief, certain=certain)[Area.MODEL] == "c"


def test_without_its_source_a_model_is_not_replaced_by_that_of_another_task() -> None:
    chief, worker = listed("worker-0", entry("m", "a")), listed("worker-1", entry("m", "b"), entry("n", "c"))
    recorded = {"model/m": Recorded("a" * 64, 1, 1, chief.key), "model/n": Recorded("c" * 64, 1, 1, chief.key)}
    layout = lay_out([worker], {Area.MODEL: chief.key}, recorded)
    assert paths(layout) == [("others/worker-1/model/m", 0), ("model/n", 0)]  # equal contents are stored once
    assert paths(lay_out([worker], {}, {})) == [("others/worker-1/model/m", 0), ("others/worker-1/model/n", 0)]
    # Equal to the file of the chief that was copied before, which has changed since.
    later = listed("worker-0", entry("m", "x"))
    worker = listed("worker-1", entry("m", "a"))
    assert paths(lay(worker, later, source=1, recorded=recorded)) == [
        ("model/m", 1),
        ("others/worker-1/model/m", 0),
    ]


def test_names_that_collide_are_stored_next_to_each_other() -> None:
    task = listed("worker-0", entry("x\x1b"), entry("x%1B", "b"), entry("x%1B/c"), entry("c/d"), entry("c"))
    layout = lay(task)
    assert [item.path for item in layout.files] == [
        "model/x%1B",
        "others/worker-0/model/x%1B",
        "others/worker-0.2/model/x%1B/c",
        "model/c/d",
        "others/worker-0/model/c",
    ]
    assert not layout.lossy
    spellings = [(at, "".join("%1B" if at >> bit & 1 else "\x1b" for bit in range(5))) for at in range(32)]
    task = listed("worker-0", *(entry(name, sha256=f"{at:064x}") for at, name in spellings))
    assert lay(task).lossy == {0}  # a host cannot make this computer try many paths
    assert len(lay(task).files) == 10


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
