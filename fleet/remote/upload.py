"""Collect and send the files to upload for a job: the script's directory without ignored files, and data."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import stat
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from fleet.errors import UsageError
from fleet.remote.hashes import HashCache
from fleet.remote.ignore import ENVIRONMENTS, IgnoreRules, rules_above
from fleet.reports.page import is_report
from fleet.results.target import MARK as RESULTS_MARK
from fleet.steps import Again
from train.agent.files.contents import BLOCK_BYTES, join_blocks, pack_block
from train.agent.files.disk import readable_size
from train.agent.protocol.records import Entry, EntryKind, Relay, SharedList

MAX_FILES = 20_000
MAX_BYTES = 2 * 1024**3

LARGE_BYTES = 100 * 1024**2  # size in bytes above which an upload is announced
_CHILDREN = 2  # hosts to which a host passes contents on
_LAST_PORT = 65_535
_SHOWN = 3  # paths in a note

_LESS = "name another --workdir, or list in .fleetignore what the job does not need; send data with --data"


@dataclass(frozen=True)
class DataSource:
    """A file or directory that is uploaded completely, regardless of ignore files.

    Attributes:
        source: Path on this computer.
        destination: Path relative to the task's working directory, with forward slashes.
    """

    source: Path
    destination: str


class RelayTree:
    """Trees of hosts that lack the same contents: the first receives them from here, each other one from its parent.

    So large contents leave this computer once. A host is added when it reports what it lacks, so that no host waits
    for another one to report.
    """

    def __init__(self) -> None:
        self._secret = secrets.token_hex(32)
        self._hosts: dict[tuple[str, ...], list[tuple[str, int]]] = {}
        self._lock = threading.Lock()

    def join(self, objects: Sequence[str], address: str, port: int) -> Relay | None:
        """Add a host; return the request that makes it a part of the tree, or None if it cannot be one.

        Args:
            objects: Hashes of the contents that it lacks.
            address: Address at which the other hosts reach it.
            port: Port on which it passes contents on; 0: it does not.
        """
        if not address or not 0 < port <= _LAST_PORT:
            return None
        with self._lock:
            hosts = self._hosts.setdefault(tuple(objects), [])
            hosts.append((address, port))
            number = len(hosts) - 1
            return Relay(self._secret, *(hosts[(number - 1) // _CHILDREN] if number else ()))


@dataclass(frozen=True)
class Bundle:
    """The files to upload for a job.

    Attributes:
        entries: All paths, sorted.
        sources: The path on this computer for each hash of contents.
        digest: Hash of all entries: two bundles have the same digest if and only if they have the same entries.
        notes: Sentences for the user: files that were left out, and directories that make the bundle large.
        relays: The hosts that receive contents of this bundle from each other.
    """

    entries: list[Entry]
    sources: dict[str, Path]
    digest: str
    notes: tuple[str, ...] = ()
    relays: RelayTree = field(default_factory=RelayTree, repr=False, compare=False)

    def read_blocks(
        self, hashes: Sequence[str], offset: int = 0, *, is_local: bool = False
    ) -> Iterator[tuple[bytes, int]]:
        """Yield the contents with these hashes, in that order, in blocks.

        Args:
            hashes: Hashes of the contents.
            offset: Number of bytes that are left out at the beginning.
            is_local: Whether the host is on this computer: no network is slower than the compression.

        Yields:
            A block as it is sent, and its size before compression; 0: it is not compressed.

        Raises:
            UsageError: a file has changed since it was scanned.
        """
        sizes = {entry.sha256: entry.size for entry in self.entries}
        pieces = (piece for digest in hashes for piece in _read(self.sources[digest], digest, sizes[digest]))
        for block in join_blocks(_skip(pieces, offset)):
            yield (block, 0) if is_local else pack_block(block)


def _skip(pieces: Iterator[bytes], count: int) -> Iterator[bytes]:
    for piece in pieces:
        yield piece[count:]
        count = max(0, count - len(piece))


def _read(path: Path, sha256: str, size: int) -> Iterator[bytes]:
    """Yield the content of a file as it was scanned. Bytes that were appended later, as to a log, are left out."""
    digest, left = hashlib.sha256(), size
    try:
        with path.open("rb", buffering=0) as file:
            while left and (piece := file.read(min(BLOCK_BYTES, left))):
                left -= len(piece)
                digest.update(piece)
                yield piece
    except OSError as error:
        raise _changed(path) from error
    if digest.hexdigest() != sha256:
        raise _changed(path)


def _changed(path: Path) -> UsageError:
    return UsageError(f"{printable(os.path.relpath(path))} changed while it was being sent", next_steps=[Again({})])


def parse_data(text: str) -> DataSource:
    """Return the source and destination of ``SRC[:DEST]``; a destination that ends in ``/`` is the parent directory.

    Raises:
        UsageError: the source does not exist, or the destination is outside the working directory.
    """
    source_text, separator, destination = text.rpartition(":")
    if not separator or Path(text).expanduser().exists():
        source_text, destination = text, ""
    if "://" in text:
        raise UsageError(
            f"--data must be a local file or directory, not {text}", hint="read remote data in the script"
        )
    source = Path(source_text).expanduser()
    if not source_text or not source.exists():
        raise UsageError(f"--data: {source_text or text} does not exist", hint="check the path: --data SRC[:DEST]")
    source = source.resolve()
    path = PurePosixPath(destination)
    if path.is_absolute() or ".." in path.parts:
        raise UsageError(
            f"--data: the destination {destination} is not within the task's working directory",
            hint=f"name a path in it: --data {source_text}:{source.name}",
        )
    if not destination or destination.endswith("/") or (str(path) == "." and source.is_file()):
        path = path / source.name
    return DataSource(source, "" if str(path) == "." else str(path))


def scan(
    workdir: Path,
    script: Path | None,
    data: Sequence[DataSource],
    cache: Path,
    *,
    state: Path | None = None,
    withheld: Collection[Path] = (),
) -> Bundle:
    """Return a bundle of all files in `workdir` that are not ignored, of the script in any case, and of the data.

    Paths in ``.gitignore`` files (as git reads them, including negations) and in ``.fleetignore`` files (which take
    precedence) are left out, and so are the directories of version control, Python caches, and virtual environments,
    and the temporary files of editors. Broken links, sockets, and FIFOs are left out with a note. The content of a
    link to a file outside the directory is uploaded.

    Args:
        workdir: The directory that becomes the task's working directory.
        script: The script in it, if there is one.
        data: Additional data to upload.
        cache: File that stores hashes from one scan to the next.
        state: Directory with the keys of fleets; never uploaded, wherever it is.
        withheld: Files that must not leave this computer; links to them are left out, too.

    Raises:
        UsageError: the files exceed a limit, a file cannot be read, or the script is outside the directory.
    """
    root = workdir.resolve()
    if not root.is_dir():
        raise UsageError(f"the working directory {workdir} is not a directory")
    if root in (Path(root.anchor), Path.home().resolve()):
        name = "the root directory" if root == Path(root.anchor) else "your home directory"
        raise UsageError(
            f"refusing to upload all of {name}",
            hint="put the script into a directory of its own, or name one with --workdir",
        )
    tree = _Tree(root, data, state, withheld)
    tree.walk(root, "", rules_above(root))
    tree.check_size()
    if script is not None:
        path = script.parent.resolve() / script.name
        if not path.is_relative_to(root):
            raise UsageError(
                f"{script} is not within the working directory {workdir}",
                next_steps=[Again({"--workdir": str(script.parent)})],
            )
        tree.add_script(path.relative_to(root).as_posix())
    tree.resolve_links(root, "", EntryKind.FILE)
    for source in data:
        tree.add_data(source)
    return _bundle(tree, HashCache(cache))


def scan_files(sources: Sequence[DataSource], cache: Path, *, state: Path) -> Bundle:
    """Return a bundle of files and complete directories, regardless of ignore files.

    Links are treated as by `scan`.

    Args:
        sources: The files and directories; no destination is within another.
        cache: File that stores hashes from one scan to the next.
        state: Directory with the keys of fleets; never uploaded, wherever it is.

    Raises:
        UsageError: a file cannot be read, or a link leads to a directory outside.
    """
    tree = _Tree(Path(), sources, state, ())
    try:
        for source in sources:
            tree.add_data(source)
        return _bundle(tree, HashCache(cache))
    except UsageError as error:
        raise error.replaced(hint="push the other files by name to leave it out") from None


# --- the walk ---------------------------------------------------------------------------------------------------


_VANISHED = "it vanished"
_WITHHELD = "it holds values of --secret or --env-file"


class _Entry(NamedTuple):
    """A path of the bundle before its content was read."""

    kind: EntryKind
    source: Path
    mode: int = 0o644
    target: str = ""


class _Tree:
    """The collected paths of the bundle.

    Attributes:
        entries: The collected entries, by path relative to the bundle.
        skipped: The reason why a path cannot be uploaded, by path relative to the bundle.
        outside: The target of each link whose content is uploaded, because it is outside the directory.
        results: Directories with results of earlier jobs, relative to the bundle; they stay on this computer.
        sizes: Number of bytes of each file of the working directory, without ``--data``.
    """

    def __init__(
        self, root: Path, data: Sequence[DataSource], state: Path | None, withheld: Collection[Path]
    ) -> None:
        self.entries: dict[str, _Entry] = {}
        self.skipped: dict[str, str] = {}
        self.outside: dict[str, str] = {}
        self.results: list[str] = []
        self.sizes: dict[str, int] = {}
        self._root = root
        self._state = state.resolve() if state is not None else None
        self._withheld = {os.path.realpath(path) for path in withheld}
        self._data_sources = {str(source.source) for source in data}
        self._data_destinations = {source.destination for source in data}
        self._links: dict[str, Path] = {}
        self._directories: set[str] = set()

    def walk(self, top: Path, base: str, rules: IgnoreRules | None) -> None:
        """Add the contents of the directory `top` under `base`; without rules, all of them."""
        waiting = [(top, base, rules)]
        while waiting:
            directory, path, above = waiting.pop()
            children = _listed(directory)
            names = {child.name for child in children}
            if directory == self._state or (path and above is not None and not names.isdisjoint(ENVIRONMENTS)):
                continue
            self._directories.add(path)
            here = above.entering(directory, names, path) if above is not None else None
            is_empty = True
            for child in children:
                child_path = f"{path}/{child.name}" if path else child.name
                if here is not None and self._is_left_out(child, child_path, here):
                    continue
                if child.path in self._withheld:
                    self.skipped[child_path] = _WITHHELD
                elif child.is_dir(follow_symlinks=False):
                    waiting.append((directory / child.name, child_path, here))
                    is_empty = False
                elif self._add(child, child_path, EntryKind.FILE if here is not None else EntryKind.DATA):
                    is_empty = False
            if is_empty and path:
                self.entries[path] = _Entry(EntryKind.DIRECTORY, directory, 0o755)

    def _is_left_out(self, child: os.DirEntry[str], path: str, rules: IgnoreRules) -> bool:
        if path in self._data_destinations or child.path in self._data_sources:
            return True
        is_directory = child.is_dir(follow_symlinks=False)
        if is_directory and (Path(child.path) / RESULTS_MARK).is_dir():
            self.results.append(path)
            return True
        return rules.ignores(path, child.name, is_directory) or is_report(Path(child.path))

    def _add(self, child: os.DirEntry[str], path: str, kind: EntryKind) -> bool:
        """Add a file or link; return False for others, such as a socket."""
        if child.is_symlink():
            self._links[path] = Path(child.path)
            return True
        try:
            status = child.stat(follow_symlinks=False)
        except FileNotFoundError:
            self.skipped[path] = _VANISHED
            return False
        if not stat.S_ISREG(status.st_mode):
            self.skipped[path] = _kind(status.st_mode)
            return False
        self.entries[path] = _Entry(kind, Path(child.path), status.st_mode & 0o777)
        if kind is EntryKind.FILE:
            self.sizes[path] = status.st_size
            if len(self.sizes) > MAX_FILES:
                name, count = Counter(map(_top, self.sizes)).most_common(1)[0]
                raise UsageError(
                    f"the working directory {self._root} holds more than {MAX_FILES:,} files",
                    cause=f"{count:,} of the first {len(self.sizes):,} are in {_directory(name)}",
                    hint=_LESS,
                )
        return True

    def largest(self) -> list[tuple[str, int]]:
        """Return the directories in the working directory and their sizes in bytes, largest first; "" is itself."""
        totals: Counter[str] = Counter()
        for path, size in self.sizes.items():
            totals[_top(path)] += size
        return totals.most_common()

    def check_size(self) -> None:
        """Raise UsageError if the working directory is too large to be uploaded."""
        size = sum(self.sizes.values())
        if size > MAX_BYTES:
            name, most = self.largest()[0]
            raise UsageError(
                f"the working directory {self._root} holds {size / 1024**3:.1f} GiB, "
                f"and {MAX_BYTES / 1024**3:g} GiB can be sent",
                cause=f"{most:,} of {size:,} bytes are in {_directory(name)}",
                hint=_LESS,
            )

    def add_script(self, path: str) -> None:
        """Add the script, even if it is ignored; its content if it is a link."""
        source = self._root / path
        if not source.is_file():
            raise UsageError(f"{printable(str(source))} is not a file")
        self._links.pop(path, None)
        self.entries[path] = _Entry(EntryKind.FILE, source, source.stat().st_mode & 0o777)

    def resolve_links(self, top: Path, base: str, kind: EntryKind) -> None:
        """Resolve the collected links: keep a link within `top`, or add the content of a file outside."""
        for path, source in self._links.items():
            target = Path(os.path.realpath(source))  # Path.resolve raises for a loop of links
            try:
                mode = target.stat().st_mode
            except OSError:
                self.skipped[path] = "a broken link"
                continue
            if str(target) in self._withheld:
                self.skipped[path] = _WITHHELD
            elif not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                self.skipped[path] = f"a link to {_kind(mode)}"
            else:
                self.entries[path] = self._resolved(path, target, PurePosixPath(base), top, kind, mode)
        self._links.clear()

    def _resolved(
        self, path: str, target: Path, base: PurePosixPath, top: Path, kind: EntryKind, mode: int
    ) -> _Entry:
        is_inside = target.is_relative_to(top)
        if is_inside:
            full = str(base / target.relative_to(top))
            if full == "." or full in self._directories or full in self.entries:
                return _Entry(EntryKind.LINK, target, target=os.path.relpath(full, PurePosixPath(path).parent))
        if stat.S_ISDIR(mode):
            raise UsageError(
                f"{printable(path)} is a link to a directory outside the upload",
                cause=f"it points to {printable(str(target))}",
                hint=f"give --data {printable(str(target))}:{printable(path)}, or list the link in .fleetignore",
            )
        if kind is EntryKind.FILE and not is_inside:
            self.outside[path] = f"a link to {printable(str(target))}"
        return _Entry(kind, target, mode & 0o777)

    def add_data(self, source: DataSource) -> None:
        """Add a file or directory of data; it replaces existing entries."""
        if source.source.is_dir():
            self._directories.clear()
            self.walk(source.source, source.destination, None)
            self.resolve_links(source.source, source.destination, EntryKind.DATA)
        else:
            mode = source.source.stat().st_mode & 0o777
            self.entries[source.destination] = _Entry(EntryKind.DATA, source.source, mode)
        for above in map(str, PurePosixPath(source.destination).parents):
            if above in self.entries and self.entries[above].kind is not EntryKind.DIRECTORY:
                raise UsageError(f"--data: {source.destination} would be under the file {above}")
            self.entries.pop(above, None)


def _kind(mode: int) -> str:
    return {stat.S_IFSOCK: "a socket", stat.S_IFIFO: "a FIFO"}.get(stat.S_IFMT(mode), "a device")


def _top(path: str) -> str:
    return path.split("/", 1)[0] if "/" in path else ""


def _directory(name: str) -> str:
    return f"its directory {printable(name)}" if name else "the directory itself"


def _notes(tree: _Tree) -> tuple[str, ...]:
    """Return the notes for the user before the upload starts."""
    notes = []
    for verb, reasons in (("not uploaded", tree.skipped), ("uploaded as files", tree.outside)):
        if reasons:
            paths = _first(f"{printable(path)} ({why})" for path, why in sorted(reasons.items()))
            notes.append(f"{verb}: {paths}")
    if tree.results:
        results = _first(f"{printable(path)}/" for path in sorted(tree.results))
        notes.append(f"not uploaded: {results} (results that fleet pull copied; --data uploads them)")
    if (size := sum(tree.sizes.values())) > LARGE_BYTES:
        largest = [f"{printable(name)} {readable_size(count)}" for name, count in tree.largest() if name][:_SHOWN]
        notes.append(
            f"{readable_size(size)} are uploaded to each host that does not have them yet"
            + (f", most of them in {', '.join(largest)}" if largest else "")
            + "; list in .fleetignore what the job does not need"
        )
    return tuple(notes)


def _first(items: Iterable[str]) -> str:
    shown = list(items)
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return ", ".join(shown[:_SHOWN]) + more


def _listed(directory: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as children:
            return sorted(children, key=lambda child: child.name)
    except FileNotFoundError:  # it vanished
        return []
    except OSError as error:
        raise _unreadable(directory, error) from error


def _unreadable(path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"{printable(str(path))} cannot be read",
        cause=error.strerror or "",
        hint="change its permissions, or list it in .fleetignore",
    )


def printable(path: str) -> str:
    """Return a printable form of a path, whatever bytes it has."""
    return os.fsencode(path).decode("utf-8", "replace")


# --- contents ---------------------------------------------------------------------------------------------------


def _bundle(tree: _Tree, hashes: HashCache) -> Bundle:
    entries: list[Entry] = []
    sources: dict[str, Path] = {}
    for path, item in sorted(tree.entries.items()):
        if item.kind in (EntryKind.LINK, EntryKind.DIRECTORY):
            entries.append(Entry(path, item.kind, item.mode, target=item.target))
            continue
        try:
            sha, size = hashes.hash(str(item.source))
        except FileNotFoundError:
            tree.skipped[path] = _VANISHED
            continue
        except OSError as error:
            raise _unreadable(item.source, error) from error
        entries.append(Entry(path, item.kind, item.mode, size, sha))
        sources.setdefault(sha, item.source)
    hashes.save()
    digest = hashlib.sha256(b"".join(json.dumps(entry).encode() + b"\n" for entry in entries)).hexdigest()
    return Bundle(SharedList(entries), sources, digest, _notes(tree))
