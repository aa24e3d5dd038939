"""Test files that a client pushes into a directory of a host."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests.process.train.agent.conftest import Connect
from tests.process.train.agent.hosts import Agent, Bundle
from train.agent.protocol.records import (
    Chunk,
    Entry,
    EntryKind,
    FilesStored,
    NeedContents,
    PushFiles,
    Record,
    Refusal,
    Refused,
    Relay,
)

SECRET = "ab" * 32


def push(agent: Agent, directory: Path, files: Bundle) -> tuple[int, Record]:
    """Push the files; return the number of contents that the host lacked, and its last answer."""
    agent.send(PushFiles(str(directory), files.entries))
    need = agent.answer()
    if not isinstance(need, NeedContents):
        return 0, need
    if need.objects:
        agent.send_contents(files.contents[digest] for digest in need.objects)
    return len(need.objects), agent.answer()


def files() -> Bundle:
    pushed = Bundle()
    pushed.add("run me.sh", b"#!/bin/sh", mode=0o755)
    pushed.add("data/a\nb", b"same", EntryKind.DATA)
    pushed.add("data/copy", b"same", EntryKind.DATA)
    pushed.entries += [Entry("data/link", EntryKind.LINK, target="copy"), Entry("empty", EntryKind.DIRECTORY)]
    return pushed


def test_only_contents_that_the_directory_lacks_are_sent(connect: Connect, tmp_path: Path) -> None:
    agent, target = connect(), tmp_path / "new" / "target"
    assert push(agent, target, files()) == (2, FilesStored(str(target), 3))
    assert {path.name for path in target.iterdir()} == {"run me.sh", "data", "empty"}
    assert stat.S_IMODE((target / "run me.sh").stat().st_mode) == 0o755
    assert (target / "data" / "a\nb").read_bytes() == (target / "data" / "link").read_bytes() == b"same"
    assert (target / "data" / "copy").stat().st_nlink == 1
    assert push(agent, target, files()) == (0, FilesStored(str(target), 0))

    (target / "data" / "copy").write_bytes(b"ours")
    (target / "more").write_bytes(b"stays")
    assert push(agent, target, files()) == (1, FilesStored(str(target), 1))
    assert (target / "data" / "copy").read_bytes() == b"same"
    assert (target / "more").exists()


def test_no_link_in_the_directory_is_followed(connect: Connect, tmp_path: Path) -> None:
    agent, target, outside = connect(), tmp_path / "target", tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"before")
    target.mkdir()
    (target / "data").symlink_to(outside)
    sent, answer = push(agent, target, files())
    assert isinstance(answer, Refused)
    assert (sent, answer.kind, answer.reason) == (0, Refusal.REQUEST, f"{target / 'data'} is a link")
    (target / "data").unlink()
    (target / "run me.sh").symlink_to(outside / "file")
    assert isinstance(push(agent, target, files())[1], FilesStored)
    assert not (target / "run me.sh").is_symlink()
    assert [path.read_bytes() for path in outside.iterdir()] == [b"before"]


@pytest.mark.parametrize("path", ["../up", "/absolute", "a/../../up"])
def test_a_path_outside_the_directory_is_refused(connect: Connect, tmp_path: Path, path: str) -> None:
    pushed = Bundle()
    pushed.add(path, b"x")
    assert isinstance(push(connect(), tmp_path / "target", pushed)[1], Refused)
    assert not (tmp_path / "target").exists()


def test_an_interrupted_push_leaves_the_old_files(connect: Connect, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "run me.sh").write_bytes(b"old")
    agent = connect()
    agent.send(PushFiles(str(target), files().entries))
    need = agent.answer()
    assert isinstance(need, NeedContents)
    agent.send(Chunk(len(b"#!/bin")), b"#!/bin")
    agent.close()
    assert [(path.name, path.read_bytes()) for path in target.iterdir()] == [("run me.sh", b"old")]


def test_files_that_do_not_fit_are_refused_before_the_first_byte(connect: Connect, tmp_path: Path) -> None:
    entry = Entry("large", EntryKind.FILE, size=1 << 60, sha256="0" * 64)
    agent = connect()
    agent.send(PushFiles(str(tmp_path), [entry]))
    answer = agent.answer()
    assert isinstance(answer, Refused)
    assert (answer.kind, answer.reason[:13]) == (Refusal.DISK, "no space left")
    assert not list(tmp_path.glob(".fleet-push-*"))


# --- hosts that pass contents on to each other -------------------------------------------------------------------


def large() -> Bundle:
    pushed = Bundle(large=os.urandom(10 << 20))
    pushed.add("data/small", b"small")
    pushed.add("data/again", b"small")
    return pushed


def request(directory: Path, pushed: Bundle) -> PushFiles:
    return PushFiles(str(directory), sorted(pushed.entries), "127.0.0.1")


def test_a_file_that_was_changed_in_the_meantime_comes_from_the_client(connect: Connect, tmp_path: Path) -> None:
    agents, pushed = [connect(0), connect(1)], large()
    needs = [agent.request_contents(request(tmp_path / str(number), pushed)) for number, agent in enumerate(agents)]
    agents[0].send(Relay(SECRET))
    agents[0].send_contents(pushed.contents[digest] for digest in needs[0].objects)
    assert isinstance(agents[0].answer(), FilesStored)
    changed = tmp_path / "0" / "large"
    changed.write_bytes(changed.read_bytes()[::-1])
    agents[1].send(Relay(SECRET, "127.0.0.1", needs[0].port))
    rest = agents[1].answer()
    assert isinstance(rest, NeedContents)
    data = b"".join(pushed.contents[digest] for digest in rest.objects)
    agents[1].send_contents([data[rest.offset :]])
    assert agents[1].answer() == FilesStored(str(tmp_path / "1"), 3)
    assert all(
        (tmp_path / "1" / entry.path).read_bytes() == pushed.contents[entry.sha256] for entry in pushed.entries
    )
