"""Limits and checks of the entries that a host lists."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from types import SimpleNamespace
from typing import Any

import pytest

from fleet.errors import FleetError
from fleet.remote import results
from fleet.remote.client import AgentClient
from provision.model import Host
from train.agent.protocol.records import Area, Beat, EntryKind, FileEntry, FilesListed, Hello, Record, StoredJob

JOB = StoredJob("j", "worker-0", "", "/x", 1, "f", [])
ENTRY = FileEntry(Area.MODEL, "a", EntryKind.FILE, 0o644, 1, 0, "0" * 64)


def client(answers: Iterator[Record]) -> AgentClient:
    """Return the client of an agent that returns the given records to any request."""
    transport: Any = SimpleNamespace(
        received=0, send=lambda *_, **__: None, receive=lambda *_, **__: (next(answers), b"")
    )
    return AgentClient(transport, Host("worker-0", "10.0.0.2", 22, "u", "", "", "10.0.0.2"), Hello("", "3.12", 1))


def test_a_list_without_an_end_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "MOST_FILES", 10)
    with pytest.raises(FleetError, match="lists more than 10 files"):
        results.list_files(client(repeat(ENTRY)), JOB)


@pytest.mark.parametrize(
    "change", [{"size": -1}, {"sha256": "z"}, {"mtime_ns": 1 << 63}, {"kind": EntryKind.DATA}, {"path": "x" * 5000}]
)
def test_invalid_entries_are_refused_and_a_path_that_is_too_long_cannot_be_read(change: dict[str, Any]) -> None:
    listed = client(iter([Beat(1.0), ENTRY._replace(**change), FilesListed("f", [])]))
    if "path" not in change:
        with pytest.raises(FleetError):
            results.list_files(listed, JOB)
        return
    [entry] = results.list_files(listed, JOB).entries
    assert (len(entry.path), entry.sha256) == (4096, "")


@pytest.mark.parametrize("change", [{"job": "../x"}, {"slot": "a/b"}, {"directory": "../.."}, {"size": -1}])
def test_jobs_whose_names_could_be_paths_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(FleetError):
        results.list_jobs(client(iter([JOB._replace(**change)])))
