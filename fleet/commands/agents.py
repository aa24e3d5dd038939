"""The agents of a fleet: open them on all hosts, ask them what they know."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fleet.errors import FleetError, NotFoundError
from fleet.state import FleetRecord
from provision.model import Host
from train.agent.records import Inspect, JobReport, Stop

if TYPE_CHECKING:
    from fleet.remote.channel import AgentChannel

ASK_TIMEOUT_S = 5.0


@contextlib.contextmanager
def open_agents(hosts: Sequence[Host], key: Path) -> Iterator[list[AgentChannel]]:
    """An agent on every host, in the order of `hosts`; closed at the end.

    Raises:
        FleetError: a host could not be reached; all of these are named.
    """
    from fleet.remote.channel import open_agent
    from fleet.remote.fanout import fan_out, raise_failures

    opened: list[AgentChannel] = []

    def connect(host: Host) -> AgentChannel:
        channel = open_agent(host, key)
        opened.append(channel)
        return channel

    try:
        outcomes = fan_out(hosts, connect)
        raise_failures(outcomes)
        yield [outcome.value for outcome in outcomes if outcome.value is not None]
    finally:
        for channel in opened:
            channel.close()
