"""Request that a host's agent store files in a directory of the user."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from fleet.remote.client import AgentClient
from fleet.remote.fanout import no_answer
from fleet.remote.upload import Bundle
from train.agent.protocol.records import Beat, FilesStored, NeedContents, PushFiles, Record

R = TypeVar("R")

_SILENCE_S = 60.0  # longest time without data from an agent that reads its disk; it sends Beat every few seconds
_PATIENCE_S = 3600.0  # longest time that a host may only send Beat
_LONGEST_PATH = 4096  # characters


def push_files(
    agent: AgentClient, directory: str, bundle: Bundle, on_progress: Callable[[int, int, int], None]
) -> FilesStored:
    """Store the files of a bundle on a host; send only contents that its directory does not have.

    Args:
        agent: Agent of the host.
        directory: Directory on the host, relative to the login directory, or absolute.
        bundle: The files.
        on_progress: As in `AgentClient.prepare`.

    Raises:
        RefusedError: the host cannot store them.
        NotReadyError: the host sends an unexpected answer.
        UnreachableError: the host does not answer, or the connection broke.
        UsageError: a file has changed since the bundle was scanned.
    """
    doing = "comparing the files"
    agent.transport.send(PushFiles(directory, bundle.entries, agent.host.private_address), doing=doing)
    need = _answer(agent, NeedContents, doing)
    following = agent.provide(need, bundle, agent.host.private_address, on_progress, "the files")
    stored = _answer(agent, FilesStored, "storing the files", following)
    if len(stored.directory) > _LONGEST_PATH or not 0 <= stored.written <= len(bundle.entries):
        raise agent.unexpected(stored)
    return stored


def _answer(agent: AgentClient, kind: type[R], doing: str, first: Record | None = None) -> R:
    """Return the next record that is not Beat; `first` was received already."""
    began = time.monotonic()
    while True:
        record = first or agent.transport.receive(_SILENCE_S, doing, long=kind is NeedContents)[0]
        first = None
        if isinstance(record, kind):
            return record
        if not isinstance(record, Beat):
            raise agent.unexpected(record)
        if time.monotonic() - began > _PATIENCE_S:
            raise no_answer(agent.host, _PATIENCE_S, doing)
