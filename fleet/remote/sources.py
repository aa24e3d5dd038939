"""Request from a host what was uploaded for a job."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from fleet.errors import FleetError, NotReadyError
from fleet.remote.client import ANSWER_S, STEP_S, AgentClient
from fleet.remote.fanout import where
from train.agent.files.blocks import unpack_block
from train.agent.files.contents import check_entries
from train.agent.protocol.errors import RefusedError
from train.agent.protocol.records import BundleInfo, Chunk, Entry, EntryKind, FetchContents, GetBundle


def get_bundle(agent: AgentClient, job: str) -> BundleInfo:
    """Return what was uploaded to the slot of an agent.

    Raises:
        NotReadyError: the host does not know it, or its answer is invalid.
        UnreachableError: the host does not answer, or the connection broke.
    """
    doing = "listing the files of the job"
    agent.transport.send(GetBundle(job, agent.host.name), doing=doing)
    record, _ = agent.transport.receive(STEP_S, doing, long=True)
    if not isinstance(record, BundleInfo):
        raise agent.unexpected(record)
    try:
        check_entries(record.entries)
    except RefusedError as error:
        raise NotReadyError(f"{where(agent.host)} sent an invalid list of files", cause=str(error)) from None
    return record


def contents_of(entries: Sequence[Entry]) -> dict[str, int]:
    """Return the size of each content of a bundle, by hash."""
    return {entry.sha256: entry.size for entry in entries if entry.kind in (EntryKind.FILE, EntryKind.DATA)}


def fetch_contents(agent: AgentClient, entries: Sequence[Entry], directory: Path) -> None:
    """Copy the contents of a bundle into files named by their hashes, and verify them.

    Raises:
        NotReadyError: the host does not have them, or sends others.
        UnreachableError: the host does not answer, or the connection broke.
    """
    doing = "reading the files of the job"
    sizes = contents_of(entries)
    agent.transport.send(FetchContents(list(sizes)), doing=doing)
    stream = _Contents(sizes, directory)
    while True:
        record, data = agent.transport.receive(ANSWER_S, doing)
        if not isinstance(record, Chunk):
            raise agent.unexpected(record)
        if not record.payload:
            break
        if not stream.add(data, record.size):
            raise _damaged(agent)
    if not stream.is_complete:
        raise _damaged(agent)


def _damaged(agent: AgentClient) -> FleetError:
    return NotReadyError(f"{where(agent.host)} sent other contents than those of the job")


class _Contents:
    """Split blocks into contents of known sizes."""

    def __init__(self, sizes: dict[str, int], directory: Path) -> None:
        self._left = list(sizes.items())[::-1]
        self._directory = directory
        self._hash = hashlib.sha256()
        self._written = 0
        self._finish_complete()

    @property
    def is_complete(self) -> bool:
        """Return whether all contents have arrived."""
        return not self._left

    def add(self, data: bytes, size: int) -> bool:
        """Add a block as it was sent; return False if it does not belong to the contents."""
        try:
            return self._store(unpack_block(data, size))
        except RefusedError:
            return False

    def _store(self, piece: bytes) -> bool:
        while piece:
            if not self._left:
                return False
            digest, size = self._left[-1]
            part, piece = piece[: size - self._written], piece[size - self._written :]
            with (self._directory / digest).open("ab") as file:
                file.write(part)
            self._hash.update(part)
            self._written += len(part)
            if not self._finish_complete():
                return False
        return True

    def _finish_complete(self) -> bool:
        """Finish contents that have their size; return False if one has another hash."""
        while self._left and self._written == self._left[-1][1]:
            digest, _ = self._left.pop()
            if self._hash.hexdigest() != digest:
                return False
            (self._directory / digest).touch()
            self._hash, self._written = hashlib.sha256(), 0
        return True
