"""Track how far a task has been followed, so that the next connection continues where the last one broke."""

from __future__ import annotations

from hashlib import blake2b

from train.agent.protocol.records import (
    AttemptEnded,
    Beat,
    Follow,
    HangInspection,
    JobResult,
    Log,
    Notice,
    Progress,
    Record,
    TaskState,
    Usage,
)

MOST_RECORDS = 100_000
"""Maximum number of remembered records of one host; a job writes fewer than ten per attempt."""

MOST_BYTES = 64 << 20
"""Maximum total size of these records, approximately; a stack of each task in each of 1000 attempts is smaller."""

_KEPT = (TaskState, AttemptEnded, HangInspection, Notice, JobResult)


class TooManyRecordsError(Exception):
    """A host reports more records than a job can cause."""


class Position:
    """Delivers each item once, even if a new connection repeats it.

    Bytes of the log are identified by their attempt and offset. Other records are small and carry their time: they
    are remembered. Progress and usage are only delivered if they are newer than the last ones.

    An agent sends one attempt after the other, each completely before the next begins. Only progress and usage arrive
    out of this order, directly from the supervisor.

    Args:
        request: The request on the first connection.
    """

    def __init__(self, request: Follow) -> None:
        self._request = request
        self._attempt = request.attempt  # the attempt to which the offsets belong; 0: unknown
        self._record_offset = request.record_offset
        # Unknown before the first piece of a log that is tailed.
        self._log_end = -1 if request.tail_lines >= 0 else request.log_offset
        self._seen: set[bytes] = set()
        self._seen_bytes = 0
        self._latest: dict[type, float] = {}

    def request(self) -> Follow:
        """Return the request for the next connection."""
        request = self._request._replace(attempt=self._attempt, record_offset=self._record_offset)
        if self._log_end < 0:
            return request
        return request._replace(log_offset=self._log_end, tail_lines=-1)

    @property
    def reached(self) -> tuple[int, int]:
        """Return the attempt that was delivered last, and the number of bytes of its log; 0, 0: nothing yet."""
        return self._attempt, max(0, self._log_end)

    def passed(self, record: Record, payload: bytes) -> tuple[Record, bytes] | None:
        """Return the new part of a record and its payload; None if nothing is new.

        Raises:
            TooManyRecordsError: more records arrived than a job can cause.
        """
        if isinstance(record, (Log, TaskState, Beat)):
            self._reach(record.attempt)
        if isinstance(record, Log):
            return self._log(record, payload)
        if isinstance(record, Beat):
            self._beat(record)
            return None
        if isinstance(record, _KEPT):
            text = repr(record).encode("utf-8", "surrogateescape")
            key = blake2b(text, digest_size=16).digest()
            if key in self._seen:
                return None
            self._seen.add(key)
            self._seen_bytes += len(text)
            if len(self._seen) > MOST_RECORDS or self._seen_bytes > MOST_BYTES:
                raise TooManyRecordsError
        elif isinstance(record, (Progress, Usage)):
            if record.at <= self._latest.get(type(record), -1.0):
                return None
            self._latest[type(record)] = record.at
        return record, payload

    def _reach(self, attempt: int) -> None:
        """Record that data of `attempt` arrived, so that all data of the earlier ones has arrived."""
        if attempt <= self._attempt:
            return
        if self._attempt:  # for the first requested attempt, the offsets are in the request
            self._record_offset = 0
            self._log_end = 0
        self._attempt = attempt

    def _beat(self, beat: Beat) -> None:
        if beat.attempt != self._attempt:  # from an agent that repeats records, or that has no attempt yet
            return
        self._record_offset = beat.record_offset
        if self._request.logs:
            self._log_end = max(self._log_end, beat.log_offset)

    def _log(self, record: Log, payload: bytes) -> tuple[Record, bytes] | None:
        if record.attempt < self._attempt:
            return None
        end = record.offset + len(payload)
        delivered = self._log_end - record.offset if self._log_end >= 0 else 0
        if delivered <= 0:
            self._log_end = end
            return record, payload
        if end <= self._log_end:
            return None
        self._log_end = end
        rest = payload[delivered:]
        return record._replace(offset=record.offset + delivered, payload=len(rest)), rest
