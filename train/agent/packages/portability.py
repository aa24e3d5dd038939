"""Decide whether an environment of one host works on another one, and list and verify its files."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from typing import Callable, Dict, Iterator, List, NamedTuple, Sequence, Tuple

from train.agent.files.containment import is_inner_link
from train.agent.files.contents import check_entries, hash_file
from train.agent.files.disk import copy_file, make_directory, read_text, remove_file
from train.agent.files.paths import VenvPaths
from train.agent.packages.venv import Base
from train.agent.protocol.errors import RefusedError
from train.agent.protocol.records import Entry, EntryKind, Refusal
from train.agent.protocol.strict_json import parse_object

LONGEST_LISTING = 64 << 20  # bytes
_DEEPEST = 100  # directories; `remove_tree` calls itself for each
_OS_RELEASE = "/etc/os-release"
_INTERPRETERS = re.compile(r"bin/python[0-9.]*t?")  # links to the interpreter, which each host creates itself
_OF_THE_HOST = ("pyvenv.cfg",)


class Item(NamedTuple):
    """A path of an environment.

    The time of a source file is part of its bytecode:
    https://docs.python.org/3/library/py_compile.html#py_compile.PycInvalidationMode.TIMESTAMP.
    """

    entry: Entry
    mtime_ns: int


def environment_key(paths: VenvPaths, base: Base, installed: Sequence[str]) -> str:
    """Return a hash of everything that must be equal on two hosts to use an environment of one on the other.

    Args:
        paths: Paths of the environment; its name is a hash of requirements, index, and interpreter.
        base: The interpreter.
        installed: Packages on top of which it was created, ``NAME==VERSION``.
    """
    system = os.uname()
    release = [line for line in read_text(_OS_RELEASE).split("\n") if line.startswith(("ID=", "VERSION_ID="))]
    parts = [
        *(paths.directory, base.path, base.version, os.path.expanduser("~")),
        *(system.sysname, system.machine, _c_library(), *sorted(release)),
        *installed,
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _c_library() -> str:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):  # another C library than glibc
        return ""


def read_listing(paths: VenvPaths) -> List[Item]:
    """Return the items of an environment when it was copied last; empty if it was not."""
    try:
        with open(paths.listing, "rb") as file:
            return decode_items(file.read())
    except (OSError, RefusedError):
        return []


def list_items(paths: VenvPaths, earlier: Sequence[Item], tick: Callable[[int], None]) -> List[Item]:
    """Return the files, links, and directories of an environment with the hashes of their contents, sorted.

    Args:
        paths: Paths of the environment.
        earlier: Items of an earlier copy. Files with the same size and time of change are not read again: a host
            that receives other contents refuses them.
        tick: Called for each piece with the bytes of the files that were read so far.

    Raises:
        RefusedError: it contains something that cannot be copied, such as a link that leads out of it.
        OSError: a file cannot be read.
    """
    items: List[Item] = []
    hashes = {(item.entry.path, item.entry.size, item.mtime_ns): item.entry.sha256 for item in earlier}
    total = 0

    def read() -> bool:
        tick(total)
        return False

    for path, status in _walk(paths.directory, ""):
        mode = stat.S_IMODE(status.st_mode)
        absolute = os.path.join(paths.directory, path)
        if stat.S_ISDIR(status.st_mode):
            entry = Entry(path, EntryKind.DIRECTORY, mode)
        elif stat.S_ISLNK(status.st_mode):
            target = os.readlink(absolute)
            if not is_inner_link(path, target):
                raise RefusedError(Refusal.REQUEST, f"{absolute} is a link out of the environment, to {target}")
            entry = Entry(path, EntryKind.LINK, mode, target=target)
        elif stat.S_ISREG(status.st_mode):
            digest, size = hashes.get((path, status.st_size, status.st_mtime_ns), ""), status.st_size
            if not digest:
                digest, size = hash_file(absolute, read)
            entry = Entry(path, EntryKind.FILE, mode, size, digest)
            total += size
            tick(total)
        else:
            raise RefusedError(Refusal.REQUEST, f"{absolute} is not a file, link, or directory")
        items.append(Item(entry, status.st_mtime_ns))
    return items


def _walk(directory: str, above: str) -> Iterator[Tuple[str, os.stat_result]]:
    """Yield the paths below a directory that are copied, relative to it, with the status of each."""
    for name in sorted(os.listdir(os.path.join(directory, above))):
        path = f"{above}{name}"
        if not is_copied(path):
            continue
        status = os.lstat(os.path.join(directory, path))
        yield path, status
        if stat.S_ISDIR(status.st_mode):
            yield from _walk(directory, f"{path}/")


def is_copied(path: str) -> bool:
    """Return True if a path of an environment is copied; the others are created on each host."""
    paths = VenvPaths("")
    others = (*_OF_THE_HOST, paths.ready, paths.listing, paths.scratch)
    of_the_host = path.startswith(f"{paths.scratch}/") or _INTERPRETERS.fullmatch(path)
    return path not in others and not of_the_host


def encode_items(items: Sequence[Item]) -> bytes:
    """Return a list of items as JSON."""
    rows = [[*item.entry, item.mtime_ns] for item in items]
    return json.dumps({"items": rows}, separators=(",", ":")).encode()


def decode_items(data: bytes) -> List[Item]:
    """Return the items of a list that another host has sent.

    Raises:
        RefusedError: it is invalid, or a path is not inside the environment or is not one to copy.
    """
    try:
        rows = parse_object(data, LONGEST_LISTING)["items"]
        items = [_item(*row) for row in rows]
    except (ValueError, TypeError, LookupError) as error:
        raise RefusedError(Refusal.BUNDLE, f"the list of files is invalid: {error}") from error
    check_entries([item.entry for item in items])
    deep = next((item.entry.path for item in items if item.entry.path.count("/") >= _DEEPEST), "")
    if deep:
        raise RefusedError(Refusal.BUNDLE, f"{deep[:40]}… is too deep")
    if not all(is_copied(item.entry.path) for item in items):
        raise RefusedError(Refusal.BUNDLE, "the list of files has a file that each host creates itself")
    return items


def _item(path: str, kind: str, mode: int, size: int, sha256: str, target: str, mtime_ns: int) -> Item:
    texts = all(isinstance(text, str) for text in (path, sha256, target))
    if not texts or not all(isinstance(number, int) for number in (mode, size, mtime_ns)):
        raise ValueError("a field of another type")
    return Item(Entry(path, EntryKind(kind), mode & 0o777, size, sha256, target), mtime_ns)


def contents_of(items: Sequence[Item]) -> Dict[str, Item]:
    """Return the first item with each content, by its hash."""
    contents: Dict[str, Item] = {}
    for item in items:
        if item.entry.kind is EntryKind.FILE:
            contents.setdefault(item.entry.sha256, item)
    return contents


def complete(directory: str, items: Sequence[Item], tick: Callable[[], None]) -> None:
    """Complete an environment whose contents have arrived at the paths of `contents_of`.

    Args:
        directory: The environment.
        items: Its items.
        tick: Called after each.

    Raises:
        OSError: a file cannot be written.
    """
    first = {digest: item.entry.path for digest, item in contents_of(items).items()}
    later: List[Item] = []
    for item in items:
        path = os.path.join(directory, item.entry.path)
        if item.entry.kind is EntryKind.DIRECTORY:
            make_directory(path)
            later.append(item)
        elif item.entry.kind is EntryKind.LINK:
            later.append(item)
        elif item.entry.path == first[item.entry.sha256]:
            os.chmod(path, item.entry.mode)
            os.utime(path, ns=(item.mtime_ns, item.mtime_ns))
        else:
            remove_file(path)
            copy_file(os.path.join(directory, first[item.entry.sha256]), path, item.entry.mode, item.mtime_ns)
        tick()
    for item in reversed(later):  # a directory without the permission to write into it comes after its files
        path = os.path.join(directory, item.entry.path)
        if item.entry.kind is EntryKind.LINK:
            remove_file(path)
            os.symlink(item.entry.target, path)
        else:
            os.chmod(path, item.entry.mode)
