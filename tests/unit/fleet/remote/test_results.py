"""Limits and checks of the entries that a host lists."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import Any

import pytest

from fleet.errors import FleetError
from fleet.remote import results
from fleet.remote.client import AgentClient
from provision.model import Host
from train.agent.protocol.records import (
    Area,
    Beat,
    DiskSpace,
    EntryKind,
    FileEntry,
    FilesListed,
    Hello,
    Record,
    StoredJob,
)

JOB = StoredJob("j", "worker-0", "", "/x", 1, "f", [])
ENTRY = FileEntry(Area.MODEL, "a", EntryKind.FILE, 0o644, 1, 0, "0" * 64)


class RepeatingTransport:
    """A transport that returns the given records to any request."""

    def __init__(self, answers: Iterator[Record]) -> None:
        self.received = 0
        self._answers = answers

    def send(self, *_: object, **__: object) -> None:
        """Accept a request."""

    def receive(self, *_: object, **__: object) -> tuple[Record, bytes]:
        return next(self._answers), b""


def client(answers: Iterator[Record]) -> AgentClient:
    """Return the client of an agent that returns the given records to any request."""
    transport: Any = RepeatingTransport(answers)
    return AgentClient(transport, Host("worker-0", "10.0.0.2", 22, "u", "", "", "10.0.0.2"), Hello("", "3.12", 1))


def test_a_list_without_an_end_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "MOST_FILES", 10)
    with pytest.raises(FleetError, match="lists more than 10 files"):
        results.list_files(client(repeat(ENTRY)), JOB)


@pytest.mark.parametrize(
    "record",
    [
        ENTRY._replace(size=-1),
        ENTRY._replace(sha256="z"),
        ENTRY._replace(mtime_ns=1 << 63),
        ENTRY._replace(kind=EntryKind.DATA),
        DiskSpace("/", 1, 1),
    ],
)
def test_invalid_entries_are_refused(record: Record) -> None:
    with pytest.raises(FleetError):
        results.list_files(client(iter([Beat(1.0), record])), JOB)


def test_a_path_that_is_too_long_is_a_file_that_cannot_be_read() -> None:
    listed = client(iter([Beat(1.0), ENTRY._replace(path="x" * 5000), FilesListed("f", [])]))
    [entry] = results.list_files(listed, JOB).entries
    assert (len(entry.path), entry.sha256) == (4096, "")


@pytest.mark.parametrize("change", [{"job": "../x"}, {"slot": "a/b"}, {"directory": "../.."}, {"size": -1}])
def test_jobs_whose_names_could_be_paths_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(FleetError):
        results.list_jobs(client(iter([JOB._replace(**change)])))  # type: ignore[arg-type]
