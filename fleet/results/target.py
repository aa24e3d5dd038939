"""Store the results of one job in a directory on this computer.

        DIR/model/ …                    see fleet.results.layout
        DIR/.fleet-results/manifest     a line of JSON for each file and link, written before it appears,
                                        and one for each task of which all files are here
        DIR/.fleet-results/SHA256.part  an incomplete file
        DIR/.fleet-results/job.json     the description of the job, for reports

The parent directory has an empty .fleet-results if it was created together with the directory.

Links that lead out of the directory are not followed: each component of a path is opened without following links.
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
from train.agent.files.disk import readable_size, write_atomic

MARK = ".fleet-results"
"""Directory that marks a directory with pulled results; `fleet train` does not upload marked directories."""

_DESCRIPTION = "job.json"
_PIECE = 1 << 20
_RESERVE = 64 << 20  # free bytes to keep
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW
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
        for line in _lines(data):
            with contextlib.suppress(KeyError, TypeError, AttributeError):
                self._read(line)

    def _read(self, line: dict[str, Any]) -> None:
        if "fingerprint" in line:
            self.tasks[line["task"]] = line["fingerprint"], dict(line["contents"])
        elif "target" in line:
            self.links[line["path"]] = line["target"]
        elif "path" in line:
            self.add(line["path"], Recorded(line["sha256"], line["size"], line["mtime_ns"], line.get("task", "")))

    def add(self, path: str, recorded: Recorded) -> None:
        """Add a file; one that is copied again with the same contents stays that of its task."""
        before = self.files.get(path)
        if before is not None and before.sha256 == recorded.sha256 and before.task:
            recorded = recorded._replace(task=before.task)
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
        self.problems: dict[str, str] = {}
        try:
            self._check()
            if not path.parent.exists():  # only created for results
                (path.parent / MARK).mkdir(parents=True)
            (path / MARK).mkdir(parents=True, exist_ok=True)
            self._root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._state_directory = os.open(MARK, os.O_RDONLY | os.O_DIRECTORY | _FLAGS, dir_fd=self._root)
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | _FLAGS
            self._manifest = os.open("manifest", flags, 0o666, dir_fd=self._state_directory)
            self._lock()
            self._read()
        except OSError as error:
            cause = error.strerror or str(error)
            raise UsageError(
                f"{str(path)!r} cannot be written", cause=cause, hint="choose another directory with --to"
            ) from error

    def __enter__(self) -> Target:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in (self._manifest, self._state_directory, self._root):
            os.close(descriptor)

    def _check(self) -> None:
        """Check that the directory has no contents of other origin."""
        reason = _other_contents(self.path, self._job)
        if reason:
            raise UsageError(
                f"{str(self.path)!r} {reason}",
                next_steps=[Step("pull", self._job, "--to", str(self.path / self._job))],
            )

    def _lock(self) -> None:
        try:
            fcntl.flock(self._manifest, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.__exit__()
            raise NotReadyError(
                f"another fleet pull is writing to {str(self.path)!r}", hint="wait until it has ended"
            ) from None

    def _read(self) -> None:
        data = os.pread(self._manifest, os.fstat(self._manifest).st_size, 0)
        if not data:
            self._write({"job": self._job})
        elif not data.endswith(b"\n"):
            os.write(self._manifest, b"\n")
        self.copied = Manifest(data)

    def _write(self, line: dict[str, Any]) -> None:
        os.write(self._manifest, json.dumps(line).encode() + b"\n")

    # --- existing files ---------------------------------------------------------------------------------------------

    def missing(self, items: Sequence[Item]) -> list[Item]:
        """Return the files that do not exist here, or have other contents on their host.

        A file that was changed on this computer is not returned, but added to `problems`.
        """
        missing = []
        for item in items:
            state = self._state(item)
            if state == "other":
                self.problems[item.path] = _CHANGED
            elif state == "old" and item.path not in self.problems:
                missing.append(item)
        return missing

    def _state(self, item: Item) -> str:
        """Return ``equal``, ``old`` (missing, or as it was pulled before), or ``other``."""
        if self._is_behind_link(item.path):
            return "other"
        with self._opened(item.path) as descriptor:
            if descriptor is None:
                return "old"
            status = os.fstat(descriptor)
            copied = self.copied.files.get(item.path)
            as_copied = copied is not None and (status.st_size, status.st_mtime_ns) == (copied.size, copied.mtime_ns)
            digest = copied.sha256 if copied is not None and as_copied else _digest(descriptor)
            if digest == item.entry.sha256:
                if not as_copied:
                    self._note(item, status.st_mtime_ns)
                return "equal"
            return "old" if (item.path, digest) in self.copied.written else "other"

    def _is_behind_link(self, path: str) -> bool:
        """Return whether a path is, or leads through, a link that was not copied from a host."""
        for part in (*parents(path), path):
            try:
                target = os.readlink(part, dir_fd=self._root)
            except FileNotFoundError:
                return False
            except OSError:  # it is not a link
                continue
            return self.copied.links.get(part) != target
        return False

    @contextlib.contextmanager
    def _opened(self, path: str) -> Iterator[int | None]:
        """Open a regular file without following links; yield its descriptor, or None if it does not exist."""
        try:
            with self._parent(path, make=False) as (directory, name):
                descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | _FLAGS, dir_fd=directory)
        except OSError:
            yield None
            return
        try:
            yield descriptor if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def _parent(self, path: str, *, make: bool) -> Iterator[tuple[int, str]]:
        """Open the parent directory of `path`, step by step without following links; yield it with the last name."""
        *directories, name = path.split("/")
        descriptor = os.dup(self._root)
        try:
            for number, directory in enumerate(directories):
                if make:
                    self._make_directory(directory, descriptor, "/".join(directories[: number + 1]))
                deeper = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | _FLAGS, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = deeper
            yield descriptor, name
        finally:
            os.close(descriptor)

    def _make_directory(self, name: str, parent: int, path: str) -> None:
        with contextlib.suppress(OSError):
            if os.readlink(name, dir_fd=parent) == self.copied.links.get(path):
                os.unlink(name, dir_fd=parent)  # a link of an earlier pull became a directory
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=parent)

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

    def partial_file(self, item: Item) -> PartialFile:
        """Return the incomplete file of an item, with the data of an interrupted pull.

        Raises:
            LocalWriteError: it cannot be created.
        """
        with _writing():
            return PartialFile(self._state_directory, item)

    def store(self, file: PartialFile, items: Sequence[Item]) -> None:
        """Rename a complete file to its final name; further items with the same contents get copies.

        An item whose path is taken, such as by a directory, is added to `problems`.

        Raises:
            LocalWriteError: nothing can be written.
        """
        for number, item in enumerate(reversed(items), 1):
            with _writing(), self._reporting(item):
                copy = file.name
                if number < len(items):
                    copy += ".copy"
                    self._copy(file.name, copy)
                self._rename(copy, item)

    @contextlib.contextmanager
    def _reporting(self, item: Item) -> Iterator[None]:
        """Add an error that concerns only one item to `problems`."""
        try:
            yield
        except OSError as error:
            if error.errno in _FATAL:
                raise
            reason = f"cannot be written: {error.strerror or error}"
            self.problems[item.path] = _CHANGED if self._is_behind_link(item.path) else reason

    def _copy(self, source: str, target: str) -> None:
        read = os.open(source, os.O_RDONLY | _FLAGS, dir_fd=self._state_directory)
        write = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _FLAGS, 0o666, dir_fd=self._state_directory)
        with os.fdopen(read, "rb") as reader, os.fdopen(write, "wb") as writer:
            shutil.copyfileobj(reader, writer, _PIECE)

    def _rename(self, name: str, item: Item) -> None:
        mtime_ns = item.entry.mtime_ns
        os.utime(name, ns=(mtime_ns, mtime_ns), dir_fd=self._state_directory, follow_symlinks=False)
        if item.entry.mode & 0o100:
            mode = stat.S_IMODE(os.stat(name, dir_fd=self._state_directory).st_mode)
            os.chmod(name, mode | (mode & 0o444) >> 2, dir_fd=self._state_directory)
        with self._parent(item.path, make=True) as (directory, last):
            self._note(item, mtime_ns)
            os.rename(name, last, src_dir_fd=self._state_directory, dst_dir_fd=directory)

    def _note(self, item: Item, mtime_ns: int) -> None:
        self.copied.add(item.path, Recorded(item.entry.sha256, item.entry.size, mtime_ns, item.key))
        self._write({"path": item.path, **self.copied.files[item.path]._asdict()})

    def link(self, item: Item) -> None:
        """Create a link, or keep an existing file; a link that was changed here is added to `problems`."""
        target, before = item.entry.target, self.copied.links.get(item.path)
        with _writing(), self._reporting(item), self._parent(item.path, make=True) as (directory, name):
            with contextlib.suppress(OSError):  # it is not a link
                if os.readlink(name, dir_fd=directory) not in (target, before):
                    self.problems[item.path] = _CHANGED
                    return
                os.unlink(name, dir_fd=directory)
            if target != before:
                self.copied.links[item.path] = target
                self._write({"path": item.path, "target": target})
            with contextlib.suppress(PermissionError, FileExistsError):  # the file system has no links; a file
                os.symlink(target, name, dir_fd=directory)

    def directory(self, item: Item) -> None:
        """Create an empty directory."""
        with _writing(), self._reporting(item), self._parent(item.path + "/x", make=True):
            pass

    def describe(self, description: bytes) -> None:
        """Store the description of the job.

        Raises:
            NotReadyError: it cannot be written.
        """
        try:
            write_atomic(str(self.path / MARK / _DESCRIPTION), description, 0o644)
        except OSError as error:
            raise NotReadyError(f"{str(self.path)!r} cannot be written", cause=error.strerror or "") from error

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
            for path in (self.path / MARK).iterdir():
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
    """An incomplete file, named by its expected hash.

    Attributes:
        name: Its temporary name.
        offset: Number of bytes that it has.
    """

    def __init__(self, directory: int, item: Item) -> None:
        self.name = f"{item.entry.sha256}.part"
        self._directory = directory
        self._entry = item.entry
        self._file = os.open(self.name, os.O_RDWR | os.O_CREAT | _FLAGS, 0o666, dir_fd=directory)
        self._hash = hashlib.sha256()
        self.offset = 0
        self.resumed = False
        if os.fstat(self._file).st_size > self._entry.size:
            os.ftruncate(self._file, 0)
        while data := os.pread(self._file, _PIECE, self.offset):
            self._hash.update(data)
            self.offset += len(data)
        self.resumed = self.offset > 0

    def write(self, data: bytes) -> None:
        """Add bytes; zeros become a hole.

        Raises:
            LocalWriteError: the data cannot be written.
        """
        is_hole = data == bytes(len(data))  # `close`, or further data, gives the file its size
        self.offset += len(data) if is_hole else 0
        with _writing():
            view = memoryview(b"" if is_hole else data)
            while view:
                written = os.pwrite(self._file, view, self.offset)
                self.offset += written
                view = view[written:]
        self._hash.update(data)

    def close(self) -> bool:
        """Return whether the file is complete and has the listed hash; delete it if it has another hash."""
        if self.offset == self._entry.size:
            os.ftruncate(self._file, self.offset)
        os.close(self._file)
        if self.offset < self._entry.size:
            return False
        if self._hash.hexdigest() == self._entry.sha256:
            return True
        os.unlink(self.name, dir_fd=self._directory)
        return False


def _other_contents(path: Path, job: str) -> str:
    """Return why a directory cannot take the results of `job`; empty if it can."""
    manifest = path / MARK / "manifest"
    if manifest.exists():
        stored = next(iter(_lines(manifest.read_bytes())), {}).get("job", job)
        return f"holds the results of job {stored}" if stored != job else ""
    if path.exists() and not path.is_dir():
        return "is not a directory"
    if path.exists() and any(child.name != MARK for child in path.iterdir()):
        return "is not empty, and was not made by fleet pull"
    return ""


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
    try:
        manifest = Manifest((Path(directory) / MARK / "manifest").read_bytes() if directory else b"")
    except OSError:
        return {}
    present = {
        (path, sha256): _has_contents(Path(directory, path), sha256, manifest.files.get(path))
        for _, contents in manifest.tasks.values()
        for path, sha256 in contents.items()
    }
    return {
        key: fingerprint
        for key, (fingerprint, contents) in manifest.tasks.items()
        if all(present[each] for each in contents.items())
    }


def _has_contents(path: Path, sha256: str, recorded: Recorded | None) -> bool:
    try:
        status = path.stat()
        if recorded is None or recorded.sha256 != sha256 or status.st_size != recorded.size:
            return False
        if status.st_mtime_ns == recorded.mtime_ns:
            return stat.S_ISREG(status.st_mode)
        with path.open("rb") as file:
            return _digest(file.fileno()) == sha256
    except OSError:
        return False


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
        descriptor = os.open(directory / MARK / _DESCRIPTION, os.O_RDONLY | os.O_NONBLOCK | _FLAGS)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(longest + 1) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
    return data if 0 < len(data) <= longest else None


def _digest(descriptor: int) -> str:
    hashed = hashlib.sha256()
    offset = 0
    while data := os.pread(descriptor, _PIECE, offset):
        hashed.update(data)
        offset += len(data)
    return hashed.hexdigest()


def _lines(data: bytes) -> Iterator[dict[str, Any]]:
    for line in data.splitlines():
        with contextlib.suppress(ValueError):
            value = json.loads(line)
            if isinstance(value, dict):
                yield value
