"""What an attempt leaves on disk: the task's output byte for byte, and what happened to it, one line each.

A line of the records says in its field ``log_at`` how much of the output was written before it, so that a reader
can put both into one order.
"""

import os
from typing import Any, Dict, List, Optional

from train.agent.files.disk import make_directory, read_json, remove_file, write_all, write_atomic
from train.agent.files.paths import TaskPaths
from train.agent.protocol.records import JobResult, Record, TaskState, decode, encode

LOG_AT = b'"log_at":'
SPARE = 1 << 18  # bytes


def _append(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


class Journal:
    """Writes log and records of one attempt.

    Args:
        paths: Of the task.
        attempt: Number of the attempt.
    """

    def __init__(self, paths: TaskPaths, attempt: int) -> None:
        make_directory(paths.attempt(attempt))
        self._log = _append(paths.log(attempt))
        self._records = _append(paths.records(attempt))
        self.log_size = os.fstat(self._log).st_size
        self._spare = paths.spare(attempt)
        write_atomic(self._spare, bytes(SPARE))

    def write_log(self, data: bytes) -> None:
        """Add to the log.

        Raises:
            OSError: the disk is full.
        """
        view = memoryview(data)
        while view:
            written = os.write(self._log, view)
            self.log_size += written
            view = view[written:]

    def write_record(self, record: Record) -> None:
        """Add a line to the records.

        Raises:
            OSError: the disk is full.
        """
        line = encode(record)
        write_all(self._records, line[:-2] + b"," + LOG_AT + str(self.log_size).encode() + b"}\n")

    def use_spare(self) -> None:
        """The disk is full: make room for the records and the result that are still to come."""
        remove_file(self._spare)

    def close(self) -> None:
        """Close both files."""
        remove_file(self._spare)
        os.close(self._log)
        os.close(self._records)


def log_at(line: bytes) -> int:
    """How much of the output was written before this line of the records; 0 if it does not say."""
    _, found, tail = line.rpartition(LOG_AT)
    digits = tail.rstrip(b"}\n")
    return int(digits) if found and digits.isdigit() else 0


def write_result(paths: TaskPaths, result: JobResult) -> None:
    """Write how the job ended.

    Raises:
        OSError: the disk is full.
    """
    write_atomic(paths.result, encode(result))


def read_result(paths: TaskPaths) -> Optional[JobResult]:
    """How the job ended; None while it goes on, or when nobody could tell."""
    try:
        with open(paths.result, "rb") as file:
            found = decode(file.read())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, JobResult) else None


def write_job(paths: TaskPaths, values: Dict[str, Any]) -> None:
    """Write what was committed."""
    import json

    write_atomic(paths.job, json.dumps(values, indent=1).encode("utf-8", "surrogateescape"))


def read_job(paths: TaskPaths) -> Optional[Dict[str, Any]]:
    """What was committed; None where nothing was."""
    return read_json(paths.job)


def states(paths: TaskPaths, attempt: int) -> List[TaskState]:
    """All changes of phase of an attempt, in their order."""
    try:
        with open(paths.records(attempt), "rb") as file:
            lines = [line for line in file if line.startswith(b'{"record":"task_state"')]
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            record = decode(line)
        except ValueError:
            continue
        if isinstance(record, TaskState):
            found.append(record)
    return found


def attempts(paths: TaskPaths) -> List[int]:
    """Numbers of the attempts that this host took part in, in order; some may be missing."""
    try:
        names = os.listdir(paths.directory)
    except OSError:
        return []
    numbers = [name[len("attempt-") :] for name in names if name.startswith("attempt-")]
    return sorted(int(number) for number in numbers if number.isdigit())


def last_attempt(paths: TaskPaths) -> int:
    """Number of the newest attempt; 0 before the first."""
    return max(attempts(paths), default=0)
