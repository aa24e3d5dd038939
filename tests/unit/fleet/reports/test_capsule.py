from __future__ import annotations

import hashlib
import json
import os
import stat
import struct
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


def other_hash(manifest: Any, members: Any) -> None:
    manifest["files"]["job.json"] = SHA


def path_outside(manifest: Any, members: Any) -> None:
    manifest["entries"][2]["path"] = "../task.py"
    manifest["files"]["source/../task.py"] = manifest["files"].pop("source/task.py")
    members["source/../task.py"] = members.pop("source/task.py")


def absolute_path(manifest: Any, members: Any) -> None:
    manifest["entries"][2]["path"] = "/task.py"


def link_outside(manifest: Any, members: Any) -> None:
    manifest["entries"][3]["target"] = "../../x"


def file_below_a_link(manifest: Any, members: Any) -> None:
    manifest["entries"][3]["path"] = "pkg"


def additional_member(manifest: Any, members: Any) -> None:
    members["more"] = (zipfile.ZipInfo("more"), b"")


def undescribed_source(manifest: Any, members: Any) -> None:
    manifest["files"]["source/more"] = SHA
    members["source/more"] = (zipfile.ZipInfo("source/more"), CODE)


def missing_member(manifest: Any, members: Any) -> None:
    del members["source/task.py"]


def missing_source(manifest: Any, members: Any) -> None:
    del members["source/task.py"], manifest["files"]["source/task.py"]


def device(manifest: Any, members: Any) -> None:
    members["source/task.py"][0].external_attr = 0o060644 << 16


def symbolic_link(manifest: Any, members: Any) -> None:
    members["source/task.py"][0].external_attr = 0o120777 << 16


def later_format(manifest: Any, members: Any) -> None:
    manifest["format"] = 2


def wrong_type(manifest: Any, members: Any) -> None:
    manifest["options"] = "task.py"


@pytest.mark.parametrize(
    "change",
    [
        other_content, other_hash, path_outside, absolute_path, link_outside, file_below_a_link, additional_member,
        undescribed_source, missing_member, missing_source, device, symbolic_link, later_format, wrong_type,
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
    for number, damaged in enumerate([b"", b"PK", data[:-30], data[40:], data.replace(b"job.json", b"JOB.json", 1)]):
        capsule.write_bytes(damaged)
        (tmp_path / str(number)).mkdir()
        with pytest.raises(UsageError):
            unpack_capsule(capsule, tmp_path / str(number))
    with pytest.raises(UsageError, match="cannot be read"):
        unpack_capsule(tmp_path / "missing", tmp_path)


def test_a_capsule_that_is_too_large_is_refused(
    capsule: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleet.reports.capsule.LARGEST", 100)
    with pytest.raises(UsageError) as refused:
        unpack_capsule(capsule, tmp_path)
    assert "are the limit" in refused.value.cause


@pytest.mark.parametrize("comment", [b"", b"a comment"])
def test_a_capsule_with_a_million_members_is_refused_before_their_list_is_read(
    tmp_path: Path, comment: bytes
) -> None:
    path = tmp_path / "large.capsule.zip"
    size = 46_000_000
    with path.open("wb") as file:
        file.truncate(size)
        file.seek(size)
        numbers = (0, 0, 0xFFFF, 0xFFFF, size, 0, len(comment))
        file.write(b"PK\x05\x06" + struct.pack("<4H2LH", *numbers) + comment)
    with pytest.raises(UsageError) as error:
        unpack_capsule(path, tmp_path)
    assert error.value.cause == "it has too many members"
    assert not is_capsule(path)


def test_a_list_of_members_in_zip64_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "large.capsule.zip"
    end = b"PK\x05\x06" + struct.pack("<4H2LH", 0, 0, 1, 1, 46, 0, 0)
    path.write_bytes(b"PK\x06\x06" + bytes(52) + b"PK\x06\x07" + bytes(16) + end)
    with pytest.raises(UsageError) as error:
        unpack_capsule(path, tmp_path)
    assert error.value.cause == "it has too many members"
