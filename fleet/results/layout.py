"""Decide the paths of pulled results on this computer, from the lists of the hosts, without I/O.

        model/                 of one task: the source, see `choose_sources`
        checkpoints/           of one task
        tensorboard/TASK/      event files
        files/TASK/            files that the task wrote into its working directory
        logs/TASK/             its output, a file for each attempt
        others/TASK/model/     files of other tasks that differ from the source's, in their name or contents
        others/TASK.2/KIND/    files whose path a file with other contents has

Names come from hosts, which this computer does not trust: all paths are inside the directory.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
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
    """A file of the directory as it was copied; `task` is the key of the task that wrote it, empty if unknown."""

    sha256: str
    size: int
    mtime_ns: int
    task: str = ""


@dataclass(frozen=True)
class Listed:
    """The results of a task.

    Attributes:
        task: Its name.
        entries: Its results.
        key: Its identifier within the job, which no other task gets.
    """

    task: str
    entries: Sequence[FileEntry]
    key: str


@dataclass(frozen=True)
class Item:
    """A file, link or empty directory to create.

    Attributes:
        path: Path relative to the target, with forward slashes.
        entry: Its entry in the list of the host.
        source: Index of the task from which it comes.
        key: Identifier of this task.
    """

    path: str
    entry: FileEntry
    source: int
    key: str = ""


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


def choose_sources(
    holding: Sequence[tuple[str, Collection[Area]]], earlier: Mapping[Area, str], *, chief: bool, certain: bool
) -> dict[Area, str]:
    """Return the tasks, by key, whose files are stored in ``model/`` and ``checkpoints/``.

    A kind without a source is stored in ``others/`` only: it is unknown whether the chief has files of this kind.

    Args:
        holding: The tasks that answered, by rank, with the kinds of results that they have.
        earlier: Earlier decisions, which stay.
        chief: The first of them is the first task of the job.
        certain: All hosts answered, and the job has ended.
    """
    sources = dict(earlier)
    for area in set(_SHARED).difference(earlier):
        first = next((key for key, areas in holding if area in areas or (chief and not certain)), "")
        if first and (chief or certain):
            sources[area] = first
    return sources


def lay_out(tasks: Sequence[Listed], sources: Mapping[Area, str], recorded: Mapping[str, Recorded]) -> Layout:
    """Decide the path of each result. No file takes the path of another task's file with other contents.

    Args:
        tasks: The tasks of a job, the chief first, then by rank.
        sources: As `choose_sources` returns them.
        recorded: The files that the directory has, by path.
    """
    made = _Maker(recorded)
    for is_source in (True, False):
        for source, task in enumerate(tasks):
            for entry in task.entries:
                if (sources.get(entry.area) == task.key) == is_source:
                    made.add(entry, source, task, is_source=is_source)
    for (name, reason), left in list(made.left_out.items())[:_MOST_NOTES]:
        noun, _, why = reason.partition(": ")
        first = f"{'first: ' if len(left) > 1 else ''}{ascii(left[0])[:60]}"
        made.layout.notes.append(f"{name}: left out {counted(len(left), noun)}: {why} ({first})")
    return made.layout


class _Maker:
    def __init__(self, recorded: Mapping[str, Recorded]) -> None:
        self.layout = Layout()
        self.left_out: dict[tuple[str, str], list[str]] = {}  # paths by task and reason
        self._recorded = recorded
        self._placed: dict[str, FileEntry] = {}
        self._directories: set[str] = set()

    def add(self, entry: FileEntry, source: int, task: Listed, *, is_source: bool) -> None:
        relative, layout, path, reason = local_path(entry.path), self.layout, "", ""
        if entry.kind is EntryKind.LINK and not stays_inside(entry.path, entry.target):
            self.left_out.setdefault((task.task, "link: a target outside the directory"), []).append(entry.path)
            return
        if entry.kind is EntryKind.FILE and not entry.sha256:
            reason = "file: a content that cannot be read on the host, or changes"
        elif not relative:
            reason = "file: a name that points outside the directory or is too long"
        else:
            paths = _paths(entry, relative, task.task, is_source=is_source)
            path = next((path for path, is_own in paths if self._takes(path, entry, task.key, is_own=is_own)), "")
        if not path:
            reason = reason or "file: a name that another file has"
            self.left_out.setdefault((task.task, reason), []).append(entry.path)
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
            items.get(entry.kind, layout.files).append(Item(path, entry, source, task.key))

    def _takes(self, path: str, entry: FileEntry, key: str, *, is_own: bool) -> bool:
        """Return whether a result can be stored at a path; at that of another task only if the contents are equal."""
        if (placed := self._placed.get(path)) is not None:  # equal copies on several hosts; a name is a result, too
            return all(getattr(placed, name) == getattr(entry, name) for name in ("path", "kind", "sha256", "target"))
        above = parents(path)
        if path in self._directories or not self._placed.keys().isdisjoint(above):
            return path in self._directories and entry.kind is EntryKind.DIRECTORY
        before = self._recorded.get(path)
        if before is not None and before.sha256 == entry.sha256:
            return True
        at_risk = [self._recorded[each].task for each in (path, *above) if each in self._recorded]
        return is_own and all(task in ("", key) for task in at_risk)


def _paths(entry: FileEntry, relative: str, task: str, *, is_source: bool) -> Iterator[tuple[str, bool]]:
    """Yield paths for a result, the first that is free is taken, and whether each is one of its task's own."""
    kind = entry.area.value
    yield (f"{kind}/{relative}", is_source) if entry.area in _SHARED else (f"{kind}/{task}/{relative}", True)
    yield f"others/{task}/{kind}/{relative}", True
    for number in range(2, 10):  # a host cannot make this computer try many
        yield f"others/{task}.{number}/{kind}/{relative}", True


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
