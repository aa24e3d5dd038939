"""Decide the paths of pulled results on this computer, from the lists of the hosts, without I/O.

    model/                 of the chief
    checkpoints/           of the chief
    tensorboard/TASK/      event files
        files/TASK/            files that the task wrote into its working directory
    logs/TASK/             its output, a file for each attempt
        others/TASK/model/     files of another task that differ from the chief's, in their name or contents
    others/TASK/checkpoints/

Names come from hosts, which this computer does not trust: all paths are inside the directory.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Sequence
from dataclasses import field

from provision.deferred import dataclass
from provision.quantities import counted
from train.agent.protocol.records import Area, EntryKind, FileEntry

_SHARED = (Area.MODEL, Area.CHECKPOINTS)
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_LONGEST_NAME = 255  # bytes
_LONGEST_PATH = 3500  # bytes; the path of the target is put before it
_MOST_NOTES = 20


@dataclass(frozen=True)
class Listed:
    """The results of a task.

    Attributes:
        task: Its name.
        entries: Its results.
    """

    task: str
    entries: Sequence[FileEntry]


@dataclass(frozen=True)
class Item:
    """A file, link or empty directory to create.

    Attributes:
        path: Path relative to the target, with forward slashes.
        entry: Its entry in the list of the host.
        source: Index of the task from which it comes.
    """

    path: str
    entry: FileEntry
    source: int


@dataclass
class Layout:
    """The files, links, and directories to create for the results.

    Attributes:
        files: Files.
        links: Links; all targets are inside the directory of their kind.
        directories: Empty directories.
        notes: A sentence for each thing that is left out.
        lossy: Indices of tasks of which something with data was left out.
    """

    files: list[Item] = field(default_factory=list)
    links: list[Item] = field(default_factory=list)
    directories: list[Item] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    lossy: set[int] = field(default_factory=set)


def lay_out(tasks: Sequence[Listed]) -> Layout:
    """Decide the path of each result.

    Args:
        tasks: The tasks of a job, the chief first, then by rank.
    """
    made = _Maker()
    primary = {area: _first_with(area, tasks) for area in _SHARED}
    copies = {
        area: {_identity(entry) for entry in tasks[first].entries if entry.area is area and _is_readable(entry)}
        for area, first in primary.items()
    }
    for source, task in enumerate(tasks):
        for entry in task.entries:
            prefix = f"{entry.area.value}/{task.task}"
            if entry.area in primary and primary[entry.area] == source:
                prefix = entry.area.value
            elif entry.area in primary:
                if _identity(entry) in copies[entry.area]:
                    continue
                prefix = f"others/{task.task}/{entry.area.value}"
            made.add(prefix, entry, source, task.task)
    return made.finish()


def _identity(entry: FileEntry) -> tuple[str, EntryKind, str, str]:
    """Return a value that equal copies of a file on several hosts share: a name is a part of the results, too."""
    return entry.path, entry.kind, entry.sha256, entry.target


def _is_readable(entry: FileEntry) -> bool:
    return entry.kind is not EntryKind.FILE or bool(entry.sha256)


def _first_with(area: Area, tasks: Sequence[Listed]) -> int:
    """Return the index of the first task that has files of this kind; 0 if none has."""
    for source, task in enumerate(tasks):
        if any(entry.area is area and entry.kind is EntryKind.FILE for entry in task.entries):
            return source
    return 0


class _Maker:
    def __init__(self) -> None:
        self._layout = Layout()
        self._files: set[str] = set()
        self._directories: set[str] = set()
        self._left_out: dict[tuple[str, str, str], list[str]] = {}

    def add(self, prefix: str, entry: FileEntry, source: int, task: str) -> None:
        relative = local_path(entry.path)
        path = f"{prefix}/{relative}"
        reason = "" if relative else "a name that points outside the directory or is too long"
        if not _is_readable(entry):
            reason = "a content that cannot be read on the host"
        elif entry.kind is EntryKind.LINK and not stays_inside(entry.path, entry.target):
            self._omit(task, "link", "a target outside the directory", entry.path)
            return
        elif relative and not self._is_free(path):
            reason = "a name that another file has"
        if reason:
            self._omit(task, "file", reason, entry.path)
            self._layout.lossy.add(source)
            return
        self._directories.update(_parents(path))
        if entry.kind is EntryKind.DIRECTORY:
            self._directories.add(path)
        else:
            self._files.add(path)
        items = {EntryKind.LINK: self._layout.links, EntryKind.DIRECTORY: self._layout.directories}
        items.get(entry.kind, self._layout.files).append(Item(path, entry, source))

    def _is_free(self, path: str) -> bool:
        return path not in self._files and path not in self._directories and self._files.isdisjoint(_parents(path))

    def _omit(self, task: str, noun: str, reason: str, path: str) -> None:
        self._left_out.setdefault((task, noun, reason), []).append(path)

    def finish(self) -> Layout:
        for (task, noun, reason), paths in list(self._left_out.items())[:_MOST_NOTES]:
            first = f"{'first: ' if len(paths) > 1 else ''}{ascii(paths[0])[:60]}"
            self._layout.notes.append(f"{task}: left out {counted(len(paths), noun)}: {reason} ({first})")
        return self._layout


def _parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def local_path(path: str) -> str:
    """Return the local form of a path from a host; empty if it is outside its directory.

    Control characters, and those that change the direction of writing, become ``%1B``: a listing of the directory
    must not send them to a terminal.
    """
    parts = [_UNPRINTABLE.sub(_escaped, part) for part in path.split("/")]
    if "\0" in path or any(part in ("", ".", "..") or len(os.fsencode(part)) > _LONGEST_NAME for part in parts):
        return ""
    return "/".join(parts) if len(os.fsencode("/".join(parts))) <= _LONGEST_PATH else ""


def _escaped(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode())


def stays_inside(path: str, target: str) -> bool:
    """Return whether a link at `path` with `target` ends within the directory that `path` is relative to."""
    steps = target.split("/")
    inner = [step for step in steps if step not in ("..", ".", "")]
    goes_back = bool(inner) and ".." in steps[steps.index(inner[0]) :]
    ends = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    return not (
        not inner
        or goes_back
        or ends in ("..", "/")
        or ends.startswith(("/", "../"))
        or _UNPRINTABLE.search(target)
        or len(os.fsencode(target)) > _LONGEST_PATH
    )
