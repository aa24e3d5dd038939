from __future__ import annotations

import hashlib
import json
import os
import stat
import zipfile
from pathlib import Path
from typing import Any

import pytest

from fleet.errors import UsageError
from fleet.reports.capsule import Manifest, is_capsule, unpack_capsule, write_capsule
from train.agent.protocol.records import Entry, EntryKind

CODE = b"print(1)\n"
SHA = hashlib.sha256(CODE).hexdigest()
ENTRIES = [
    Entry("lib", EntryKind.DIRECTORY, 0o755),
    Entry("pkg/run.sh", EntryKind.FILE, 0o755, len(CODE), SHA),
    Entry("task.py", EntryKind.FILE, 0o644, len(CODE), SHA),
    Entry("pkg/link", EntryKind.LINK, target="../task.py"),
]


@pytest.fixture
def capsule(tmp_path: Path) -> Path:
    contents = tmp_path / "contents"
    contents.mkdir()
    (contents / SHA).write_bytes(CODE)
    path = tmp_path / "j.capsule.zip"
    write_capsule(path, Manifest(1, "j", ["task.py"], ENTRIES), {"job.json": b"{}"}, contents)
    return path


def rewrite(path: Path, change: Any) -> Path:
    """Write a capsule again, with members that a function changes."""
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: (info, archive.read(info)) for info in archive.infolist()}
    manifest = json.loads(members["capsule.json"][1])
    change(manifest, members)
    members["capsule.json"] = (members["capsule.json"][0], json.dumps(manifest).encode())
    with zipfile.ZipFile(path, "w") as archive:
        for name, (info, data) in members.items():
            info.filename = info.orig_filename = name
            archive.writestr(info, data)
    return path


def test_a_capsule_brings_back_files_modes_links_and_empty_directories(capsule: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    manifest = unpack_capsule(capsule, target)
    assert manifest.options == ["task.py"]
    assert (target / "task.py").read_bytes() == CODE
    assert stat.S_IMODE((target / "pkg/run.sh").stat().st_mode) == 0o755
    assert os.readlink(target / "pkg/link") == "../task.py"  # noqa: PTH115
    assert (target / "lib").is_dir()
    assert is_capsule(capsule)


def other_content(manifest: Any, members: Any) -> None:
    members["source/task.py"] = (members["source/task.py"][0], b"print(2)\n")


def longer_content(manifest: Any, members: Any) -> None:
    members["source/task.py"] = (members["source/task.py"][0], CODE * 1000)


def path_outside(manifest: Any, members: Any) -> None:
    manifest["entries"][2]["path"] = "../task.py"
    members["source/../task.py"] = members.pop("source/task.py")


def absolute_path(manifest: Any, members: Any) -> None:
    manifest["entries"][2]["path"] = "/task.py"


def link_outside(manifest: Any, members: Any) -> None:
    manifest["entries"][3]["target"] = "../../x"


def file_below_a_link(manifest: Any, members: Any) -> None:
    manifest["entries"][3]["path"] = "pkg"


def missing_member(manifest: Any, members: Any) -> None:
    del members["source/task.py"]


def too_large(manifest: Any, members: Any) -> None:
    manifest["entries"][0]["size"] = -(2 << 30)  # of a directory: does not count
    manifest["entries"][1]["size"] = manifest["entries"][2]["size"] = 1 << 30


def later_format(manifest: Any, members: Any) -> None:
    manifest["format"] = 2


def wrong_type(manifest: Any, members: Any) -> None:
    manifest["options"] = "task.py"


@pytest.mark.parametrize(
    "change",
    [
        other_content, longer_content, path_outside, absolute_path, link_outside, file_below_a_link, missing_member,
        too_large, later_format, wrong_type,
    ],
)  # fmt: skip
def test_a_changed_capsule_is_refused_and_nothing_is_written_outside(
    change: Any, capsule: Path, tmp_path: Path
) -> None:
    target = tmp_path / "x" / "target"
    target.mkdir(parents=True)
    with pytest.raises(UsageError, match="is not a capsule of fleet report, or is damaged"):
        unpack_capsule(rewrite(capsule, change), target)
    assert [path.name for path in (tmp_path / "x").iterdir()] == ["target"]


def test_damaged_and_other_files_are_refused(capsule: Path, tmp_path: Path) -> None:
    data = capsule.read_bytes()
    for number, damaged in enumerate([b"", b"PK", data[:-30], data[40:]]):
        capsule.write_bytes(damaged)
        (tmp_path / str(number)).mkdir()
        with pytest.raises(UsageError):
            unpack_capsule(capsule, tmp_path / str(number))
    with pytest.raises(UsageError, match="cannot be read"):
        unpack_capsule(tmp_path / "missing", tmp_path)
