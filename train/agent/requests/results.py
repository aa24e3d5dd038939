"""Requests about what jobs left on this host, and about what another host needs to join a running one.

A fingerprint detects later changes of results.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import time
from typing import Callable, Collection, Dict, Iterator, List, NamedTuple, Optional, Tuple, Union

from train.agent.checkpoints.resumption import held_checkpoint
from train.agent.checkpoints.snapshot import replication_problem
from train.agent.files.contents import BLOCK_BYTES, STAMP_NS, join_blocks, pack_block, read_contents
from train.agent.files.disk import free_space, remove_tree
from train.agent.files.journal import attempts, read_entries, read_job
from train.agent.files.paths import HostPaths, TaskPaths
from train.agent.host import control
from train.agent.host.facts import list_packages
from train.agent.host.jobs import JOB_NAME, find_task, newest_tasks, queued_jobs, report_task
from train.agent.host.processes import end_leftovers
from train.agent.protocol import records
from train.agent.protocol.channel import Channel, Periodic
from train.agent.protocol.errors import RefusedError
from train.agent.protocol.records import (
    Area,
    AreaUse,
    Chunk,
    Commit,
    EntryKind,
    FetchContents,
    FileEntry,
    FilePart,
    GetJoinInfo,
    JoinInfo,
    Refusal,
)
from train.agent.requests.prepare import discard_unused, lock_idle_host

_SLOT = re.compile(r"slot-(0|[1-9][0-9]{0,5})")
_MOST = 1_000_000
_BEAT_S = 2.0
_PIECE = 1 << 18
_ANSWER_DEADLINE_S = 5.0


def heartbeat_of(channel: Channel) -> Periodic:
    """Return a function that sends heartbeats during long work, so that the client does not time out."""
    return Periodic(_BEAT_S, lambda: channel.send(records.Beat(time.time())))


def list_jobs(channel: Channel, host: HostPaths, request: records.ListJobs) -> records.End:
    """Answer ListJobs.

    Raises:
        ClientGoneError: the client disconnected.
    """
    heartbeat = heartbeat_of(channel)
    jobs = []
    for host_paths in HostPaths(host.root).slots():
        directory = host_paths.root[len(host.root) + 1 :]
        for paths in newest_tasks(host_paths, _MOST, request.jobs):
            jobs.append((os.stat(paths.job).st_mtime, directory, paths))
    for _, directory, paths in sorted(jobs, key=lambda row: row[0], reverse=True):
        heartbeat()
        areas, fingerprint = Results(paths, host.root, heartbeat).use()
        size = disk_usage(paths.directory, heartbeat)
        slot = os.path.basename(paths.directory)
        stored = (paths.directory, size, fingerprint, areas, report_task(paths), held_checkpoint(paths))
        channel.send(records.StoredJob(_job_of(paths), slot, directory, *stored))
    channel.send(records.DiskSpace(host.root, *free_space(host.root)))
    return records.End()


def _job_of(paths: TaskPaths) -> str:
    return os.path.basename(os.path.dirname(paths.directory))


def _task(host: HostPaths, request: Union[records.ListFiles, records.ReadFiles, records.GetBundle]) -> TaskPaths:
    if request.directory and not _SLOT.fullmatch(request.directory):
        raise RefusedError(Refusal.REQUEST, f"{request.directory!r} is not the directory of a slot")
    host_paths = HostPaths(os.path.join(host.root, request.directory)) if request.directory else host
    return find_task(host_paths, request.job, request.slot)


def list_files(channel: Channel, host: HostPaths, request: records.ListFiles) -> records.FilesListed:
    """Answer ListFiles.

    Raises:
        RefusedError: the task does not exist.
        ClientGoneError: the client disconnected.
    """
    results = Results(_task(host, request), host.root, heartbeat_of(channel))
    fingerprint = hashlib.sha256()
    for entry in results.entries(fingerprint, request.areas or tuple(records.Area), request.names):
        channel.send(entry)
    nothing = fingerprint.digest() == hashlib.sha256().digest()
    return records.FilesListed("" if nothing else fingerprint.hexdigest(), results.notes)


def read_files(channel: Channel, host: HostPaths, request: records.ReadFiles) -> None:
    """Answer ReadFiles.

    Raises:
        RefusedError: the task does not exist.
        ClientGoneError: the client disconnected.
    """
    results = Results(_task(host, request), host.root)
    for part in request.parts:
        channel.send(records.FileEnd(_send_part(channel, results.path_of(part.area, part.path), part)))


def _send_part(channel: Channel, path: str, part: FilePart) -> str:
    """Send a part of a file; return why it is incomplete, empty if it is complete."""
    fd: Optional[int] = None
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        offset = part.offset
        while offset < part.end:
            data = os.pread(fd, min(_PIECE, part.end - offset), offset)
            if not data:
                return "it became shorter"
            channel.send(Chunk(len(data)), data)
            offset += len(data)
    except OSError as error:
        return error.strerror or str(error)
    finally:
        if fd is not None:
            os.close(fd)
    return ""


def get_bundle(_: Channel, host: HostPaths, request: records.GetBundle) -> records.BundleInfo:
    """Answer GetBundle.

    Raises:
        RefusedError: the task does not exist, or what was uploaded is unknown.
    """
    paths = _task(host, request)
    job, entries = read_job(paths), read_entries(paths)
    if job is None or entries is None:
        raise RefusedError(Refusal.REQUEST, f"the files of job {request.job} are unknown on this host")
    return records.BundleInfo(
        entries,
        sorted(job.get("env") or {}),
        str(job.get("requirements", "")),
        str(job.get("constraints", "")),
        list_packages(str(job.get("python") or ""), dict(os.environ)),
    )


def get_join_info(_: Channel, host: HostPaths, request: GetJoinInfo) -> JoinInfo:
    """Answer GetJoinInfo.

    Raises:
        RefusedError: the job does not run here.
    """
    paths = find_task(host, request.job, request.slot)
    job, entries = read_job(paths) or {}, read_entries(paths)
    connection = control.connect(paths.control)
    if connection is None or entries is None:
        raise RefusedError(
            Refusal.REQUEST, f"job {request.job} does not run on this host any more", next_step="fleet status"
        )
    with connection:
        control.send_record(connection, request)
        answers = control.receive_all(connection, _ANSWER_DEADLINE_S)
        record = next((answer for answer in answers if isinstance(answer, Commit)), None)
    if record is None:
        raise RefusedError(Refusal.REQUEST, f"job {request.job} has just ended", next_step="fleet status")
    python = str(job.get("python", ""))
    return JoinInfo(str(job.get("fleet", "")), entries, record, python)


def send_contents(channel: Channel, host: HostPaths, request: FetchContents) -> Chunk:
    """Answer FetchContents.

    Raises:
        RefusedError: the store does not have one of the contents.
    """
    for block in join_blocks(read_contents(host.store, request.objects, BLOCK_BYTES)):
        data, size = pack_block(block)
        channel.send(Chunk(len(data), size), data)
    return Chunk(0)


def prune_jobs(channel: Channel, host: HostPaths, request: records.PruneJobs) -> records.JobsPruned:
    """Answer PruneJobs.

    Raises:
        ClientGoneError: the client disconnected.
    """
    heartbeat = heartbeat_of(channel)
    gone, freed = set(), 0
    with contextlib.ExitStack() as stack:
        existing = [host_paths for host_paths in HostPaths(host.root).slots() if os.path.isdir(host_paths.jobs)]
        busy: Dict[str, str] = {}
        idle = []
        for host_paths in existing:
            lock, holder = lock_idle_host(host_paths)
            stack.callback(os.close, lock)
            busy.update({holder: "it is running"} if holder else {})
            busy.update(dict.fromkeys(queued_jobs(host_paths), "it is queued"))
            idle += [] if holder else [host_paths]
        for host_paths in existing:
            for job in request.jobs:
                directory = os.path.join(host_paths.jobs, job)
                if JOB_NAME.fullmatch(job) and job not in busy and os.path.isdir(directory):
                    freed += _remove(directory, heartbeat)
                    gone.add(job)
            if host_paths in idle:
                freed += discard_unused(host_paths, set(), thorough=True)
    return records.JobsPruned(sorted(gone), freed, {job: busy[job] for job in request.jobs if job in busy})


def _remove(directory: str, heartbeat: Callable[[], None]) -> int:
    """Delete a job; return the bytes that this frees."""
    for task in os.listdir(directory):
        end_leftovers(TaskPaths(os.path.join(directory, task)))
    size = disk_usage(directory, heartbeat)
    remove_tree(directory)
    return size


_MOST_NOTES = 20
_LONGEST_PATH = 3000  # characters of a path that is only named
_REGENERABLE = "__pycache__"
_LOG_FILES = {  # by their names among the results
    "log": TaskPaths.log,
    "times": TaskPaths.times,
    "telemetry.jsonl": TaskPaths.telemetry,
}


class Root(NamedTuple):
    """A directory with results of one kind."""

    area: Area
    path: str
    outside: bool = False  # not below the fleet's directory


class ResultFile(NamedTuple):
    """A file, a link or an empty directory among the results."""

    entry: FileEntry  # without its hash
    full: str  # path; empty: it cannot be read
    changed_ns: int = 0  # time of the last change of its status


class Results:
    """The results of one task.

    Args:
        paths: Paths of the task.
        fleet: The fleet's directory on this host.
        tick: Called now and then during work that takes long.

    Attributes:
        notes: What was left out, a sentence each.
    """

    def __init__(self, paths: TaskPaths, fleet: str, tick: Callable[[], None] = lambda: None) -> None:
        self._paths = paths
        self._fleet = os.path.realpath(fleet)
        self._tick = tick
        self.notes: List[str] = []

    def roots(self) -> List[Root]:
        """Return the directories with results that exist; one that is a link is left out, with a note."""
        paths = self._paths
        given = [Root(Area.MODEL, paths.model), self._checkpoints(), Root(Area.TENSORBOARD, paths.logs)]
        if not os.path.islink(paths.source):  # a task that runs in place leaves its files where they are
            given.append(Root(Area.FILES, paths.source))
        roots = []
        for root in given:
            if root is None:
                continue
            if os.path.islink(root.path) and not root.outside:
                self._note(f"{root.path} is a link to {os.readlink(root.path)}")
            elif os.path.isdir(root.path):
                roots.append(root)
        return roots

    def _checkpoints(self) -> Optional[Root]:
        """Return where the script keeps checkpoints; None if that is a URL, or holds other things as well."""
        replication = (read_job(self._paths) or {}).get("replication") or {}
        directory = str(replication.get("directory") or "")
        if not directory:
            return Root(Area.CHECKPOINTS, self._paths.checkpoints)
        if "://" in directory:
            return None
        path = os.path.normpath(os.path.join(self._paths.source, os.path.expanduser(directory)))
        real = os.path.realpath(path)
        reason = replication_problem(real, self._paths.replica)
        if reason:
            self._note(reason)
            return None
        return Root(Area.CHECKPOINTS, path, outside=not (real + "/").startswith(self._fleet + "/"))

    def find(self, *, empty: bool = False) -> Iterator[ResultFile]:
        """Yield all results, in an order that stays the same.

        Args:
            empty: Yield empty directories, too.
        """
        roots = self.roots()
        others = {os.path.realpath(root.path) for root in roots if root.area is not Area.FILES}
        for root in roots:
            if root.area is Area.FILES:
                pushed = _PushedFiles(self._paths, self._tick)
                yield from (file for file in self._walk(root, others, empty=empty) if not pushed.has(file))
            else:
                yield from self._walk(root, (), empty=empty)
        yield from self._logs()

    def _logs(self) -> Iterator[ResultFile]:
        for number in attempts(self._paths):
            for path in (f"attempt-{number}.{kind}" for kind in _LOG_FILES):
                with contextlib.suppress(OSError):
                    full = self.path_of(Area.LOGS, path)
                    file = _read_file(Area.LOGS, path, full, os.lstat(full))
                    if file is not None and file.entry.kind is EntryKind.FILE and file.entry.size:
                        yield file

    def _walk(self, root: Root, left_out: Collection[str], *, empty: bool) -> Iterator[ResultFile]:
        root_path = os.path.realpath(root.path)
        queue = [""]
        while queue:
            directory = queue.pop()
            self._tick()
            try:
                with os.scandir(os.path.join(root_path, directory)) as listing:
                    entries = sorted(listing, key=lambda entry: entry.name)
                status = os.lstat(os.path.join(root_path, directory))
            except FileNotFoundError:
                continue
            except OSError:
                yield _unreadable(root.area, directory)
                continue
            if empty and directory and not entries:
                entry = FileEntry(root.area, directory, EntryKind.DIRECTORY, status.st_mode & 0o777)
                yield ResultFile(entry, os.path.join(root_path, directory))
            for item in entries:
                path = f"{directory}/{item.name}" if directory else item.name
                if item.is_dir(follow_symlinks=False):
                    if item.path not in left_out and not (root.area is Area.FILES and item.name == _REGENERABLE):
                        queue.append(path)
                    continue
                file = _read_entry(root.area, path, item)
                if file is not None:
                    yield file

    def use(self) -> Tuple[List[AreaUse], str]:
        """Return the use of each area, and a fingerprint of all results; empty if there are none."""
        hashed = hashlib.sha256()
        counts: Dict[Area, Tuple[int, int]] = {}
        for file in self.find():
            _add(hashed, file)
            files, size = counts.get(file.entry.area, (0, 0))
            counts[file.entry.area] = files + 1, size + file.entry.size
        root_by_area = {root.area: root for root in [*self.roots(), Root(Area.LOGS, self._paths.directory)]}
        del self.notes[_MOST_NOTES:]
        uses = [AreaUse(area, root_by_area[area].path, *counts[area], root_by_area[area].outside) for area in counts]
        return uses, hashed.hexdigest() if counts else ""

    def entries(
        self, fingerprint: "hashlib._Hash", areas: Collection[Area] = tuple(Area), names: Collection[str] = ()
    ) -> Iterator[FileEntry]:
        """Yield the results in `areas` with the hashes of their contents; add all results to the fingerprint.

        Args:
            fingerprint: Changes when a result changes.
            areas: Kinds of results.
            names: Yield only files whose name contains one of these; empty: all files.
        """
        for file in self.find(empty=True):
            self._tick()
            entry = file.entry
            is_file = entry.kind is EntryKind.FILE
            if entry.kind is not EntryKind.DIRECTORY:
                _add(fingerprint, file)
            is_named = not names or (is_file and any(name in os.path.basename(entry.path) for name in names))
            if entry.area in areas and is_named:
                digest = hash_start(file.full, entry.size, self._tick) if is_file else ""
                yield entry._replace(sha256=digest)

    def path_of(self, area: Area, path: str) -> str:
        """Return the path of a file that was listed; empty if the directory does not exist."""
        if area is Area.LOGS:
            number, _, kind = path[len("attempt-") :].partition(".")
            return _LOG_FILES[kind](self._paths, int(number)) if number.isdigit() and kind in _LOG_FILES else ""
        parts = path.split("/")
        if any(part in ("", ".", "..") for part in parts) or "\0" in path:
            return ""
        return next(
            (os.path.join(os.path.realpath(root.path), path) for root in self.roots() if root.area is area), ""
        )

    def _note(self, text: str) -> None:
        text = text[:_LONGEST_PATH]
        if text not in self.notes:
            self.notes.append(text)


class _PushedFiles:
    """The content of the working directory before the task started."""

    def __init__(self, paths: TaskPaths, tick: Callable[[], None]) -> None:
        self._entries = {entry.path: entry for entry in read_entries(paths) or []}
        self._tick = tick
        try:
            self._since_ns = os.stat(paths.bundle).st_mtime_ns
        except OSError:
            self._since_ns = 0

    def has(self, file: ResultFile) -> bool:
        """Return True if a file is unchanged since it was pushed."""
        current, pushed = file.entry, self._entries.get(file.entry.path)
        if pushed is None or (pushed.kind is EntryKind.LINK) != (current.kind is EntryKind.LINK):
            return False
        if current.kind is not EntryKind.FILE:
            return pushed.target == current.target
        if pushed.size != current.size:
            return False
        is_linked = pushed.kind is EntryKind.DATA and current.mtime_ns == STAMP_NS  # to the store
        # Only a change of the file updates the time of its status, and no program can set it.
        if is_linked or file.changed_ns <= self._since_ns:
            return True
        return hash_start(file.full, pushed.size, self._tick) == pushed.sha256


def _read_entry(area: Area, path: str, item: "os.DirEntry[str]") -> Optional[ResultFile]:
    """Return a file or link; None for what is neither, or has just been removed."""
    try:
        return _read_file(area, path, item.path, item.stat(follow_symlinks=False))
    except FileNotFoundError:
        return None
    except OSError:  # for example, its path is too long
        return _unreadable(area, path)


def _read_file(area: Area, path: str, full: str, status: os.stat_result) -> Optional[ResultFile]:
    """Return a file or link; None for sockets, pipes and devices."""
    mode, changed_ns = status.st_mode & 0o777, status.st_ctime_ns
    if stat.S_ISLNK(status.st_mode):
        return ResultFile(FileEntry(area, path, EntryKind.LINK, mode, target=os.readlink(full)), full, changed_ns)
    if not stat.S_ISREG(status.st_mode):
        return None
    return ResultFile(
        FileEntry(area, path, EntryKind.FILE, mode, status.st_size, status.st_mtime_ns), full, changed_ns
    )


def _unreadable(area: Area, path: str) -> ResultFile:
    """Return an entry for what cannot be read: it counts as a result that was not copied."""
    return ResultFile(FileEntry(area, path[:_LONGEST_PATH] or ".", EntryKind.FILE, 0), "")


def _add(hashed: "hashlib._Hash", file: ResultFile) -> None:
    entry = file.entry
    words = (entry.area.value, entry.path, entry.kind.value, str(entry.size), str(entry.mtime_ns), entry.target)
    hashed.update("\0".join(words).encode("utf-8", "surrogateescape") + b"\n")


def hash_start(path: str, size: int, tick: Callable[[], None]) -> str:
    """Return the SHA-256 of the first `size` bytes of a file; empty if they cannot be read."""
    hashed = hashlib.sha256()
    left = size
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        while left > 0:
            data = os.read(fd, min(left, _PIECE))
            if not data:
                return ""
            hashed.update(data)
            left -= len(data)
            tick()
    except OSError:
        return ""
    finally:
        os.close(fd)
    return hashed.hexdigest()


def disk_usage(directory: str, tick: Callable[[], None] = lambda: None) -> int:
    """Return the bytes that deleting a directory frees: files that the store shares with it do not count."""
    seen = set()
    total = 0
    queue = [directory]
    while queue:
        tick()
        try:
            with os.scandir(queue.pop()) as listing:
                for entry in listing:
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISDIR(status.st_mode):
                        queue.append(entry.path)
                    if status.st_nlink > 1 and stat.S_ISREG(status.st_mode):
                        if status.st_mtime_ns == STAMP_NS or status.st_ino in seen:
                            continue
                        seen.add(status.st_ino)
                    total += status.st_blocks * 512
        except OSError:
            continue
    return total
