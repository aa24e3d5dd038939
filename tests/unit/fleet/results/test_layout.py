"""Paths of pulled results: names from hosts stay within the directory, and nothing is lost silently."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.results.layout import Listed, lay_out, local_path, stays_inside
from train.agent.protocol.records import Area, EntryKind, FileEntry


def entry(path: str, content: str = "a", area: Area = Area.MODEL, **fields: object) -> FileEntry:
    values: dict[str, object] = {"kind": EntryKind.FILE, "size": 1, "sha256": content * 64, **fields}
    return FileEntry(area, path, **values)  # type: ignore[arg-type]


def test_the_chief_comes_first_and_others_add_what_only_they_have() -> None:
    chief = Listed("chief-0", [entry("m/weights", "a"), entry("ck-1", "b", Area.CHECKPOINTS)])
    worker = Listed(
        "worker-0",
        [
            entry("m/weights", "a"),
            entry("shard", "c"),
            entry("m/weights-of-1", "a"),  # equal contents, but the program that reads them needs the name
            entry("empty", kind=EntryKind.DIRECTORY, sha256=""),
            entry("ck-1", "d", Area.CHECKPOINTS),
            entry("out", "a", Area.FILES),
            entry("attempt-1.log", "e", Area.LOGS),
        ],
    )
    layout = lay_out([chief, worker])
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


def test_without_a_model_of_the_chief_the_first_failed_task_that_has_one_takes_its_place() -> None:
    layout = lay_out([Listed("chief-0", []), Listed("worker-0", [entry("m")]), Listed("worker-1", [entry("m")])])
    assert [(item.path, item.source) for item in layout.files] == [("model/m", 1)]


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x", "", ".", "a//b", "a/.", "a\0b", "x" * 300])
def test_a_name_that_leads_out_is_left_out_and_noted(path: str) -> None:
    layout = lay_out([Listed("worker-0", [entry(path), entry("good", "b")])])
    assert [item.path for item in layout.files] == ["model/good"]
    assert layout.lossy == {0}
    assert "worker-0: left out 1 file: a name that points outside" in layout.notes[0]


def test_control_characters_in_names_become_harmless_and_keep_the_file() -> None:
    assert local_path("a\x1b[2Jb/\u202ec") == "a%1B[2Jb/%E2%80%AEc"


def test_names_that_collide_are_left_out() -> None:
    layout = lay_out([Listed("worker-0", [entry("a"), entry("a"), entry("a/b"), entry("c/d"), entry("c")])])
    assert [item.path for item in layout.files] == ["model/a", "model/c/d"]
    assert layout.lossy == {0}


def test_a_file_that_its_host_cannot_read_is_noted() -> None:
    layout = lay_out([Listed("worker-0", [entry("a", sha256="")]), Listed("worker-1", [entry("a", sha256="")])])
    assert not layout.files
    assert all("cannot be read" in note for note in layout.notes)
    assert layout.lossy == {0, 1}


@pytest.mark.parametrize(
    ("path", "target", "inside"),
    [
        ("link", "file", True),
        ("a/b/link", "../c", True),
        ("a/link", "..", False),
        ("link", "..", False),
        ("a/link", "../../x", False),
        ("link", "/etc/passwd", False),
        ("link", "a/../../x", False),
        ("link", "a/../b", False),
        ("link", "", False),
        ("link", "x\x1b[2J", False),
    ],
)
def test_links_stay_inside(path: str, target: str, inside: bool) -> None:
    assert stays_inside(path, target) == inside


@given(st.lists(st.tuples(st.text(max_size=12), st.sampled_from(list(EntryKind)), st.text(max_size=12)), max_size=8))
def test_no_name_from_a_host_leads_out_of_the_directory(names: list[tuple[str, EntryKind, str]]) -> None:
    entries = [entry(path, kind=kind, target=target) for path, kind, target in names if kind is not EntryKind.DATA]
    layout = lay_out([Listed("worker-0", entries)])
    for item in [*layout.files, *layout.links, *layout.directories]:
        parts = item.path.split("/")
        assert parts[0] == "model"
        assert not {"", ".", ".."}.intersection(parts)
        assert item.path.isprintable() or not any(ord(char) < 32 for char in item.path)
