"""Request from a host what was uploaded for a job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fleet.errors import NotReadyError
from fleet.remote.client import ANSWER_S, STEP_S, AgentClient
from fleet.remote.fanout import where
from train.agent.files.contents import Receiver, check_entries, unpack_block
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
    receiver = Receiver(str(directory), list(sizes.items()), lambda digest: str(directory / digest))
    try:
        while True:
            record, data = agent.transport.receive(ANSWER_S, doing)
            if not isinstance(record, Chunk):
                raise agent.unexpected(record)
            if not record.payload:
                break
            receiver.feed(unpack_block(data, record.size))
        receiver.finish()
    except RefusedError:
        raise NotReadyError(f"{where(agent.host)} sent other contents than those of the job") from None
    finally:
        receiver.close()
