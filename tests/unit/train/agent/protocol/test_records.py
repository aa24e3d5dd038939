"""A list that many records share is encoded once, to the same text."""

from __future__ import annotations

from train.agent.protocol.records import Entry, EntryKind, Prepare, SharedList, decode, encode


def test_a_shared_list_is_encoded_once_and_to_the_same_line() -> None:
    entries = [Entry("d", EntryKind.DIRECTORY, 0o755), Entry('d/"ü\udcff', EntryKind.FILE, 0o644, 3, "0" * 64)]
    plain = [Prepare("job", "fleet", name, entries, "") for name in ("worker-0", "worker-1")]
    shared = SharedList(entries)
    lines = [encode(record._replace(entries=shared)) for record in plain]
    assert lines == [encode(record) for record in plain]
    assert [decode(line) for line in lines] == plain
    shared.clear()
    assert encode(plain[0]._replace(entries=shared)) == lines[0]
