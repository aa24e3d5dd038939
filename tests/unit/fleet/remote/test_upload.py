"""Tests of the files that are uploaded, and of what hosts receive of them."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

import pytest

from fleet.errors import NotReadyError, UsageError
from fleet.remote import upload
from fleet.remote.upload import Bundle, DataSource, parse_data, scan
from fleet.results.target import Target
from tests.unit.fleet.remote.test_join import client
from train.agent.files.contents import BLOCK_BYTES, check_entries, unpack_block
from train.agent.protocol.records import Chunk, Entry, EntryKind, NeedContents, Prepare


@pytest.fixture
def root(tmp_path: Path) -> Path:
    directory = tmp_path / "work"
    directory.mkdir()
    return directory


def put(path: Path, content: bytes = b"x", mode: int = 0o644) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(mode)
    return path


def scanned(root: Path, *data: DataSource, script: Path | None = None, state: Path | None = None) -> Bundle:
    bundle = scan(root, script, data, root.parent / "hashes.json", state=state)
    check_entries(bundle.entries)  # what the agent would refuse must not be sent
    return bundle


def kinds(bundle: Bundle) -> dict[str, EntryKind]:
    return {entry.path: entry.kind for entry in bundle.entries}


def test_files_have_hash_size_and_mode_and_equal_contents_are_uploaded_once(root: Path) -> None:
    script = put(root / "task.py", b"print()", 0o755)
    put(root / "package" / "copy.py", b"print()")
    put(Path(os.fsdecode(os.fsencode(root) + b"/caf\xe9\n.txt")), b"")
    (root / "out").mkdir()
    bundle = scanned(root)
    digest = hashlib.sha256(b"print()").hexdigest()
    assert bundle.entries == [
        Entry(os.fsdecode(b"caf\xe9\n.txt"), EntryKind.FILE, 0o644, 0, hashlib.sha256().hexdigest()),
        Entry("out", EntryKind.DIRECTORY, 0o755),
        Entry("package/copy.py", EntryKind.FILE, 0o644, 7, digest),
        Entry("task.py", EntryKind.FILE, 0o755, 7, digest),
    ]
    assert len(bundle.sources) == 2
    digests = {bundle.digest, scanned(root).digest}
    script.write_bytes(b"other")
    digests.add(scanned(root).digest)
    script.chmod(0o600)
    digests.add(scanned(root).digest)
    script.rename(root / "b")
    digests.add(scanned(root).digest)
    assert len(digests) == 4


def test_the_script_is_uploaded_even_if_it_is_ignored_or_a_link(root: Path) -> None:
    put(root / ".gitignore", b"*.py\nbuild/\n")
    put(root / "other.py")
    script = put(root / "build" / "task.py")
    assert kinds(scanned(root, script=script)).keys() == {".gitignore", "build/task.py"}
    real = put(root.parent / "elsewhere" / "real.py", b"real")
    script.unlink()
    script.symlink_to(real)
    [_, entry] = scanned(root, script=script).entries
    assert (entry.path, entry.kind, entry.size) == ("build/task.py", EntryKind.FILE, 4)
    with pytest.raises(UsageError, match="not within the working directory"):
        scanned(root, script=real)


def test_links_within_the_directory_stay_links_and_those_to_other_files_become_files(root: Path) -> None:
    outside = put(root.parent / "shared.txt", b"shared")
    put(root / ".gitignore", b"/cache/")
    put(root / "cache" / "x", b"cached")
    put(root / "runs" / "3" / "model")
    links: dict[str, str | Path] = {
        "runs/latest": "3", "absolute": root / "runs" / "3" / "model", "chain": "absolute", "runs/top": "..",
        "note": outside, "x": "cache/x",
    }  # fmt: skip
    for name, target in links.items():
        (root / name).symlink_to(target)
    bundle = scanned(root)
    assert {entry.path: entry.target or entry.size for entry in bundle.entries if entry.path in links} == {
        "runs/latest": "3", "absolute": "runs/3/model", "chain": "runs/3/model", "runs/top": "..", "note": 6, "x": 6,
    }  # fmt: skip
    assert bundle.notes == (f"uploaded as files: note (a link to {outside.resolve()})",)
    (root / "loop").symlink_to("../../" + root.parent.name)
    with pytest.raises(UsageError, match="loop is a link"):
        scanned(root)
    put(root / ".fleetignore", b"loop")
    scanned(root)


def test_what_has_no_content_is_left_out_with_a_note_that_names_the_first_paths(root: Path) -> None:
    os.mkfifo(root / "pipe")
    put(root / ".fleetignore", b"pipe\n")
    for name, target, why in (
        ("a", "missing", "a broken link"),
        ("a", "a", "a broken link"),
        ("a", "/dev/zero", "a link to a device"),
        ("a", "pipe", "a link to a FIFO"),
    ):
        (root / name).unlink(missing_ok=True)
        (root / name).symlink_to(target)
        assert scanned(root).notes == (f"not uploaded: {name} ({why})",)
    os.mknod(root / "b", stat.S_IFSOCK | 0o600)
    for name in ("c", "d"):
        (root / name).symlink_to("nowhere")
    put(root / ".fleetignore", b"")
    bundle = scanned(root)
    assert bundle.notes == ("not uploaded: a (a link to a FIFO), b (a socket), c (a broken link) and 2 more",)
    assert kinds(bundle).keys() == {".fleetignore"}
    put(root / ".fleetignore", b"?\npipe\n")
    assert scanned(root).notes == ()


def test_files_that_vanish_are_left_out_and_unreadable_ones_are_named(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(root / "lock")
    for error in (FileNotFoundError, PermissionError):

        def refuse(path: str, raised: type[OSError] = error) -> tuple[str, int]:
            raise raised(1, "why", path)

        monkeypatch.setattr("fleet.remote.hashes.hash_file", refuse)
        if error is FileNotFoundError:
            assert scanned(root).notes == ("not uploaded: lock (it vanished)",)
        else:
            with pytest.raises(UsageError, match="lock cannot be read"):
                scanned(root)


def test_temporary_files_and_environments_of_any_name_are_left_out(root: Path) -> None:
    put(root / "task.py")
    for name in (".#a.py", "#a.py#", "a.py~", ".a.py.swp", ".a.py.swo", ".nfs00000000a1b2c3d400000001"):
        put(root / name)
    put(root / "tools" / "env" / "pyvenv.cfg")
    put(root / "my-env" / "conda-meta" / "history")
    put(root / "my-env" / "lib" / "big.so")
    assert kinds(scanned(root)).keys() == {"task.py"}
    entries = kinds(scanned(root, DataSource(root / "my-env", "my-env")))  # on request all of it
    assert entries["my-env/lib/big.so"] is EntryKind.DATA
    assert "lib/big.so" in kinds(scanned(root / "my-env"))


def test_a_large_upload_is_announced_or_refused_with_its_largest_directories(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(root / "task.py", b"x" * 20)
    for name, size in (("a", 10), ("b", 30), ("c", 20), ("d", 24)):
        for number in range(size // 10):
            put(root / name / f"{number}", bytes([ord(name)]) * (10 + size % 10))
    monkeypatch.setattr(upload, "LARGE_BYTES", 100)
    (note,) = scanned(root).notes
    assert "most of them in b 30 bytes, d 28 bytes, c 20 bytes;" in note
    assert ".fleetignore" in note
    for limit, value, message, cause in (
        ("MAX_FILES", 5, "more than 5 files", "2 of the first 6 are in its directory d"),
        ("MAX_BYTES", 9, "GiB", "30 of 108 bytes are in its directory b"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(upload, limit, value)
            with pytest.raises(UsageError, match=message) as raised:
                scanned(root)
        assert cause in raised.value.cause
    monkeypatch.setattr(upload, "MAX_FILES", 6)
    assert kinds(scanned(root, DataSource(root / "b", "b")))["b/1"] is EntryKind.DATA  # data has no limit


def test_data_is_uploaded_whole_and_replaces_a_link_of_its_name(root: Path, tmp_path: Path) -> None:
    put(root / "task.py")
    put(root / ".gitignore", b"*.npz\ndata\n")
    put(tmp_path / "big" / "digits.npz", b"1")
    put(tmp_path / "big" / ".gitignore", b"*")
    put(tmp_path / "big" / "__pycache__" / "x.pyc")
    (tmp_path / "big" / "empty").mkdir()
    (tmp_path / "big" / "again").symlink_to("digits.npz")
    (root / "data").symlink_to(tmp_path / "big")
    assert kinds(scanned(root, parse_data(f"{root}/data:data"))) == {
        ".gitignore": EntryKind.FILE, "task.py": EntryKind.FILE, "data/digits.npz": EntryKind.DATA,
        "data/.gitignore": EntryKind.DATA, "data/__pycache__/x.pyc": EntryKind.DATA,
        "data/empty": EntryKind.DIRECTORY, "data/again": EntryKind.LINK,
    }  # fmt: skip
    with pytest.raises(UsageError, match=r"under the file task\.py"):
        scanned(root, DataSource(tmp_path / "big" / "digits.npz", "task.py/x"))


@pytest.mark.parametrize(
    ("text", "destination"),
    [
        ("{}/d", "d"), ("{}/d:x/y", "x/y"), ("{}/d:x/", "x/d"), ("{}/d:./x", "x"), ("{}/d/", "d"), ("{}/d:.", ""),
        ("{}/f.npz", "f.npz"), ("{}/f.npz:.", "f.npz"), ("{}/f.npz:in/g.npz", "in/g.npz"), ("{}/a:b", "a:b"),
        *dict.fromkeys(["{}/none", "{}/d:/abs", "{}/d:../x", "{}/d:x/../../y", "gs://bucket/x", "", ":x"]).items(),
    ],
)  # fmt: skip
def test_destinations_of_data(tmp_path: Path, text: str, destination: str | None) -> None:
    (tmp_path / "d").mkdir()
    put(tmp_path / "f.npz")
    put(tmp_path / "a:b")
    if destination is None:
        with pytest.raises(UsageError, match="--data"):
            parse_data(text.format(tmp_path))
    else:
        parsed = parse_data(text.format(tmp_path))
        assert (parsed.destination, parsed.source.exists()) == (destination, True)


def test_keys_results_the_home_and_the_root_directory_are_never_uploaded(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(root / "results" / "mine")
    put(root / "state" / "fleets" / "default" / "id_ed25519", b"secret")
    with Target(root / "results" / "j", "j") as target:
        target.finish({})
    bundle = scanned(root, state=root / "state")
    assert [path for path, kind in kinds(bundle).items() if kind is EntryKind.FILE] == ["results/mine"]
    assert bundle.notes == ("not uploaded: results/j/ (results that fleet pull copied; --data uploads them)",)
    everything = scanned(root, DataSource(root, "all"), state=root / "state")
    assert not [path for path in kinds(everything) if "id_ed25519" in path]
    monkeypatch.setenv("HOME", str(root))
    for directory in (root, Path("/")):
        with pytest.raises(UsageError, match="refusing to upload all of"):
            scanned(directory)


# --- blocks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_local", [True, False])
def test_a_host_receives_the_requested_contents_in_their_order(root: Path, is_local: bool) -> None:
    contents = {"a": os.urandom(700_000), "b": b"text" * 200_000, "c": b"text of c\n" * 70_000}
    for name, content in contents.items():
        put(root / name, content)
    bundle = scanned(root)
    a, _, c = bundle.entries
    with (root / "c").open("ab") as log:
        log.write(b"a line that was appended after the scan\n")
    blocks = list(bundle.read_blocks([c.sha256, a.sha256], 100, is_local=is_local))
    assert max(len(data) for data, _ in blocks) <= BLOCK_BYTES
    assert b"".join(unpack_block(*block) for block in blocks) == (contents["c"] + contents["a"])[100:]
    assert any(size for _, size in blocks) != is_local


@pytest.mark.parametrize("content", [b"longer than before", b"short", b"equal!", None])
def test_a_file_that_changes_after_the_scan_is_named(root: Path, content: bytes | None) -> None:
    file = put(root / "task.py", b"before")
    bundle = scanned(root)
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    with pytest.raises(UsageError, match=r"task\.py changed while it was being sent"):
        list(bundle.read_blocks([bundle.entries[0].sha256]))


@pytest.mark.parametrize("objects", [["b" * 64], ["a" * 64, "a" * 64]])
def test_unknown_and_repeated_contents_are_not_sent(tmp_path: Path, objects: list[str]) -> None:
    agent, sent = client("worker-0", NeedContents(objects, 10))
    entries = [Entry("a", EntryKind.FILE, 0o644, 5, "a" * 64)]
    bundle = Bundle(entries, {"a" * 64: tmp_path / "a"}, "")
    with pytest.raises(NotReadyError, match="unexpected"):
        agent.prepare(Prepare("job", "tiny", "worker-0", entries, "127.0.0.1", "python"), bundle)
    assert not any(isinstance(record, Chunk) for record in sent)
