"""Store a bundle in a directory of a host, and request from a host what was uploaded for a job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fleet.errors import NotReadyError
from fleet.remote.client import STEP_S, AgentClient, OnUpload
from fleet.remote.fanout import where
from fleet.remote.results import LONGEST_PATH, read_records
from fleet.remote.upload import Bundle
from train.agent.files.contents import Receiver, check_entries, unpack_block
from train.agent.protocol import records
from train.agent.protocol.errors import RefusedError
from train.agent.protocol.records import Entry, EntryKind


def push_files(agent: AgentClient, directory: str, bundle: Bundle, on_progress: OnUpload) -> records.FilesStored:
    """Store the files of a bundle on a host; send only contents that its directory does not have.

    Args:
        agent: Agent of the host.
        directory: Directory on the host, relative to the login directory, or absolute.
        bundle: The files.
        on_progress: Takes the progress of the upload.

    Raises:
        RefusedError: the host cannot store them.
        NotReadyError: the host sends an unexpected answer.
        UnreachableError: the host does not answer, or the connection broke.
        UsageError: a file has changed since the bundle was scanned.
    """
    doing, address = "comparing the files", agent.host.private_address
    agent.transport.send(records.PushFiles(directory, bundle.entries, address), doing=doing)
    need = agent.checked(next(read_records(agent, doing, long=True)), records.NeedContents)
    stored = agent.checked(agent.upload(need, bundle, on_progress, address, "the files"), records.FilesStored)
    if len(stored.directory) > LONGEST_PATH or not 0 <= stored.written <= len(bundle.entries):
        raise agent.unexpected(stored)
    return stored


def get_bundle(agent: AgentClient, job: str) -> records.BundleInfo:
    """Return what was uploaded to the slot of an agent.

    Raises:
        NotReadyError: the host does not know it, or its answer is invalid.
        UnreachableError: the host does not answer, or the connection broke.
    """
    answer = agent.ask(records.GetBundle(job, agent.host.name), STEP_S, "listing the files of the job")
    info = agent.checked(answer, records.BundleInfo)
    try:
        check_entries(info.entries)
    except RefusedError as error:
        raise NotReadyError(f"{where(agent.host)} sent an invalid list of files", cause=str(error)) from None
    return info


def contents_of(entries: Sequence[Entry]) -> dict[str, int]:
    """Return the size of each content of a bundle, by hash."""
    return {entry.sha256: entry.size for entry in entries if entry.kind in (EntryKind.FILE, EntryKind.DATA)}


def fetch_contents(agent: AgentClient, entries: Sequence[Entry], directory: Path) -> None:
    """Copy the contents of a bundle into files named by their hashes, and verify them.

    Raises:
        NotReadyError: the host does not have them, or sends others.
        UnreachableError: the host does not answer, or the connection broke.
    """
    doing, sizes = "reading the files of the job", contents_of(entries)
    agent.transport.send(records.FetchContents(list(sizes)), doing=doing)
    receiver = Receiver(str(directory), list(sizes.items()), lambda digest: str(directory / digest))
    try:
        for chunk, data in agent.chunks(doing):
            if chunk.payload:
                receiver.feed(unpack_block(data, chunk.size))
        receiver.finish()
    except RefusedError:
        raise NotReadyError(f"{where(agent.host)} sent other contents than those of the job") from None
    finally:
        receiver.close()
