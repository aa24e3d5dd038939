"""Test that hosts get only contents of the bundle, whatever they request."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.errors import NotReadyError
from fleet.remote.upload.bundle import Bundle
from tests.unit.fleet.remote.test_join import client
from train.agent.protocol.records import Chunk, Entry, EntryKind, NeedContents, Prepare

DIGEST = "a" * 64


@pytest.mark.parametrize("objects", [["b" * 64], [DIGEST, DIGEST]])
def test_unknown_and_repeated_contents_are_not_sent(tmp_path: Path, objects: list[str]) -> None:
    agent, sent = client("worker-0", NeedContents(objects, 10))
    entries = [Entry("a", EntryKind.FILE, 0o644, 5, DIGEST)]
    with Bundle(entries, {DIGEST: tmp_path / "a"}, "") as bundle, pytest.raises(NotReadyError, match="unexpected"):
        agent.prepare(Prepare("job", "tiny", "worker-0", entries, "127.0.0.1", "python"), bundle)
    assert not any(isinstance(record, Chunk) for record in sent)
