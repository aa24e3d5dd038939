from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.namespaces import Namespace, namespaces, obstacle
from tests.process.train.agent.hosts import Agent, end_all

Connect = Callable[..., Agent]
Hosts = Callable[[int], list[Namespace]]


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    """Makes hosts with a network of their own, and takes them down; skips where that cannot be."""
    with contextlib.ExitStack() as stack:

        def make(count: int) -> list[Namespace]:
            why = obstacle()
            if why:
                pytest.skip(why)
            return stack.enter_context(namespaces(count))

        yield make


@pytest.fixture
def connect(tmp_path: Path, hosts: Hosts) -> Iterator[Connect]:
    """Opens conversations with hosts by number, or in a namespace; ends what runs on them afterwards."""
    opened: list[Agent] = []

    def open_agent(number: int, where: Namespace | None = None, **options: object) -> Agent:
        prefix = where.prefix if where else ()
        agent = Agent(tmp_path / f"host-{number}", prefix=prefix, **options)  # type: ignore[arg-type]
        opened.append(agent)
        return agent

    yield open_agent
    words = [agent.close() for agent in opened]
    end_all([agent.root for agent in opened])
    assert "".join(words) == ""
