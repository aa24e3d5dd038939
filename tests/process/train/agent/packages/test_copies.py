"""Test that an agent copies an environment from another agent, and refuses one that is damaged or hostile."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.process.train.agent.conftest import Connect
from tests.process.train.agent.hosts import Agent, end_all
from tests.process.train.agent.packages.test_packages import done, venvs
from tests.process.train.agent.wheels import pip_environment, wheel
from train.agent.files.contents import hash_file
from train.agent.files.paths import VenvPaths
from train.agent.packages import portability
from train.agent.packages.portability import (
    Item,
    encode_items,
    environment_key,
    is_copied,
    list_items,
    read_listing,
)
from train.agent.packages.venv import Base
from train.agent.peers.relay import HeldContents, RelayServer
from train.agent.protocol.records import (
    Bootstrap,
    Bootstrapped,
    BootstrapStep,
    Entry,
    EntryKind,
    EnvironmentShared,
    EnvironmentSource,
    NeedEnvironment,
    Record,
    Refused,
    ShareEnvironment,
)

SECRET = "ab" * 32
ADDRESS = "127.0.0.1"
NO_INDEX = {"PIP_CONFIG_FILE": "/dev/null", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/dev/null"}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheels")
    wheel(directory, "adds", "1.0", "VALUE = 41\n")
    return directory


def ask(agent: Agent, request: Record) -> tuple[list[BootstrapStep], Record]:
    """Return the steps that an agent reports, and its answer."""
    agent.send(request)
    steps: list[BootstrapStep] = []
    while True:
        record, _ = agent.receive()
        if not isinstance(record, BootstrapStep):
            return steps, record
        steps.append(record)


def share(agent: Agent, python: str, secret: str = SECRET) -> EnvironmentSource:
    _, answer = ask(agent, ShareEnvironment(python, secret, ADDRESS))
    assert isinstance(answer, EnvironmentShared), answer
    return EnvironmentSource("worker-0", SECRET, ADDRESS, *answer)


def copy(agent: Agent, source: EnvironmentSource) -> tuple[list[BootstrapStep], Record]:
    return ask(agent, Bootstrap("adds", copy_from=source))


def not_copied(agent: Agent, source: EnvironmentSource) -> str:
    """Return why an environment was not copied; nothing is left of it."""
    _, answer = copy(agent, source)
    assert isinstance(answer, NeedEnvironment), answer
    assert venvs(agent) == set()
    return answer.reason


def tree(directory: Path) -> dict[str, tuple[object, ...]]:
    """Return the copied files, links, and directories of an environment."""
    paths: dict[str, tuple[object, ...]] = {}
    for path in sorted(directory.rglob("*")):
        name, status = str(path.relative_to(directory)), path.lstat()
        if not is_copied(name):
            continue
        if path.is_symlink():
            paths[name] = (path.readlink(),)
        elif path.is_dir():
            paths[name] = (oct(status.st_mode),)
        else:
            paths[name] = (oct(status.st_mode), status.st_mtime_ns, path.read_bytes())
    return paths


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory, wheels: Path, interpreter: str) -> Iterator[Path]:
    """Yield the environment of a host, which has links, unusual modes, and files with equal contents."""
    with Agent(tmp_path_factory.mktemp("source"), python=interpreter, env=pip_environment(wheels)) as agent:
        directory = Path(done(agent, requirements="adds").python).parents[1]
    (site,) = directory.glob("lib/python*/site-packages")
    (site / "twin.py").write_bytes((site / "adds.py").read_bytes())
    (site / "empty").touch()
    (site / "link.py").symlink_to("adds.py")
    (site / "data").mkdir(0o750)
    (site / "data" / "large").write_bytes(os.urandom(3_000_000))
    (site / "data" / "large").chmod(0o640)
    (site / "data").chmod(0o550)
    (directory / "bin/python-tool").write_text("#!/bin/sh\n")
    yield directory
    end_all([agent.root])


@pytest.fixture
def source(environment: Path, interpreter: str) -> Iterator[tuple[Agent, Path]]:
    """Yield a connection to the host with the environment, and the environment."""
    with Agent(environment.parents[1], python=interpreter) as agent:
        yield agent, environment


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory, interpreter: str) -> Iterator[Agent]:
    """Yield a host without environments."""
    with Agent(tmp_path_factory.mktemp("victim"), python=interpreter, env=NO_INDEX) as agent:
        yield agent
    end_all([agent.root])


def test_an_environment_is_copied_with_links_modes_and_bytecode(connect: Connect, source: tuple[Agent, Path]) -> None:
    agent, directory = source
    other = connect(1, env=NO_INDEX)
    _, missing = ask(other, Bootstrap("adds", waits=True))
    assert isinstance(missing, NeedEnvironment)
    assert not missing.reason
    steps, answer = copy(other, share(agent, str(directory / "bin/python")))
    assert isinstance(answer, Bootstrapped), answer
    assert (answer.made, answer.environment) == (True, missing.key)
    copied = Path(answer.python).parents[1]
    assert copied.is_relative_to(other.root)
    assert tree(copied) == tree(directory)
    assert (copied / "bin/python").readlink() == (directory / "bin/python").readlink()
    assert (copied / "bin/python-tool").exists()  # a script, not a link to the interpreter
    (bytecode,) = copied.glob("lib/python*/site-packages/__pycache__/adds.*.pyc")
    (stamp,) = struct.unpack("<I", bytecode.read_bytes()[8:12])
    assert stamp == int((bytecode.parents[1] / "adds.py").stat().st_mtime)
    subprocess.run([answer.python, "-B", "-c", "import adds, link; assert link.VALUE == 41"], check=True)
    assert not (copied / "scratch").exists()
    progress = [step for step in steps if step.step == "copying packages from worker-0" and step.whole]
    assert all(step.part <= step.whole for step in progress)
    # It is an environment like any other, and can be the source of the next copy.
    _, again = ask(other, Bootstrap("adds", waits=True))
    assert isinstance(again, Bootstrapped)
    assert (again.made, again.environment) == (False, missing.key)
    third = connect(2, env=NO_INDEX)
    _, answer = copy(third, share(other, again.python))
    assert isinstance(answer, Bootstrapped)
    assert tree(Path(answer.python).parents[1]) == tree(directory)


def test_only_files_that_changed_since_the_last_copy_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = VenvPaths(str(tmp_path))
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text(name)
    items = list_items(paths, read_listing(paths), lambda _: None)
    Path(paths.listing).write_bytes(encode_items(items))
    (tmp_path / "b").write_text("other")
    os.utime(tmp_path / "c", ns=(1, 1))
    read: list[str] = []

    def hash_and_record(path: str, is_over: Callable[[], bool]) -> tuple[str, int]:
        read.append(Path(path).name)
        return hash_file(path, is_over)

    monkeypatch.setattr(portability, "hash_file", hash_and_record)
    again = list_items(paths, read_listing(paths), lambda _: None)
    assert read == ["b", "c"]
    assert [item.entry.sha256 for item in again] == [
        hashlib.sha256(text.encode()).hexdigest() for text in ("a", "other", "c")
    ]


def test_a_changed_file_is_refused_and_pip_can_install_instead(
    connect: Connect, source: tuple[Agent, Path], wheels: Path
) -> None:
    agent, directory = source
    shared = share(agent, str(directory / "bin/python"))
    (site,) = directory.glob("lib/python*/site-packages")
    large = bytearray((site / "data" / "large").read_bytes())
    large[1_000_000] ^= 1
    (site / "data" / "large").write_bytes(large)
    other = connect(1, env=pip_environment(wheels))
    assert not_copied(other, shared) == "they arrived damaged"
    assert done(other, requirements="adds").made


def test_a_source_that_ends_during_the_copy(victim: Agent, source: tuple[Agent, Path]) -> None:
    agent, directory = source
    shared = share(agent, str(directory / "bin/python"))
    (site,) = directory.glob("lib/python*/site-packages")
    os.truncate(site / "data" / "large", 1_000_000)
    assert "bytes arrived from 127.0.0.1" in not_copied(victim, shared)
    agent.close()
    assert not_copied(victim, shared).startswith("0 of ")


def test_a_source_with_another_secret_gets_and_sends_nothing(victim: Agent, source: tuple[Agent, Path]) -> None:
    agent, directory = source
    shared = share(agent, str(directory / "bin/python"), secret="cd" * 32)
    assert not_copied(victim, shared).startswith("0 of ")


def test_only_complete_environments_of_the_fleet_are_shared(
    connect: Connect, source: tuple[Agent, Path], interpreter: str
) -> None:
    agent, directory = source
    for python in (interpreter, str(agent.root / "venvs/other/bin/python")):
        _, answer = ask(agent, ShareEnvironment(python, SECRET, ADDRESS))
        assert isinstance(answer, Refused)
        assert "is not an interpreter of this fleet's environments" in answer.reason
    (directory / "outside").symlink_to("/etc/passwd")
    _, answer = ask(agent, ShareEnvironment(str(directory / "bin/python"), SECRET, ADDRESS))
    (directory / "outside").unlink()
    assert isinstance(answer, Refused)
    assert "is a link out of the environment" in answer.reason


# --- hostile sources ----------------------------------------------------------------------------------------------


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def serve(stack: ExitStack, files: dict[str, tuple[str, int]]) -> int:
    """Serve contents; return the port."""
    listener = socket.create_server((ADDRESS, 0))
    listener.setblocking(False)
    server = RelayServer(listener)
    stack.callback(server.close)
    server.start(SECRET, HeldContents(files))
    return server.port


def hostile(stack: ExitStack, directory: Path, listing: bytes, content: bytes = b"x") -> EnvironmentSource:
    """Return a source with this list of files, in which all files have the same content."""
    (directory / "listing").write_bytes(listing)
    (directory / "content").write_bytes(content)
    digest = hashlib.sha256(listing).hexdigest()
    ports = [
        serve(stack, {digest: (str(directory / "listing"), len(listing))}),
        serve(stack, {hashlib.sha256(content).hexdigest(): (str(directory / "content"), len(content))}),
    ]
    return EnvironmentSource("worker-0", SECRET, ADDRESS, digest, len(listing), *ports)


def file_at(path: str) -> Item:
    return Item(Entry(path, EntryKind.FILE, 0o644, 1, hashlib.sha256(b"x").hexdigest()), 1)


@pytest.mark.parametrize(
    ("items", "reason"),
    [
        ([file_at("../outside")], "is not a path inside"),
        ([file_at("/outside")], "is not a path inside"),
        ([file_at("bin/python")], "has a file that each host creates itself"),
        ([file_at("pyvenv.cfg")], "has a file that each host creates itself"),
        ([file_at("scratch/a")], "has a file that each host creates itself"),
        ([Item(Entry("link", EntryKind.LINK, target="../.."), 1)], "points outside"),
        ([Item(Entry("link", EntryKind.LINK, target="lib"), 1), file_at("link/a")], "is not a directory"),
        ([file_at("a"), file_at("a")], "is listed twice"),
        ([Item(Entry("a/" * n + "a", EntryKind.DIRECTORY, 0o700), 1) for n in range(1500)], "is too deep"),
    ],
)
def test_a_hostile_list_of_files_is_refused(
    victim: Agent, tmp_path: Path, stack: ExitStack, items: list[Item], reason: str
) -> None:
    assert reason in not_copied(victim, hostile(stack, tmp_path, encode_items(items)))
    assert not list(tmp_path.rglob("outside"))


@pytest.mark.parametrize(
    "listing",
    [
        b"{",
        b"[]",
        b"{}",
        b'{"items": 1}',
        b'{"items": [1]}',
        b'{"items": [[]]}',
        b'{"items": [["a", "file", "x", 1, "", "", 1]]}',
        b'{"items": [["a", "file", 1, 1, "", "", 1e300]]}',
        b"[" * 100_000,
    ],
)
def test_a_list_that_is_not_one_is_refused(victim: Agent, tmp_path: Path, stack: ExitStack, listing: bytes) -> None:
    reason = not_copied(victim, hostile(stack, tmp_path, listing))
    assert "the list of files is invalid" in reason


def test_a_list_whose_files_do_not_fit_on_the_disk_is_refused(
    victim: Agent, tmp_path: Path, stack: ExitStack
) -> None:
    size = 1 << 50
    twins = [Item(Entry(name, EntryKind.FILE, 0o644, size, "ab" * 32), 1) for name in ("a", "b")]
    reason = not_copied(victim, hostile(stack, tmp_path, encode_items(twins)))
    assert reason.startswith("the packages of worker-0 need 2048.0 TiB, and this host has ")


def test_a_name_of_contents_is_not_a_path(victim: Agent, tmp_path: Path, stack: ExitStack) -> None:
    row = ["a", "file", 0o644, 1, "../../outside", "", 1]
    reason = not_copied(victim, hostile(stack, tmp_path, json.dumps({"items": [row]}).encode()))
    assert "invalid hash or size" in reason
    assert not list(tmp_path.rglob("outside*"))


def test_everything_that_must_agree_is_part_of_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, base = VenvPaths("/home/me/.fleet/venvs/1"), Base("/usr/bin/python3.12", "3.12.3")
    key = environment_key(paths, base, [])
    assert environment_key(paths, base, []) == key
    others = {
        environment_key(VenvPaths("/home/you/.fleet/venvs/1"), base, []),
        environment_key(paths, base._replace(path="/usr/bin/python3"), []),
        environment_key(paths, base._replace(version="3.12.4"), []),
        environment_key(paths, base, ["numpy==2.4.0"]),
    }
    monkeypatch.setenv("HOME", str(tmp_path))
    others.add(environment_key(paths, base, []))
    monkeypatch.undo()
    machine = os.uname()
    changed = os.uname_result((*machine[:4], "aarch64"))
    monkeypatch.setattr(os, "uname", lambda: changed)
    others.add(environment_key(paths, base, []))
    monkeypatch.undo()
    monkeypatch.setattr(os, "confstr", lambda _name: "glibc 2.17")
    others.add(environment_key(paths, base, []))
    assert len(others | {key}) == 8


def test_a_copy_that_does_not_fit_on_the_disk_is_refused(victim: Agent, source: tuple[Agent, Path]) -> None:
    agent, directory = source
    shared = share(agent, str(directory / "bin/python"))
    free = shutil.disk_usage("/").free
    lines = "\n".join(f"torch=={number}" for number in range(free // (9 << 30) + 2))
    _, answer = ask(victim, Bootstrap(lines, copy_from=shared))
    assert isinstance(answer, Refused)
    assert answer.reason.startswith("no space left on this host")
