"""A capsule: one ZIP file with everything that is needed to repeat a job.

    capsule.json               what to run, and the hash of each other member
    job.json                   the description of the job, as a report shows it
    source/…                   the files that were uploaded
    packages/TASK.txt          the packages of the task's interpreter, as `pip freeze` lists them
    logs/TASK/attempt-N.log    the start and the end of its output

A capsule can come from anywhere: all of it is checked before any of its files is used. It has no links; those of the
source are described in capsule.json. Values of environment variables are not in it.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from fleet.errors import UsageError
from train.agent.files.contents import check_entries
from train.agent.files.disk import readable_size
from train.agent.protocol.errors import RefusedError
from train.agent.protocol.records import Entry, EntryKind, MalformedRecordError, build, to_dict
from train.agent.protocol.strict_json import JsonError, parse_object

FORMAT = 1
LARGEST = 1 << 30
"""Maximum size of all members in bytes, uncompressed."""

_MANIFEST = "capsule.json"
_SOURCE = "source/"
_MOST_MEMBERS = 25_000
_LARGEST_LIST = 8 << 20  # bytes
_END_BYTES = (1 << 16) + 64  # at the end of a ZIP file, with its comment
_LARGEST_MANIFEST = 32 << 20
_PIECE = 1 << 20
_DATE = (1980, 1, 1, 0, 0, 0)


class Manifest(NamedTuple):
    """Description of what a capsule runs.

    Attributes:
        format: Version of the format.
        job: The job that it repeats.
        options: Options of `fleet train` and SCRIPT, relative to the source.
        entries: The files that were uploaded.
        files: The SHA-256 of each member but capsule.json, by name.
        program: Arguments after ``--``.
        name: Name of the job; empty: none.
        requirements: Lines of a requirements file; empty: nothing is installed.
        constraints: Lines of a constraints file.
        versions: Versions of Python and packages on its hosts.
        environment: Names of the variables that must be set.
    """

    format: int
    job: str
    options: list[str]
    entries: list[Entry]
    files: dict[str, str] = {}
    program: list[str] = []
    name: str = ""
    requirements: str = ""
    constraints: str = ""
    versions: dict[str, str] = {}
    environment: list[str] = []


def write_capsule(path: Path, manifest: Manifest, texts: Mapping[str, bytes], contents: Path) -> int:
    """Write a capsule; return its size in bytes.

    Args:
        path: The file, which is replaced atomically.
        manifest: What it runs, without `files`.
        texts: Further members by name.
        contents: Directory with the contents of the source, named by their hashes.

    Raises:
        OSError: it cannot be written.
        ValueError: the name of a file cannot be stored.
    """
    files = {name: hashlib.sha256(data).hexdigest() for name, data in texts.items()}
    sources = [entry for entry in manifest.entries if entry.kind in (EntryKind.FILE, EntryKind.DATA)]
    files |= {_SOURCE + entry.path: entry.sha256 for entry in sources}
    description = json.dumps(to_dict(manifest._replace(files=files)), indent=1).encode()
    temporary = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(_info(_MANIFEST), description)
            for name, data in texts.items():
                archive.writestr(_info(name), data)
            for entry in sources:
                with archive.open(_info(_SOURCE + entry.path, entry.mode), "w") as target:
                    _copy((contents / entry.sha256).open("rb"), target)
        size = temporary.stat().st_size
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return size


def _info(name: str, mode: int = 0o644) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, _DATE)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = (0o100000 | mode) << 16
    return info


def _copy(source: IO[bytes], target: IO[bytes]) -> None:
    with source:
        while data := source.read(_PIECE):
            target.write(data)


def is_capsule(path: Path) -> bool:
    """Return whether a file may be a capsule, by the names of its members."""
    try:
        _check_directory(path)
        with zipfile.ZipFile(path) as archive:
            return _MANIFEST in archive.namelist()
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError):
        return False


def _check_directory(path: Path) -> None:
    """Check the size of the list of members, which `zipfile` reads at once, and that it has the form for small lists.

    Format: APPNOTE.TXT of ZIP, 4.3.16 (end of central directory record) and 4.3.15 (its locator in ZIP64).

    Raises:
        ValueError: it is too large.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _END_BYTES))
        end = file.read(_END_BYTES)
    at = end.rfind(b"PK\x05\x06")
    if at >= 0 and (
        int.from_bytes(end[at + 12 : at + 16], "little") > _LARGEST_LIST or b"PK\x06\x07" in end[max(0, at - 20) : at]
    ):
        raise ValueError("it has too many members")


def unpack_capsule(path: Path, directory: Path) -> Manifest:
    """Check a capsule completely, and write its source below an empty directory.

    Args:
        path: The capsule.
        directory: The directory; nothing is written outside it.

    Raises:
        UsageError: it is not a capsule, is damaged, is too large, or contains something that it must not.
    """
    try:
        _check_directory(path)
        with zipfile.ZipFile(path) as archive:
            manifest = _read_manifest(archive)
            _check_members(archive, manifest)
            _unpack(archive, manifest, directory)
    except OSError as error:
        raise UsageError(f"{str(path)!r} cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, EOFError) as error:
        raise _refused(path, str(error)) from None
    except (RuntimeError, zlib.error) as error:  # encrypted; a damaged stream
        raise _refused(path, str(error)) from None
    return manifest


def _refused(path: Path, cause: str) -> UsageError:
    return UsageError(f"{str(path)!r} is not a capsule of fleet report, or is damaged", cause=cause)


def _read_manifest(archive: zipfile.ZipFile) -> Manifest:
    with archive.open(_MANIFEST) as file:
        data = file.read(_LARGEST_MANIFEST + 1)
    try:
        values = parse_object(data, _LARGEST_MANIFEST)
        if values.get("format") != FORMAT:
            raise ValueError(
                f"its format is {values.get('format')!r}, and this version of fleet reads format {FORMAT}"
            )
        manifest: Manifest = build(Manifest, values)
        check_entries(manifest.entries)
    except (JsonError, MalformedRecordError, RefusedError) as error:
        raise ValueError(f"{_MANIFEST}: {error}") from None
    return manifest


def _check_members(archive: zipfile.ZipFile, manifest: Manifest) -> None:
    """Check that a capsule has the members that it describes, and no others.

    Raises:
        ValueError: it has not.
    """
    infos = archive.infolist()
    names = [info.filename for info in infos]
    if len(infos) > _MOST_MEMBERS or len(set(names)) != len(names):
        raise ValueError("it has too many members, or two with one name")
    if {*names} != {*manifest.files, _MANIFEST}:
        differing = sorted({*names} ^ {*manifest.files, _MANIFEST})[0]
        raise ValueError(f"the member {differing!r:.100} is missing, or is not described in {_MANIFEST}")
    for info in infos:
        kind = info.external_attr >> 28
        if info.is_dir() or kind not in (0, 0o10) or info.flag_bits & 1:
            raise ValueError(f"the member {info.filename!r:.100} is not a plain file")
    size = sum(info.file_size for info in infos)
    if size > LARGEST:
        raise ValueError(f"its contents have {readable_size(size)}, and {readable_size(LARGEST)} are the limit")


def _unpack(archive: zipfile.ZipFile, manifest: Manifest, directory: Path) -> None:
    """Write the source; check the hashes of all members.

    Raises:
        ValueError: a member has another hash or size.
    """
    modes = {_SOURCE + entry.path: entry for entry in manifest.entries if entry.kind is not EntryKind.LINK}
    for name, expected in manifest.files.items():
        entry = modes.get(name)
        if name.startswith(_SOURCE) and (entry is None or entry.sha256 != expected):
            raise ValueError(f"the member {name!r:.100} is not one of the uploaded files")
        target = directory / entry.path if entry is not None else None
        if target is not None and entry is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
            _extract(archive, name, expected, target)
            target.chmod(entry.mode & 0o777 | 0o600)
        else:
            _extract(archive, name, expected, None)
    _create_others(manifest.entries, {*manifest.files}, directory)


def _extract(archive: zipfile.ZipFile, name: str, expected: str, target: Path | None) -> None:
    hashed, left = hashlib.sha256(), archive.getinfo(name).file_size
    with archive.open(name) as source, (target or Path(os.devnull)).open("wb") as file:
        while data := source.read(_PIECE):
            left -= len(data)
            if left < 0:
                break
            hashed.update(data)
            file.write(data)
    if left or hashed.hexdigest() != expected:
        raise ValueError(f"the member {name!r:.100} has another hash than {_MANIFEST} says")


def _create_others(entries: Sequence[Entry], members: set[str], directory: Path) -> None:
    """Create directories and, when all files are written, links, which lead to no place outside."""
    for entry in entries:
        if entry.kind is EntryKind.DIRECTORY:
            (directory / entry.path).mkdir(parents=True, exist_ok=True)
        elif entry.kind is not EntryKind.LINK and _SOURCE + entry.path not in members:
            raise ValueError(f"the file {entry.path!r:.100} is missing")
    for entry in entries:
        if entry.kind is EntryKind.LINK:
            (directory / entry.path).parent.mkdir(parents=True, exist_ok=True)
            (directory / entry.path).symlink_to(entry.target)
