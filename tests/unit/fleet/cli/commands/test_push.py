from __future__ import annotations

from pathlib import Path

import pytest

from fleet.cli.fleets.push import find_sources, parse_target
from fleet.errors import UsageError
from fleet.remote.upload import Bundle, DataSource, scan_files
from train.agent.files.contents import check_entries
from train.agent.protocol.records import EntryKind


def test_a_target_is_relative_to_the_login_directory_or_absolute() -> None:
    given = ("data", "/mnt/my data", "~", "~/", "~//etc", "a/~")
    assert [parse_target(text) for text in given] == ["data", "/mnt/my data", ".", ".", "etc", "a/~"]
    for text in ("", "~root/x", "a\0b"):
        with pytest.raises(UsageError, match="is not a directory on the hosts"):
            parse_target(text)


def test_invalid_sources_are_errors(tmp_path: Path) -> None:
    for name in ("one", "two", "state"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "same").write_bytes(b"x")
    (tmp_path / "loop").symlink_to("loop")
    for given, message in [
        (["missing"], "does not exist"),
        (["loop"], "does not exist"),
        (["one/same", "two/same"], "have the same name"),
        (["state/same"], "keys of fleets"),
        (["/dev/null"], "neither a file nor a directory"),
        (["/"], "all of the root directory"),
        (["~"], "all of your home directory"),
    ]:
        paths = [text if text[0] in "~/" else str(tmp_path / text) for text in given]
        with pytest.raises(UsageError, match=message):
            find_sources(paths, tmp_path / "state")


def scanned(*sources: DataSource) -> Bundle:
    bundle = scan_files(sources, sources[0].source.parent / "hashes", state=Path("/nonexistent"))
    check_entries(bundle.entries)  # the agent refuses invalid entries
    return bundle


def test_directories_are_complete_and_links_stay_inside(tmp_path: Path) -> None:
    directory, outside = tmp_path / "data", tmp_path / "outside"
    directory.mkdir()
    outside.mkdir()
    (outside / "file").write_bytes(b"outside")
    (directory / ".gitignore").write_text("ignored")
    (directory / "ignored").write_bytes(b"x")
    (directory / "inside").symlink_to("ignored")
    (directory / "copied").symlink_to(outside / "file")
    (directory / "broken").symlink_to("nothing")
    bundle = scanned(DataSource(directory, "data"), DataSource(outside / "file", "file"))
    kinds = {entry.path: entry.kind for entry in bundle.entries}
    assert kinds == {
        "data/.gitignore": EntryKind.DATA,
        "data/copied": EntryKind.DATA,
        "data/ignored": EntryKind.DATA,
        "data/inside": EntryKind.LINK,
        "file": EntryKind.DATA,
    }
    assert bundle.notes == ("not uploaded: data/broken (a broken link)",)
    (directory / "directory").symlink_to(outside)
    with pytest.raises(UsageError, match="a link to a directory outside"):
        scanned(DataSource(directory, "data"))
