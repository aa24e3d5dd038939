"""How far a task has been followed, so that the next connection goes on where the last one broke."""

from __future__ import annotations

from train.agent.records import Beat, Follow, JobResult, Log, Notice, Progress, Record, TaskState, Usage


class Position:
    """Lets each thing through once, whatever a repeated conversation repeats.

    Bytes of the log are told apart by their offset. Changes of state and results are few and carry their time:
    they are remembered. Progress and usage are only of interest when they are newer than what is known.

    Args:
        request: What the first conversation asks for.
    """

    def __init__(self, request: Follow) -> None:
        self._request = request
        self._attempt = 0
        self._log_end = -1  # unknown before the first piece of a log that is tailed
        self._record_offset = request.record_offset
        self._seen: set[str] = set()
        self._latest: dict[type, float] = {}

    def request(self) -> Follow:
        """What the next conversation asks for."""
        request = self._request._replace(record_offset=self._record_offset)
        if self._log_end < 0:
            return request
        return request._replace(log_offset=self._log_end, tail_lines=-1)

    def passed(self, record: Record, payload: bytes) -> tuple[Record, bytes] | None:
        """What is new in a record and its payload; None where nothing is."""
        if isinstance(record, Log):
            return self._log(record, payload)
        if isinstance(record, Beat):
            self._record_offset = record.record_offset
            if self._request.logs:
                self._log_end = record.log_offset
            return None
        if isinstance(record, (TaskState, Notice, JobResult)):
            key = repr(record)
            if key in self._seen:
                return None
            self._seen.add(key)
        elif isinstance(record, (Progress, Usage)):
            if record.at <= self._latest.get(type(record), -1.0):
                return None
            self._latest[type(record)] = record.at
        return record, payload

    def _log(self, record: Log, payload: bytes) -> tuple[Record, bytes] | None:
        if record.attempt != self._attempt:
            self._attempt = record.attempt
            self._log_end = -1
        end = record.offset + len(payload)
        known = self._log_end - record.offset if self._log_end >= 0 else 0
        if known <= 0:
            self._log_end = end
            return record, payload
        if end <= self._log_end:
            return None
        self._log_end = end
        rest = payload[known:]
        return record._replace(offset=record.offset + known, payload=len(rest)), rest
