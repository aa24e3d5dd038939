"""A capsule: one ZIP file with everything that is needed to repeat a job.

    capsule.json          what to run, and the uploaded files with their hashes
    job.json              the description of the job, as a report shows it
    source/…              the files that were uploaded
    packages/TASK.txt     the packages of the task's interpreter, as `pip freeze` lists them

A capsule can come from anywhere: only files that capsule.json describes are used, and each is checked. It has no
links; those of the source are described in capsule.json. Values of environment variables are not in it.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from fleet.errors import UsageError
from train.agent.files.contents import check_entries
from train.agent.files.disk import readable_size
from train.agent.protocol.errors import RefusedError
from train.agent.protocol.records import Entry, EntryKind, MalformedRecordError, build, to_dict
from train.agent.protocol.strict_json import JsonError, parse_object

FORMAT = 1
LARGEST = 1 << 30
"""Maximum size of the source in bytes, uncompressed."""

_MANIFEST = "capsule.json"
_SOURCE = "source/"
_LARGEST_MANIFEST = 32 << 20
_PIECE = 1 << 20


class Manifest(NamedTuple):
    """Description of what a capsule runs.

    Attributes:
        format: Version of the format.
        job: The job that it repeats.
        options: Options of `fleet train` and SCRIPT, relative to the source.
        entries: The files that were uploaded.
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
    program: list[str] = []
    name: str = ""
    requirements: str = ""
    constraints: str = ""
    versions: dict[str, str] = {}
    environment: list[str] = []


def write_capsule(path: Path, manifest: Manifest, texts: Mapping[str, bytes], contents: Path) -> None:
    """Write a capsule.

    Args:
        path: The file, which is replaced atomically.
        manifest: What it runs.
        texts: Further members by name.
        contents: Directory with the contents of the source, named by their hashes.

    Raises:
        OSError: it cannot be written.
        ValueError: the name of a file cannot be stored.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(_MANIFEST, json.dumps(to_dict(manifest), indent=1))
            for name, data in texts.items():
                archive.writestr(name, data)
            for entry in manifest.entries:
                if entry.kind in (EntryKind.FILE, EntryKind.DATA):
                    archive.write(contents / entry.sha256, _SOURCE + entry.path)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def is_capsule(path: Path) -> bool:
    """Return whether a file may be a capsule, by the names of its members."""
    try:
        with zipfile.ZipFile(path) as archive:
            return _MANIFEST in archive.namelist()
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError):
        return False


def unpack_capsule(path: Path, directory: Path) -> Manifest:
    """Check a capsule, and write its source below an empty directory.

    Args:
        path: The capsule.
        directory: The directory; nothing is written outside it.

    Raises:
        UsageError: it is not a capsule, is damaged, is too large, or contains something that it must not.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            manifest = _read_manifest(archive)
            for entry in sorted(manifest.entries, key=lambda entry: entry.kind is EntryKind.LINK):  # links last
                _unpack(archive, entry, directory / entry.path)
    except OSError as error:
        raise UsageError(f"{str(path)!r} cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise UsageError(f"{str(path)!r} is not a capsule of fleet report, or is damaged", cause=str(error)) from None
    return manifest


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
    size = sum(entry.size for entry in manifest.entries if entry.kind in (EntryKind.FILE, EntryKind.DATA))
    if size > LARGEST:
        raise ValueError(f"its contents have {readable_size(size)}, and {readable_size(LARGEST)} are the limit")
    return manifest


def _unpack(archive: zipfile.ZipFile, entry: Entry, target: Path) -> None:
    """Write a file, a directory, or a link, which leads to no path outside.

    Raises:
        ValueError: a member has another hash or size.
    """
    if entry.kind is EntryKind.DIRECTORY:
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if entry.kind is EntryKind.LINK:
        target.symlink_to(entry.target)
        return
    hashed, left = hashlib.sha256(), entry.size
    with archive.open(_SOURCE + entry.path) as source, target.open("wb") as file:
        while left >= 0 and (data := source.read(_PIECE)):
            left -= len(data)
            hashed.update(data)
            file.write(data)
    if left or hashed.hexdigest() != entry.sha256:
        raise ValueError(f"the file {entry.path!r:.100} has another hash than {_MANIFEST} names")
    target.chmod(entry.mode & 0o777 | 0o600)
