from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.namespaces import Namespace, namespaces
from tests.process.train.agent.hosts import Agent, end_all

Connect = Callable[..., Agent]
Hosts = Callable[[int], list[Namespace]]


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    """Yield a function that creates hosts with separate networks, deleted at the end; skip if not possible."""
    with contextlib.ExitStack() as stack:

        def make(count: int) -> list[Namespace]:
            return stack.enter_context(namespaces(count))

        yield make


@pytest.fixture
def connect(tmp_path: Path, hosts: Hosts) -> Iterator[Connect]:
    """Yield a function that opens channels to hosts by number, or in a namespace; end their processes at the end."""
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
