from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleet.errors import UsageError
from fleet.remote.upload import bundle as bundle_module
from fleet.remote.upload import hashes
from fleet.remote.upload.bundle import Bundle, DataSource, parse_data, scan
from fleet.remote.upload.stream import Piece
from fleet.results.target import Target
from train.agent.files.blocks import BLOCK_BYTES, unpack_block
from train.agent.files.contents import check_entries, hash_file
from train.agent.protocol.records import Entry, EntryKind


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


def scanned(root: Path, *data: DataSource, script: Path | None = None) -> Bundle:
    bundle = scan(root, script, data, root.parent / "hashes.json")
    check_entries(bundle.entries)  # what the agent would refuse must not be sent
    return bundle


def by_path(bundle: Bundle) -> dict[str, Entry]:
    return {entry.path: entry for entry in bundle.entries}


def test_files_carry_hash_size_and_mode(root: Path) -> None:
    put(root / "task.py", b"print()", 0o755)
    put(root / "package" / "__init__.py", b"")
    bundle = scanned(root)
    assert bundle.entries == [
        Entry("package/__init__.py", EntryKind.FILE, 0o644, 0, hashlib.sha256().hexdigest()),
        Entry("task.py", EntryKind.FILE, 0o755, 7, hashlib.sha256(b"print()").hexdigest()),
    ]
    assert bundle.sources[bundle.entries[1].sha256] == root / "task.py"


def test_equal_contents_are_uploaded_once(root: Path) -> None:
    put(root / "a", b"same")
    put(root / "b", b"same")
    bundle = scanned(root)
    assert len(bundle.sources) == 1


def test_the_digest_changes_with_content_mode_and_name(root: Path) -> None:
    file = put(root / "a", b"one")
    digests = {scanned(root).digest}
    assert scanned(root).digest in digests
    file.write_bytes(b"two")
    digests.add(scanned(root).digest)
    file.chmod(0o600)
    digests.add(scanned(root).digest)
    file.rename(root / "b")
    digests.add(scanned(root).digest)
    assert len(digests) == 4


def test_the_script_goes_along_though_it_is_ignored(root: Path) -> None:
    put(root / ".gitignore", b"*.py\nbuild/\n")
    put(root / "other.py")
    script = put(root / "build" / "task.py")
    assert set(by_path(scanned(root, script=script))) == {".gitignore", "build/task.py"}


def test_a_script_that_is_a_link_goes_along_as_its_content(root: Path) -> None:
    real = put(root.parent / "elsewhere" / "real.py", b"real")
    (root / "task.py").symlink_to(real)
    entry = by_path(scanned(root, script=root / "task.py"))["task.py"]
    assert (entry.kind, entry.size) == (EntryKind.FILE, 4)


def test_a_script_elsewhere_is_refused(root: Path) -> None:
    script = put(root.parent / "task.py")
    with pytest.raises(UsageError, match="not within the working directory"):
        scanned(root, script=script)


def test_empty_directories_go_along(root: Path) -> None:
    (root / "out").mkdir()
    put(root / ".fleetignore", b"*.log")
    put(root / "logs" / "a.log")
    entries = by_path(scanned(root))
    assert {path for path, entry in entries.items() if entry.kind is EntryKind.DIRECTORY} == {"out", "logs"}


def test_links_within_the_directory_stay_links(root: Path) -> None:
    put(root / "runs" / "3" / "model")
    (root / "runs" / "latest").symlink_to("3")
    (root / "absolute").symlink_to(root / "runs" / "3" / "model")
    (root / "chain").symlink_to("absolute")
    (root / "runs" / "top").symlink_to("..")
    entries = by_path(scanned(root))
    targets = {path: entry.target for path, entry in entries.items() if entry.kind is EntryKind.LINK}
    assert targets == {
        "runs/latest": "3", "absolute": "runs/3/model", "chain": "runs/3/model", "runs/top": "..",
    }  # fmt: skip


def test_a_link_to_a_file_outside_takes_its_content_along(root: Path) -> None:
    outside = put(root.parent / "shared.txt", b"shared")
    (root / "note").symlink_to(outside)
    entry = by_path(scanned(root))["note"]
    assert (entry.kind, entry.size) == (EntryKind.FILE, 6)
    assert scanned(root).notes == (f"uploaded as files: note (a link to {outside.resolve()})",)


def test_a_link_to_an_ignored_file_takes_its_content_along(root: Path) -> None:
    put(root / ".gitignore", b"/cache/")
    put(root / "cache" / "x", b"cached")
    (root / "x").symlink_to("cache/x")
    assert by_path(scanned(root))["x"].kind is EntryKind.FILE


@pytest.mark.parametrize(
    ("target", "why"),
    [("missing", "a broken link"), ("link", "a broken link"), ("/dev/zero", "a link to a device"), ("pipe", "FIFO")],
)
def test_a_link_without_content_is_left_out_with_a_note(root: Path, target: str, why: str) -> None:
    os.mkfifo(root / "pipe")
    put(root / ".fleetignore", b"pipe\n")
    put(root / "task.py")
    (root / "deep").mkdir()
    (root / "link").symlink_to(target)
    bundle = scanned(root)
    assert set(by_path(bundle)) == {".fleetignore", "task.py", "deep"}
    (note,) = bundle.notes
    assert note.startswith("not uploaded: link (")
    assert why in note
    put(root / ".fleetignore", b"pipe\nlink\n")
    assert scanned(root).notes == ()


def test_a_note_counts_what_it_does_not_name(root: Path) -> None:
    for number in range(5):
        (root / f"{number}").symlink_to("nowhere")
    assert scanned(root).notes == (
        "not uploaded: 0 (a broken link), 1 (a broken link), 2 (a broken link) and 2 more",
    )


@pytest.mark.parametrize(
    "name", [".#task.py", "#task.py#", "task.py~", ".task.py.swp", ".task.py.swo", ".nfs00000000a1b2c3d400000001"]
)
def test_temporary_files_of_editors_are_left_out(root: Path, name: str) -> None:
    put(root / "task.py")
    (root / name).symlink_to("ann@laptop.4242:1795228844")
    assert (set(by_path(scanned(root))), scanned(root).notes) == ({"task.py"}, ())
    (root / name).unlink()
    put(root / name)
    assert set(by_path(scanned(root))) == {"task.py"}


def test_a_file_that_vanishes_is_left_out(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(root / "lock")

    def vanished(path: str) -> tuple[str, int]:
        raise FileNotFoundError(2, "No such file or directory", path)

    monkeypatch.setattr(hashes, "hash_file", vanished)
    assert scanned(root).notes == ("not uploaded: lock (it vanished)",)


def test_files_and_directories_that_vanish_during_the_scan_are_left_out(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(root / "task.py")
    put(root / "lock")
    put(root / "parts" / "1")
    list_directory = os.scandir

    def remove_then_list(directory: Path) -> Any:
        with list_directory(directory) as listed:
            children = list(listed)
        if directory == root.resolve():
            (root / "lock").unlink()
            shutil.rmtree(root / "parts")
        return contextlib.nullcontext(children)

    monkeypatch.setattr(os, "scandir", remove_then_list)
    bundle = scanned(root)
    assert {path for path, entry in by_path(bundle).items() if entry.kind is EntryKind.FILE} == {"task.py"}
    assert bundle.notes == ("not uploaded: lock (it vanished)",)


@pytest.mark.parametrize("mark", ["pyvenv.cfg", "conda-meta/history"])
def test_virtual_environments_of_any_name_are_left_out(root: Path, mark: str) -> None:
    put(root / "task.py")
    put(root / "my-env" / mark)
    put(root / "my-env" / "lib" / "big.so")
    put(root / "tools" / "env" / mark)
    assert set(by_path(scanned(root))) == {"task.py"}
    entries = by_path(scanned(root, DataSource(root / "my-env", "my-env")))  # on request all of it
    assert entries["my-env/lib/big.so"].kind is EntryKind.DATA
    assert "lib/big.so" in by_path(scanned(root / "my-env"))


def test_a_large_upload_is_announced_with_its_largest_directories(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle_module, "LARGE_BYTES", 100)
    put(root / "task.py", b"x" * 20)
    for name, size in (("a", 10), ("b", 30), ("c", 20), ("d", 15)):
        put(root / name / "file", bytes([ord(name)]) * size)
    assert scanned(root).notes == ()
    put(root / "d" / "more", b"y" * 10)
    (note,) = scanned(root).notes
    assert "most of them in b 30 bytes, d 25 bytes, c 20 bytes;" in note
    assert ".fleetignore" in note


def test_a_link_to_a_directory_that_does_not_go_along_is_named(root: Path) -> None:
    (root.parent / "outside").mkdir()
    (root / "loop").symlink_to("../outside")
    with pytest.raises(UsageError, match="loop is a link"):
        scanned(root)
    put(root / ".fleetignore", b"loop")
    scanned(root)


def test_sockets_and_fifos_are_left_out_with_a_note(root: Path) -> None:
    os.mkfifo(root / "pipe")
    os.mknod(root / "socket", stat.S_IFSOCK | 0o600)
    put(root / "a")
    assert set(by_path(scanned(root))) == {"a"}
    assert scanned(root).notes == ("not uploaded: pipe (a FIFO), socket (a socket)",)


def test_a_name_that_is_not_utf8_goes_along(root: Path) -> None:
    put(Path(os.fsdecode(os.fsencode(root) + b"/caf\xe9\n.txt")))
    (entry,) = scanned(root).entries
    assert os.fsencode(entry.path) == b"caf\xe9\n.txt"


@pytest.mark.parametrize("home", [True, False])
def test_home_and_root_are_refused(root: Path, home: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(root))
    with pytest.raises(UsageError, match="refusing to upload all of"):
        scanned(root if home else Path("/"))


def test_too_many_files_name_the_directory_that_holds_most(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle_module, "MAX_FILES", 5)
    for number in range(5):
        put(root / "frames" / f"{number}")
    scanned(root)
    put(root / "task.py")
    with pytest.raises(UsageError, match="more than 5 files") as raised:
        scanned(root)
    assert "5 of the first 6 are in its directory frames" in raised.value.cause
    assert ".fleetignore" in raised.value.hint


def test_too_many_bytes_name_the_directory_that_holds_most(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle_module, "MAX_BYTES", 100)
    put(root / "task.py", b"x" * 10)
    big = put(root / "big" / "a", b"x" * 91)
    with pytest.raises(UsageError, match="GiB") as raised:
        scanned(root)
    assert "91 of 101 bytes are in its directory big" in raised.value.cause
    bundle = scanned(root, DataSource(big.parent, "big"))  # data has no limit
    assert by_path(bundle)["big/a"].kind is EntryKind.DATA


def test_an_unreadable_file_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(root / "secret")

    def refuse(path: str) -> tuple[str, int]:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(hashes, "hash_file", refuse)
    with pytest.raises(UsageError, match="secret cannot be read") as raised:
        scanned(root)
    assert raised.value.cause == "Permission denied"


# --- data -------------------------------------------------------------------------------------------------------


def test_data_ignores_the_ignore_files(root: Path, tmp_path: Path) -> None:
    put(root / "task.py")
    put(root / ".gitignore", b"*.npz\ndata\n")
    put(root / "data" / "digits.npz")
    put(root / "data" / ".gitignore", b"*")
    put(root / "data" / "__pycache__" / "x.pyc")
    entries = by_path(scanned(root, parse_data(str(root / "data"))))
    kinds = {path: entry.kind for path, entry in entries.items()}
    assert kinds == {
        ".gitignore": EntryKind.FILE, "task.py": EntryKind.FILE, "data/digits.npz": EntryKind.DATA,
        "data/.gitignore": EntryKind.DATA, "data/__pycache__/x.pyc": EntryKind.DATA,
    }  # fmt: skip


def test_data_takes_the_place_of_a_link_of_its_name(root: Path, tmp_path: Path) -> None:
    put(tmp_path / "big" / "deep" / "a", b"1")
    (tmp_path / "big" / "again").symlink_to("deep/a")
    (root / "data").symlink_to(tmp_path / "big")
    entries = by_path(scanned(root, parse_data(f"{root}/data:data")))
    assert entries["data/deep/a"].kind is EntryKind.DATA
    assert entries["data/again"] == Entry("data/again", EntryKind.LINK, 0o644, target="deep/a")


def test_data_below_a_file_is_refused(root: Path, tmp_path: Path) -> None:
    put(root / "task.py")
    source = put(tmp_path / "x")
    with pytest.raises(UsageError, match=r"under the file task\.py"):
        scanned(root, DataSource(source, "task.py/x"))


def test_a_directory_of_data_that_is_empty_goes_along(root: Path, tmp_path: Path) -> None:
    put(root / "task.py")
    (tmp_path / "empty").mkdir()
    assert by_path(scanned(root, parse_data(str(tmp_path / "empty"))))["empty"].kind is EntryKind.DIRECTORY


@pytest.mark.parametrize(
    ("text", "destination"),
    [
        ("{}/d", "d"), ("{}/d:x/y", "x/y"), ("{}/d:x/", "x/d"), ("{}/d:./x", "x"), ("{}/d/", "d"), ("{}/d:.", ""),
        ("{}/f.npz", "f.npz"), ("{}/f.npz:.", "f.npz"), ("{}/f.npz:in/g.npz", "in/g.npz"), ("{}/a:b", "a:b"),
    ],
)  # fmt: skip
def test_destinations_of_data(tmp_path: Path, text: str, destination: str) -> None:
    (tmp_path / "d").mkdir()
    put(tmp_path / "f.npz")
    put(tmp_path / "a:b")
    parsed = parse_data(text.format(tmp_path))
    assert parsed.destination == destination
    assert parsed.source.exists()


@pytest.mark.parametrize("text", ["{}/none", "{}/d:/abs", "{}/d:../x", "{}/d:x/../../y", "gs://bucket/x", "", ":x"])
def test_invalid_data_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "d").mkdir()
    with pytest.raises(UsageError, match="--data"):
        parse_data(text.format(tmp_path))


# --- hashes -----------------------------------------------------------------------------------------------------


def test_unchanged_files_are_not_read_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashes, "SETTLED_NS", -1)
    put(root / "a", b"one")
    first = scanned(root)
    reads: list[str] = []

    def counted(path: str) -> tuple[str, int]:
        reads.append(path)
        return hash_file(path)

    monkeypatch.setattr(hashes, "hash_file", counted)
    assert scanned(root).digest == first.digest
    assert reads == []
    put(root / "a", b"two")
    assert scanned(root).digest != first.digest
    assert reads == [str(root / "a")]


def test_large_files_are_hashed_in_threads(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(2)

    def counted(path: str, _is_over: Callable[[], bool]) -> tuple[str, int]:
        together.wait(30)
        return hash_file(path)

    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr(hashes, "hash_file", counted)
    contents = {name: os.urandom(1 << 20) for name in "abcd"}
    for name, content in contents.items():
        put(root / name, content)
    entries = by_path(scanned(root))
    assert {name: entries[name].sha256 for name in contents} == {
        name: hashlib.sha256(content).hexdigest() for name, content in contents.items()
    }


def test_a_large_file_that_cannot_be_read_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, _is_over: Callable[[], bool]) -> tuple[str, int]:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(hashes, "hash_file", refuse)
    for name in "ab":
        put(root / name, bytes(1 << 20))
    with pytest.raises(UsageError, match="a cannot be read"):
        scanned(root)


def test_an_error_ends_the_reading_of_other_large_files(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads_b = threading.Event()

    def refuse_a(path: str, is_over: Callable[[], bool]) -> tuple[str, int]:
        if path.endswith("a"):
            assert reads_b.wait(30)
            raise PermissionError(13, "Permission denied", path)
        reads_b.set()
        while True:  # a file without an end
            hash_file(path, is_over)

    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr(hashes, "hash_file", refuse_a)
    for name in "ab":
        put(root / name, bytes(1 << 20))
    with pytest.raises(UsageError, match="a cannot be read"):
        scanned(root)


def test_a_file_that_was_just_changed_is_not_remembered(root: Path) -> None:
    put(root / "a")
    scanned(root)
    assert not (root.parent / "hashes.json").exists()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"x": 3}', b"\xff\xfe"])
def test_a_broken_cache_is_an_empty_one(root: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashes, "SETTLED_NS", -1)
    cache = root.parent / "hashes.json"
    cache.write_bytes(content)
    put(root / "a")
    scanned(root)
    assert list(json.loads(cache.read_text())) == [str(root / "a")]


# --- the compressed stream --------------------------------------------------------------------------------------


def unpacked(pieces: list[Piece]) -> bytes:
    return b"".join(unpack_block(piece.data, piece.size) for piece in pieces)


def test_the_stream_holds_the_wanted_contents_in_their_order(root: Path) -> None:
    contents = {name: os.urandom(700_000) for name in ("a", "b", "c")}
    for name, content in contents.items():
        put(root / name, content)
    with scanned(root) as bundle:
        entries = by_path(bundle)
        pieces = list(bundle.compress([entries["c"].sha256, entries["a"].sha256]).pieces())
    assert max(len(piece.data) for piece in pieces) <= BLOCK_BYTES
    assert [piece.raw_end for piece in pieces] == sorted(piece.raw_end for piece in pieces)
    assert pieces[-1].raw_end == 1_400_000
    assert unpacked(pieces) == contents["c"] + contents["a"]


def test_hosts_that_want_the_same_share_one_stream(root: Path) -> None:
    put(root / "a", os.urandom(3_000_000))
    put(root / "b", b"b")
    with scanned(root) as bundle:
        wanted = [entry.sha256 for entry in bundle.entries]
        streams = {id(bundle.compress(wanted)) for _ in range(3)}
        assert len(streams) == 1
        assert bundle.compress(wanted[:1]) is not bundle.compress(wanted)
        read: list[bytes] = []
        threads = [
            threading.Thread(target=lambda: read.append(b"".join(p.data for p in bundle.compress(wanted).pieces())))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(read) == 4
    assert len(set(read)) == 1


@pytest.mark.parametrize("content", [b"longer than before", b"short", b"equal!", None])
def test_a_file_that_changes_after_the_scan_is_named(root: Path, content: bytes | None) -> None:
    file = put(root / "task.py", b"before")
    with scanned(root) as bundle:
        if content is None:
            file.unlink()
        else:
            file.write_bytes(content)
        with pytest.raises(UsageError, match=r"task\.py changed while it was being sent"):
            list(bundle.compress([bundle.entries[0].sha256]).pieces())


def test_a_log_that_grows_after_the_scan_is_sent_as_it_was_scanned(root: Path) -> None:
    file = put(root / "run.log", b"first line\n")
    with scanned(root) as bundle:
        with file.open("ab") as log:
            log.write(b"second line\n")
        pieces = list(bundle.compress([bundle.entries[0].sha256]).pieces())
    assert unpacked(pieces) == b"first line\n"


def test_large_contents_for_hosts_on_this_computer_are_not_compressed(root: Path) -> None:
    content = b"text" * (5 << 20)
    put(root / "a", content)
    with scanned(root) as bundle:
        pieces = list(bundle.compress([bundle.entries[0].sha256], is_local=True).pieces())
    assert unpacked(pieces) == content
    assert {piece.size for piece in pieces} == {0}


def test_closing_ends_the_compression(root: Path) -> None:
    put(root / "a", os.urandom(50_000_000))
    bundle = scanned(root)
    next(bundle.compress([bundle.entries[0].sha256]).pieces())
    bundle.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "compress"]


def test_the_keys_of_fleets_never_go_along(root: Path) -> None:
    put(root / "task.py")
    put(root / "state" / "fleets" / "default" / "id_ed25519", b"secret")
    state = root / "state"
    everything = scan(root, None, [DataSource(root, "all")], root.parent / "hashes.json", state=state)
    assert sorted(entry.path for entry in everything.entries if entry.kind is not EntryKind.DIRECTORY) == [
        "all/task.py",
        "task.py",
    ]


def test_a_directory_that_fleet_pull_made_is_not_uploaded(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "task.py").write_text("")
    with Target(work / "results" / "j", "j") as target:
        target.finish({})
    scanned = scan(work, None, (), tmp_path / "cache")
    assert [entry.path for entry in scanned.entries] == ["task.py"]
    assert scanned.notes == ("not uploaded: results/ (results that fleet pull copied; --data uploads them)",)
    shutil.rmtree(work / "results" / "j")
    assert [entry.path for entry in scan(work, None, (), tmp_path / "cache").entries] == ["task.py"]


def test_a_directory_of_the_user_goes_along_without_the_results_in_it(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "mine").write_text("")
    with Target(tmp_path / "results" / "j", "j") as target:
        target.finish({})
    scanned = scan(tmp_path, None, (), tmp_path.parent / "cache")
    assert [entry.path for entry in scanned.entries] == ["results/mine"]
    assert scanned.notes == ("not uploaded: results/j/ (results that fleet pull copied; --data uploads them)",)
