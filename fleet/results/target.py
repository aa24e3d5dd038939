"""Store the results of one job in a directory on this computer.

        DIR/model/ …                    see fleet.results.layout
        DIR/.fleet-results/manifest     a line of JSON for each file and link, written before it appears,
                                        and one for each task of which all files are here
        DIR/.fleet-results/SHA256.part  an incomplete file
        DIR/.fleet-results/job.json     the description of the job, for reports

The parent directory has an empty .fleet-results if it was created together with the directory.

Links are not followed: those that an earlier pull made give way to directories, others are reported.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fleet.errors import NotReadyError, UsageError
from fleet.results.layout import Item, Recorded, parents
from fleet.steps import Step
from train.agent.files.contents import hash_file
from train.agent.files.disk import readable_size, write_atomic
from train.agent.protocol.records import FileEntry

MARK = ".fleet-results"
"""Directory that marks a directory with pulled results; `fleet train` does not upload marked directories."""

_DESCRIPTION = "job.json"
_PIECE = 1 << 20
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
_RESERVE = 64 << 20  # free bytes to keep
_FATAL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE)  # no file can be written
_CHANGED = "was changed on this computer, and would be replaced"


class LocalWriteError(NotReadyError):
    """No file can be written to the directory, for example because its disk is full."""


class Manifest:
    """The lines of a manifest: what was copied.

    Attributes:
        files: The files, as they were copied last.
        written: Paths and hashes of all files that were ever written.
        links: Targets of links.
        tasks: By key of a task, its fingerprint and the hashes of its files when all of them were here.
    """

    def __init__(self, data: bytes) -> None:
        self.files: dict[str, Recorded] = {}
        self.written: set[tuple[str, str]] = set()
        self.links: dict[str, str] = {}
        self.tasks: dict[str, tuple[str, dict[str, str]]] = {}
        for text in data.splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
                line = json.loads(text)
                if "fingerprint" in line:
                    self.tasks[line["task"]] = line["fingerprint"], dict(line["contents"])
                elif "target" in line:
                    self.links[line["path"]] = line["target"]
                elif "path" in line:
                    self.add(line["path"], Recorded(line["sha256"], line["size"], line["mtime_ns"]))

    def add(self, path: str, recorded: Recorded) -> None:
        """Add a file as it was copied."""
        self.files[path] = recorded
        self.written.add((path, recorded.sha256))


class Target:
    """The directory; a context manager that holds its lock.

    Args:
        path: Path of the directory, which is created if it does not exist.
        job: The job whose results it stores.

    Attributes:
        copied: What was copied before.
        problems: Paths that cannot be written, with the reason; the other results are copied.

    Raises:
        UsageError: the directory is not writable, or has other contents.
        NotReadyError: another command is writing to it.
    """

    def __init__(self, path: Path, job: str) -> None:
        self.path = path
        self._job = job
        self._mark = path / MARK
        self.problems: dict[str, str] = {}
        try:
            if reason := _other_contents(path, job):
                raise UsageError(f"{str(path)!r} {reason}", next_steps=[Step("pull", job, "--to", str(path / job))])
            if not path.parent.exists():  # only created for results
                (path.parent / MARK).mkdir(parents=True)
            self._mark.mkdir(parents=True, exist_ok=True)
            self._manifest = os.open(self._mark / "manifest", _FLAGS, 0o666)
            self._begin()
        except OSError as error:
            cause = error.strerror or str(error)
            raise UsageError(
                f"{str(path)!r} cannot be written", cause=cause, hint="choose another directory with --to"
            ) from error

    def _begin(self) -> None:
        """Lock and read the manifest; begin it if it is new, and end a line that was not complete."""
        try:
            fcntl.flock(self._manifest, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._manifest)
            raise NotReadyError(
                f"another fleet pull is writing to {str(self.path)!r}", hint="wait until it has ended"
            ) from None
        data = os.pread(self._manifest, os.fstat(self._manifest).st_size, 0)
        self.copied = Manifest(data)
        if not data:
            self._write({"job": self._job})
        elif not data.endswith(b"\n"):
            os.write(self._manifest, b"\n")

    def __enter__(self) -> Target:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._manifest)

    def _write(self, line: dict[str, Any]) -> None:
        os.write(self._manifest, json.dumps(line).encode() + b"\n")

    # --- existing files ---------------------------------------------------------------------------------------------

    def missing(self, items: Sequence[Item]) -> list[Item]:
        """Return the files that do not exist here, or have other contents on their host.

        A file that was changed on this computer is not returned, but added to `problems`.
        """
        missing = []
        for item in items:
            copied = self.copied.files.get(item.path)
            digest = _digest(self.path / item.path, copied)
            if self._is_behind_link(item.path):
                self.problems[item.path] = _CHANGED
            elif digest == item.entry.sha256:
                mtime_ns = (self.path / item.path).stat().st_mtime_ns
                if copied is None or copied.mtime_ns != mtime_ns or copied.sha256 != digest:
                    self._note(item, mtime_ns)
            elif digest and (item.path, digest) not in self.copied.written:
                self.problems[item.path] = _CHANGED
            elif item.path not in self.problems:
                missing.append(item)
        return missing

    def _is_behind_link(self, path: str) -> bool:
        """Return whether a path is, or leads through, a link that was not copied from a host."""
        links = [part for part in (*parents(path), path) if (self.path / part).is_symlink()]
        return bool(links) and str((self.path / links[0]).readlink()) != self.copied.links.get(links[0])

    def _make_parent(self, path: str) -> Path:
        """Create the directories above a path, and return its place; links of earlier pulls give way.

        Raises:
            OSError: it is not possible, for example because a link of the user is in the way.
        """
        if self._is_behind_link(path.rpartition("/")[0]):
            raise NotADirectoryError(errno.ENOTDIR, _CHANGED)
        for part in parents(path):
            directory = self.path / part
            if directory.is_symlink():  # a link of an earlier pull became a directory
                directory.unlink()
            directory.mkdir(exist_ok=True)
        return self.path / path

    # --- new files --------------------------------------------------------------------------------------------------

    def need_space(self, items: Sequence[Item]) -> None:
        """Check that there is enough disk space for `items`.

        Raises:
            NotReadyError: there is not enough.
        """
        needed = sum(item.entry.size for item in items)
        free = shutil.disk_usage(self.path).free
        if needed + _RESERVE > free:
            raise NotReadyError(
                f"the results take {readable_size(needed)}, and {str(self.path)!r} has {readable_size(free)} free",
                cause=f"{readable_size(_RESERVE)} of the disk are left free",
                hint="free some space, or choose a directory on another disk with --to",
            )

    def offset(self, entry: FileEntry) -> int:
        """Return how many bytes of a file an interrupted pull has left."""
        with contextlib.suppress(OSError):
            size = self._partial(entry).stat().st_size
            return size if size <= entry.size else 0
        return 0

    def partial_file(self, entry: FileEntry) -> PartialFile:
        """Return the incomplete file of an entry, with the data of an interrupted pull.

        Raises:
            LocalWriteError: it cannot be created.
        """
        with _writing():
            return PartialFile(self._partial(entry), entry)

    def _partial(self, entry: FileEntry) -> Path:
        return self._mark / f"{entry.sha256}.part"

    def store(self, file: PartialFile, items: Sequence[Item]) -> None:
        """Rename a complete file to its final name; further items with the same contents get copies.

        An item whose path is taken, such as by a directory, is added to `problems`.

        Raises:
            LocalWriteError: nothing can be written.
        """
        for number, item in enumerate(reversed(items), 1):
            with _writing(), self._reporting(item):
                source = file.path
                if number < len(items):
                    source = source.with_suffix(".copy")
                    shutil.copyfile(file.path, source)
                self._rename(source, item)

    @contextlib.contextmanager
    def _reporting(self, item: Item) -> Iterator[None]:
        """Add an error that concerns only one item to `problems`."""
        try:
            yield
        except OSError as error:
            if error.errno in _FATAL:
                raise
            reason = f"cannot be written: {error.strerror or error}"
            self.problems[item.path] = _CHANGED if error.strerror == _CHANGED else reason

    def _rename(self, source: Path, item: Item) -> None:
        mtime_ns = item.entry.mtime_ns
        os.utime(source, ns=(mtime_ns, mtime_ns))
        if item.entry.mode & 0o100:
            mode = stat.S_IMODE(source.stat().st_mode)
            source.chmod(mode | (mode & 0o444) >> 2)
        target = self._make_parent(item.path)
        self._note(item, mtime_ns)
        source.rename(target)

    def _note(self, item: Item, mtime_ns: int) -> None:
        self.copied.add(item.path, Recorded(item.entry.sha256, item.entry.size, mtime_ns))
        self._write({"path": item.path, **self.copied.files[item.path]._asdict()})

    def link(self, item: Item) -> None:
        """Create a link, or keep an existing file; a link that was changed here is added to `problems`."""
        target, before = item.entry.target, self.copied.links.get(item.path)
        with _writing(), self._reporting(item):
            path = self._make_parent(item.path)
            if path.is_symlink():
                if str(path.readlink()) not in (target, before):
                    self.problems[item.path] = _CHANGED
                    return
                path.unlink()
            if target != before:
                self.copied.links[item.path] = target
                self._write({"path": item.path, "target": target})
            with contextlib.suppress(PermissionError, FileExistsError):  # the file system has no links; a file
                path.symlink_to(target)

    def directory(self, item: Item) -> None:
        """Create an empty directory."""
        with _writing(), self._reporting(item):
            self._make_parent(item.path + "/x")

    def describe(self, description: bytes) -> None:
        """Store the description of the job.

        Raises:
            LocalWriteError: it cannot be written.
        """
        with _writing():
            write_atomic(str(self._mark / _DESCRIPTION), description, 0o644)

    def finish(self, tasks: Mapping[str, tuple[str, Mapping[str, str]]]) -> None:
        """Record the tasks of which all files are here, remove temporary files, and flush the others to the disk.

        Args:
            tasks: By key, the fingerprint and the hashes of the files.

        Raises:
            LocalWriteError: nothing can be written.
        """
        with _writing():
            for key, (fingerprint, contents) in tasks.items():
                if self.copied.tasks.get(key) != (fingerprint, contents):
                    self._write({"task": key, "fingerprint": fingerprint, "contents": contents})
            for path in self._mark.iterdir():
                if path.suffix in (".part", ".copy"):
                    path.unlink()
            os.sync()

    def raise_problems(self) -> None:
        """Report the files that were not written.

        Raises:
            UsageError: there are some.
        """
        if not self.problems:
            return
        path, reason = next(iter(self.problems.items()))
        more = f" and {len(self.problems) - 1} more" if len(self.problems) > 1 else ""
        raise UsageError(
            f"{str(self.path / path)!r}{more} {reason}",
            cause="the other results are on this computer",
            next_steps=[Step("pull", self._job, "--to", f"{self.path}-new")],
        )


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LocalWriteError(
            f"the results cannot be written: {error.strerror}", hint="free some space and repeat the command"
        ) from error


class PartialFile:
    """An incomplete file.

    Args:
        path: Its temporary name.
        entry: What it becomes.

    Attributes:
        path: As given.
        offset: Number of bytes that it has.
    """

    def __init__(self, path: Path, entry: FileEntry) -> None:
        self.path = path
        self._entry = entry
        self._hash = hashlib.sha256()
        self._file = os.fdopen(os.open(path, _FLAGS, 0o666), "ab+")
        if self._file.tell() > entry.size:
            self._file.truncate(0)
        self._file.seek(0)
        while data := self._file.read(_PIECE):
            self._hash.update(data)
        self.offset = self._file.tell()

    def write(self, data: bytes) -> None:
        """Add bytes.

        Raises:
            LocalWriteError: the data cannot be written.
        """
        with _writing():
            self._file.write(data)
        self._hash.update(data)
        self.offset += len(data)

    def close(self) -> bool:
        """Return whether the file is complete and has the listed hash; delete it if it has another hash.

        Raises:
            LocalWriteError: the data cannot be written.
        """
        with _writing():
            self._file.close()
        is_equal = self._hash.hexdigest() == self._entry.sha256
        if not is_equal and self.offset >= self._entry.size:
            self.path.unlink()
        return is_equal


def _other_contents(path: Path, job: str) -> str:
    """Return why a directory cannot take the results of `job`; empty if it can."""
    if (path / MARK / "manifest").exists():
        stored = job_of(path)
        return f"holds the results of job {stored}" if stored not in (None, job) else ""
    if not path.exists():
        return ""
    if not path.is_dir():
        return "is not a directory"
    is_empty = all(child.name == MARK for child in path.iterdir())
    return "" if is_empty else "is not empty, and was not made by fleet pull"


def check_new(path: Path, option: str) -> None:
    """Check that a directory can take the results of a new job; create nothing.

    Args:
        path: Absolute path of the directory.
        option: The option that named it, for the error.

    Raises:
        UsageError: it cannot.
    """
    try:
        reason = _other_contents(path, "")
        existing = next(parent for parent in (path, *path.parents) if parent.exists())
        if not reason and not (existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)):
            reason = "cannot be written"
    except OSError as error:
        reason = f"cannot be used: {error.strerror or error}"
    if reason:
        raise UsageError(f"{str(path)!r} {reason}", hint=f"choose another directory with {option}")


def complete_tasks(directory: str) -> dict[str, str]:
    """Return the tasks of which all files are in a directory as they were copied: their fingerprints, by key.

    A file is read if its time is not that of the copy. An empty directory has none.
    """
    file = Path(directory, MARK, "manifest")
    manifest = Manifest(file.read_bytes() if directory and os.access(file, os.R_OK) else b"")
    paths = {path for _, contents in manifest.tasks.values() for path in contents}
    present = {path: _digest(Path(directory, path), manifest.files.get(path)) for path in paths}
    return {
        key: fingerprint
        for key, (fingerprint, contents) in manifest.tasks.items()
        if all(present[path] == sha256 for path, sha256 in contents.items())
    }


def job_of(directory: Path) -> str | None:
    """Return the job whose results were pulled to a directory; None: it has no pulled results."""
    try:
        with (directory / MARK / "manifest").open(encoding="utf-8") as manifest:
            job = json.loads(manifest.readline(1 << 12)).get("job")
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
    return job if isinstance(job, str) else None


def read_description(directory: Path, longest: int) -> bytes | None:
    """Return the description of the job whose results a directory has; None: it has none of a valid size."""
    try:
        with (directory / MARK / _DESCRIPTION).open("rb") as file:
            data = file.read(longest + 1)
    except OSError:
        return None
    return data if 0 < len(data) <= longest else None


def _digest(path: Path, recorded: Recorded | None) -> str:
    """Return the SHA-256 of a regular file, as recorded if its size and its time are; empty: it is none."""
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            return ""
        if recorded and (status.st_size, status.st_mtime_ns) == (recorded.size, recorded.mtime_ns):
            return recorded.sha256
        return hash_file(str(path))[0]
    except OSError:
        return ""
