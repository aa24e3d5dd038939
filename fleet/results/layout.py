"""Decide the paths of pulled results on this computer, from the lists of the hosts, without I/O.

        model/                 of the chief
        checkpoints/           of the chief
        tensorboard/TASK/      event files
        files/TASK/            files that the task wrote into its working directory
        logs/TASK/             its output, a file for each attempt
        others/TASK/model/     files of other tasks that differ from the chief's, in their name or contents

Names come from hosts, which this computer does not trust: all paths are inside the directory.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import NamedTuple

from fleet.errors import UsageError
from provision.quantities import counted
from train.agent.protocol.records import Area, EntryKind, FileEntry

KINDS = tuple(area.value for area in Area)
"""Names of the kinds, as `fleet pull --what` takes them and JSON events report them."""

_SHARED = (Area.MODEL, Area.CHECKPOINTS)
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_LONGEST_NAME = 255  # bytes
_LONGEST_PATH = 3500  # bytes; the path of the target is put before it
_MOST_NOTES = 20


class Recorded(NamedTuple):
    """A file of the directory as it was copied."""

    sha256: str
    size: int
    mtime_ns: int


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
        contents: For each index of a task, the hashes of its files by path; equal files of tasks share a path.
    """

    files: list[Item] = field(default_factory=list)
    links: list[Item] = field(default_factory=list)
    directories: list[Item] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    lossy: set[int] = field(default_factory=set)
    contents: dict[int, dict[str, str]] = field(default_factory=dict)


def lay_out(tasks: Sequence[Listed], chief: str, recorded: Mapping[str, Recorded]) -> Layout:
    """Decide the path of each result. A file with the name and contents of the chief's is stored once.

    Args:
        tasks: The tasks of a job, the chief first if it is one of them.
        chief: Name of the task whose files are stored in ``model/`` and ``checkpoints/``.
        recorded: The files that the directory has, by path.
    """
    made = _Maker(chief, recorded)
    for source, task in enumerate(tasks):
        for entry in task.entries:
            made.add(entry, source, task.task)
    for (name, reason), left in list(made.left_out.items())[:_MOST_NOTES]:
        noun, _, why = reason.partition(": ")
        first = f"{'first: ' if len(left) > 1 else ''}{ascii(left[0])[:60]}"
        made.layout.notes.append(f"{name}: left out {counted(len(left), noun)}: {why} ({first})")
    return made.layout


class _Maker:
    def __init__(self, chief: str, recorded: Mapping[str, Recorded]) -> None:
        self.layout = Layout()
        self.left_out: dict[tuple[str, str], list[str]] = {}  # paths by task and reason
        self._chief = chief
        self._recorded = recorded
        self._placed: dict[str, FileEntry] = {}
        self._directories: set[str] = set()

    def add(self, entry: FileEntry, source: int, task: str) -> None:
        relative, layout, reason = local_path(entry.path), self.layout, ""
        path = self._path(entry, relative, task)
        if entry.kind is EntryKind.LINK and not stays_inside(entry.path, entry.target):
            self.left_out.setdefault((task, "link: a target outside the directory"), []).append(entry.path)
            return
        if entry.kind is EntryKind.FILE and not entry.sha256:
            reason = "file: a content that cannot be read on the host, or changes"
        elif not relative:
            reason = "file: a name that points outside the directory or is too long"
        elif not self._is_free(path, entry):
            reason = "file: a name that another file has"
        if reason:
            self.left_out.setdefault((task, reason), []).append(entry.path)
            layout.lossy.add(source)
            return
        if entry.kind is EntryKind.FILE:
            layout.contents.setdefault(source, {})[path] = entry.sha256
        if path not in self._placed and path not in self._directories:
            if entry.kind is EntryKind.DIRECTORY:
                self._directories.add(path)
            else:
                self._placed[path] = entry
            self._directories.update(parents(path))
            items = {EntryKind.LINK: layout.links, EntryKind.DIRECTORY: layout.directories}
            items.get(entry.kind, layout.files).append(Item(path, entry, source))

    def _path(self, entry: FileEntry, relative: str, task: str) -> str:
        kind = entry.area.value
        if entry.area not in _SHARED:
            return f"{kind}/{task}/{relative}"
        path = f"{kind}/{relative}"
        return path if task == self._chief or self._has(path, entry) else f"others/{task}/{kind}/{relative}"

    def _has(self, path: str, entry: FileEntry) -> bool:
        """Return whether the chief has the same file, as it is listed now, or was copied before."""
        if path in self._placed:
            return _is_same(self._placed[path], entry)
        before = self._recorded.get(path)
        return before is not None and before.sha256 == entry.sha256

    def _is_free(self, path: str, entry: FileEntry) -> bool:
        """Return whether a result can be stored at a path: nothing else has it, or is above it."""
        if path in self._placed:
            return _is_same(self._placed[path], entry)
        if path in self._directories:
            return entry.kind is EntryKind.DIRECTORY
        return self._placed.keys().isdisjoint(parents(path))


def _is_same(entry: FileEntry, other: FileEntry) -> bool:
    return all(getattr(entry, name) == getattr(other, name) for name in ("path", "kind", "sha256", "target"))


def parents(path: str) -> list[str]:
    """Return the directories above a relative path, the top one first."""
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
    steps = [step for step in target.split("/") if step not in (".", "")]
    back = len(steps) - len(list(itertools.dropwhile(lambda step: step == "..", steps)))
    return (
        not target.startswith("/")
        and back < len(steps)  # it leads down again, so that it is not a directory above
        and ".." not in steps[back:]
        and back <= path.count("/")
        and not _UNPRINTABLE.search(target)
        and len(os.fsencode(target)) <= _LONGEST_PATH
    )


def parse_kinds(text: str) -> tuple[Area, ...]:
    """Return the kinds that a list between commas names; empty: all kinds.

    Raises:
        UsageError: a name is unknown; the nearest one is named.
    """
    names = [name.strip().lower() for name in text.split(",")] if text.strip() else []
    for name in names:
        if name not in KINDS:
            close = get_close_matches(name, KINDS, n=1)
            meant = f"did you mean {close[0]!r}? " if close else ""
            raise UsageError(
                f"{name!r} is not a kind of results", hint=f"{meant}--what takes {', '.join(KINDS)} between commas"
            )
    return tuple(area for area in Area if area.value in names)
