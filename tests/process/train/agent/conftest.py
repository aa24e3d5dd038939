from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.process.train.agent.hosts import Agent, end_all

Connect = Callable[..., Agent]


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Connect]:
    """Yield a function that opens channels to hosts by number; close all, and end the hosts' processes at the end."""
    opened: list[Agent] = []

    def open_agent(host: int = 0, **options: object) -> Agent:
        agent = Agent(tmp_path / f"host-{host}", **options)  # type: ignore[arg-type]
        opened.append(agent)
        return agent

    yield open_agent
    words = [agent.close() for agent in opened]
    end_all([agent.root for agent in opened])
    assert "".join(words) == ""
