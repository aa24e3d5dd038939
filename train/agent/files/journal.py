"""The files of an attempt: the task's output byte for byte, its times, its records, and its telemetry.

Records are one JSON line each. The field ``log_at`` of a record is the number of output bytes that were written
before it, so that a reader can put both into one order.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any, Dict, Iterator, List, Optional

from train.agent.files.disk import list_names, make_directory, read_json, remove_file, write_all, write_atomic
from train.agent.files.paths import TaskPaths
from train.agent.files.telemetry import TelemetryWriter, format_sample
from train.agent.files.times import TimesWriter
from train.agent.protocol.records import Entry, JobResult, Progress, Record, TaskState, Usage, build, decode, encode

LOG_AT = b'"log_at":'
SPARE = 1 << 18  # bytes
_TAIL = 1 << 16  # bytes


def _append(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


class Journal:
    """Write log and records of one attempt.

    Args:
        paths: Paths of the task.
        attempt: Number of the attempt.

    Attributes:
        log_size: Bytes of the log.
        records_size: Bytes of the records.
    """

    def __init__(self, paths: TaskPaths, attempt: int) -> None:
        make_directory(paths.attempt(attempt))
        self._log = _append(paths.log(attempt))
        self._times = TimesWriter(paths.times(attempt))
        self._records = _append(paths.records(attempt))
        self._telemetry = TelemetryWriter(paths.telemetry(attempt))
        self.log_size = os.fstat(self._log).st_size
        self.records_size = os.fstat(self._records).st_size
        self._spare = paths.spare(attempt)
        spare = os.open(self._spare, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(spare, 0, SPARE)
        finally:
            os.close(spare)

    def write_log(self, data: bytes, at: float) -> None:
        """Append to the log what was read at the time `at`, in seconds since the epoch.

        Raises:
            OSError: the disk is full.
        """
        self._times.add(self.log_size, at)  # first: who sees the output sees its time
        view = memoryview(data)
        while view:
            written = os.write(self._log, view)
            self.log_size += written
            view = view[written:]

    def write_record(self, record: Record) -> None:
        """Append a record.

        Raises:
            OSError: the disk is full.
        """
        line = encode(record)[:-2] + b"," + LOG_AT + str(self.log_size).encode() + b"}\n"
        write_all(self._records, line)
        self.records_size += len(line)

    def write_sample(self, task: str, at: float, usage: Optional[Usage], progress: Optional[Progress]) -> None:
        """Append to the telemetry; on a full disk, the sample is lost."""
        self._telemetry.add(format_sample(task, at, usage, progress))

    def free_reserve(self) -> None:
        """Free the reserved space on a full disk, for the remaining records and the result."""
        remove_file(self._spare)

    def close(self) -> None:
        """Close all files."""
        remove_file(self._spare)
        self._times.close()
        os.close(self._log)
        os.close(self._records)


def log_at(line: bytes) -> int:
    """Return the number of output bytes written before a record; 0 if the record does not contain it."""
    _, separator, tail = line.rpartition(LOG_AT)
    digits = tail.rstrip(b"}\n")
    return int(digits) if separator and digits.isdigit() else 0


def write_result(paths: TaskPaths, result: JobResult) -> None:
    """Write the result of the job.

    Raises:
        OSError: the disk is full.
    """
    write_atomic(paths.result, encode(result))


def read_result(paths: TaskPaths) -> Optional[JobResult]:
    """Return the result of the job, or None while it is running or if it is unknown."""
    try:
        with open(paths.result, "rb") as file:
            record = decode(file.read())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, JobResult) else None


def write_job(paths: TaskPaths, values: Dict[str, Any]) -> None:
    """Write the commit."""
    import json

    write_atomic(paths.job, json.dumps(values, indent=1).encode("utf-8", "surrogateescape"))


def read_job(paths: TaskPaths) -> Optional[Dict[str, Any]]:
    """Return the commit, or None if there is none."""
    return read_json(paths.job)


def read_entries(paths: TaskPaths) -> Optional[List[Entry]]:
    """Return what was pushed for a task, or None if that is unknown."""
    bundle = read_json(paths.bundle)
    return None if bundle is None else [build(Entry, entry) for entry in bundle["entries"]]


def states(paths: TaskPaths, attempt: int) -> List[TaskState]:
    """Return all state changes of an attempt, in order."""
    return [record for record in _read_records(paths, attempt, b"task_state") if isinstance(record, TaskState)]


def last_progress(paths: TaskPaths, attempt: int) -> Optional[Progress]:
    """Return the last progress of an attempt that was recorded; None: none, or not near the end of the records."""
    newest = None
    for record in _read_records(paths, attempt, b"progress", _TAIL):
        newest = record if isinstance(record, Progress) else newest
    return newest


def _read_records(paths: TaskPaths, attempt: int, name: bytes, tail: int = 0) -> Iterator[Record]:
    """Yield the records of that name, in the last `tail` bytes of the file if that is given."""
    with contextlib.suppress(OSError), open(paths.records(attempt), "rb") as file:
        if tail:
            file.seek(max(0, os.fstat(file.fileno()).st_size - tail))
        for line in file:
            if line.startswith(b'{"record":"%s"' % name):
                with contextlib.suppress(ValueError):  # it is cut off
                    yield decode(line)


def attempts(paths: TaskPaths) -> List[int]:
    """Return the numbers of the attempts on this host, in order; some may be missing."""
    numbers = [name[len("attempt-") :] for name in list_names(paths.directory) if name.startswith("attempt-")]
    return sorted(int(number) for number in numbers if number.isdigit())


def last_attempt(paths: TaskPaths) -> int:
    """Return the number of the newest attempt; 0 before the first."""
    return max(attempts(paths), default=0)
