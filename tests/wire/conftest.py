from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.program import Program
from tests.wire.hosts import Hosts, Wire, local_hosts


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Start three local hosts, shared by the tests of a file."""
    with local_hosts(tmp_path_factory.mktemp("hosts"), 3) as running:
        yield running


@pytest.fixture
def wire(hosts: Hosts) -> Iterator[Wire]:
    """Start a relay to the first host."""
    relay = Wire(hosts.hosts[0])
    yield relay
    relay.close()


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """Return an empty working directory."""
    directory = tmp_path / "work"
    directory.mkdir()
    return directory


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """Start a fleet of two hosts, shared by the tests of a file."""
    program = Program(state=tmp_path_factory.mktemp("two") / "state", directory=tmp_path_factory.mktemp("work"))
    try:
        program.run("up", "--workers", "2")
        yield program
    finally:
        program.close()


@pytest.fixture
def pair(two: Program, empty: Path) -> Iterator[Program]:
    """Yield two idle hosts and an empty directory; other tests have run jobs on them before."""
    program = dataclasses.replace(two, directory=empty, started=[])
    yield program
    program.end_clients()
    if program.tasks():
        program.run("stop")
