from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

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
