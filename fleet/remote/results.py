"""Request that a host's agent list, send, and delete stored results."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from fleet.errors import NotReadyError
from fleet.remote.client import NAME, AgentClient, is_report
from fleet.remote.fanout import no_answer, where
from train.agent.files.disk import readable_size
from train.agent.protocol import records
from train.agent.protocol.records import Area, DiskSpace, EntryKind, FileEntry, FilePart, Record, StoredJob

SILENCE_S = 60.0
"""Longest time without data from an agent that reads its disk, in seconds; it sends Beat every few seconds."""

MOST_FILES = 300_000
"""Maximum number of results of one task; an endless list must not exhaust the memory of this computer."""

LONGEST_PATH = 4096
"""Maximum length of a path of a host, in characters."""

FILES_BYTES = 256 << 20
"""Maximum size of a list of files, for the same reason."""

_JOBS_BYTES = 64 << 20  # and of a list of jobs
_JOBS_PATIENCE_S = 600.0  # longest time that a host may only send Beat while it measures the disk use of its jobs,
FILES_PATIENCE_S = 3600.0  # or reads one file
_SLOWEST = 1024  # minimum bytes per second of contents,
_FILE_S = 1.0  # and time for each file, in addition to one minute
_MOST_JOBS = 20_000
_MOST_NOTES = 100
_SLOT = re.compile(r"(slot-[0-9]{1,6})?")
_DIGEST = re.compile(r"([0-9a-f]{64})?")


class Store(NamedTuple):
    """The contents of a host.

    Attributes:
        jobs: The stored jobs, newest first.
        disk: The file system that holds them.
    """

    jobs: tuple[StoredJob, ...]
    disk: DiskSpace


class Listing(NamedTuple):
    """The results of one task.

    Attributes:
        entries: Files, links and empty directories.
        fingerprint: Changes when a result changes.
        notes: A sentence for each thing that the host left out.
    """

    entries: tuple[FileEntry, ...]
    fingerprint: str
    notes: tuple[str, ...] = ()


def list_jobs(agent: AgentClient, jobs: Sequence[str] = ()) -> Store:
    """Return the stored results of `jobs`; of all jobs if `jobs` is empty.

    Raises:
        NotReadyError: the host sends an unexpected answer.
        UnreachableError: the host does not answer, or the connection broke.
    """
    doing = "listing its jobs"
    agent.transport.send(records.ListJobs(list(jobs)), doing=doing)
    stored: dict[tuple[str, str, str], StoredJob] = {}
    disk = DiskSpace("", 0, 0)
    answers = read_records(agent, doing, patience_s=_JOBS_PATIENCE_S, most=_JOBS_BYTES)
    while not isinstance(record := next(answers), records.End):
        if isinstance(record, StoredJob) and _is_job(record) and len(stored) < _MOST_JOBS:
            stored[record.job, record.slot, record.directory] = record
        elif isinstance(record, DiskSpace) and _are_counts(record.free, record.total):
            disk = record
        else:
            raise agent.unexpected(record)
    return Store(tuple(stored.values()), disk)


def list_files(
    agent: AgentClient,
    job: StoredJob,
    on_entry: Callable[[], None] = lambda: None,
    areas: Sequence[Area] = (),
    names: Sequence[str] = (),
) -> Listing:
    """Return the results of a task with their hashes.

    Args:
        agent: Agent of its host.
        job: The task, as the host listed it.
        on_entry: Called for each file, and repeatedly while the host reads a large one.
        areas: Kinds of results to list; empty: all. The fingerprint is that of all kinds.
        names: List only files whose name contains one of these; empty: all files.

    Raises:
        NotReadyError: the host sends an unexpected answer, or lists more files than the limit.
        UnreachableError: the host does not answer, or the connection broke.
    """
    doing = "listing its results"
    request = records.ListFiles(job.job, job.slot, job.directory, list(areas), list(names))
    agent.transport.send(request, doing=doing)
    entries: list[FileEntry] = []
    answers = read_records(agent, doing, on_entry)
    while not isinstance(record := next(answers), records.FilesListed):
        entry = _shortened(record) if isinstance(record, FileEntry) else None
        if entry is None or not _is_entry(entry) or (areas and entry.area not in areas):
            raise agent.unexpected(record)
        if len(entries) >= MOST_FILES:
            raise NotReadyError(
                f"{where(agent.host)} lists more than {MOST_FILES:,} files of {job.slot}, job {job.job}",
                hint=f"copy them by other means: {job.path}",
            )
        on_entry()
        entries.append(entry)
    notes = tuple(note[:LONGEST_PATH] for note in record.notes[:_MOST_NOTES])
    return Listing(tuple(entries), record.fingerprint[:64], notes)


def read_files(agent: AgentClient, job: StoredJob, parts: Sequence[FilePart]) -> Iterator[tuple[int, bytes | str]]:
    """Yield the contents of parts of files.

    Yields:
        The index of the part with bytes of it, then, at its end, with why it is incomplete; "" if it is complete.

    Raises:
        NotReadyError: the host sends an unexpected answer, or more data than was requested.
        UnreachableError: the host does not answer, or the connection broke.
    """
    doing = "reading its results"
    agent.transport.send(records.ReadFiles(job.job, job.slot, job.directory, list(parts)), doing=doing)
    waited_s, size = 0.0, 0
    for index, part in enumerate(parts):
        left = part.end - part.offset
        while True:
            began = time.monotonic()
            record, data = agent.transport.receive(SILENCE_S, doing)
            waited_s += time.monotonic() - began
            size += len(data)
            if waited_s > SILENCE_S + index * _FILE_S + size / _SLOWEST:
                raise no_answer(agent.host, SILENCE_S, doing)
            if isinstance(record, records.FileEnd):
                yield index, record.problem or ("it became shorter" if left else "")
                break
            if not isinstance(record, records.Chunk) or not data or len(data) > left:
                raise agent.unexpected(record)
            left -= len(data)
            yield index, data


def prune_jobs(agent: AgentClient, jobs: Sequence[str]) -> records.JobsPruned:
    """Delete ended jobs on a host.

    Raises:
        NotReadyError: the host sends an unexpected answer.
        UnreachableError: the host does not answer, or the connection broke.
    """
    doing = "deleting jobs"
    agent.transport.send(records.PruneJobs(list(jobs)), doing=doing)
    answers = read_records(agent, doing, patience_s=_JOBS_PATIENCE_S, most=_JOBS_BYTES)
    pruned = agent.checked(next(answers), records.JobsPruned)
    if not _are_counts(pruned.freed):
        raise agent.unexpected(pruned)
    return pruned


def read_records(
    agent: AgentClient,
    doing: str,
    on_beat: Callable[[], None] = lambda: None,
    *,
    patience_s: float = FILES_PATIENCE_S,
    most: int = FILES_BYTES,
    long: bool = False,
) -> Iterator[Record]:
    """Yield the records that an agent sends while it reads its disk, without Beat; it ends with an error only.

    Args:
        agent: Agent of the host.
        doing: The action, for errors.
        on_beat: Called for each Beat.
        patience_s: Longest time in which the host may only send Beat.
        most: Maximum size of all records in bytes.
        long: A record may list all files of a job.
    """
    host, began, news_at = agent.host, agent.transport.received, time.monotonic()
    while True:
        record, _ = agent.transport.receive(SILENCE_S, doing, long=long)
        if agent.transport.received - began > most:
            raise NotReadyError(f"{where(host)} sends more than {readable_size(most)} while {doing}")
        if not isinstance(record, records.Beat):
            yield record
            news_at = time.monotonic()
        elif time.monotonic() - news_at > patience_s:
            raise no_answer(host, patience_s, doing)
        else:
            on_beat()


# The types of fields were checked when the records were decoded; these are the values that this computer accepts.


def _are_names(*values: str) -> bool:
    return all(len(value) <= LONGEST_PATH for value in values)


def _are_counts(*values: int) -> bool:
    return all(0 <= value < 1 << 63 for value in values)


def _is_job(job: StoredJob) -> bool:
    return (
        _are_names(job.path, job.fingerprint, *(area.path for area in job.areas))
        and bool(NAME.fullmatch(job.job) and NAME.fullmatch(job.slot) and _SLOT.fullmatch(job.directory))
        and (job.report is None or (job.report.job == job.job and is_report(job.report, job.slot)))
        and _are_counts(job.size, *(count for area in job.areas for count in (area.files, area.size)))
        and len(job.areas) <= len(Area)
    )


def _shortened(entry: FileEntry) -> FileEntry:
    """Return an entry; one with a path that is too long becomes a file that cannot be read, and is left out."""
    if _are_names(entry.path, entry.target):
        return entry
    return entry._replace(kind=EntryKind.FILE, path=entry.path[:LONGEST_PATH], target="", sha256="")


def _is_entry(entry: FileEntry) -> bool:
    return (
        _are_counts(entry.size, entry.mode)
        and abs(entry.mtime_ns) < 1 << 62
        and bool(_DIGEST.fullmatch(entry.sha256))
        and entry.kind is not EntryKind.DATA
    )
