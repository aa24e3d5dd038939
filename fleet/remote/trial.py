"""The client's side of the conversation in which a script is tried on one host by itself."""

from __future__ import annotations

from collections.abc import Callable

from fleet.remote.channel import AgentChannel
from fleet.remote.job import unexpected
from train.agent.records import BootstrapStep, Trial, Tried

SILENCE_S = 60.0
"""Longest time without a word, in seconds: the agent speaks every five."""


def trial(channel: AgentChannel, request: Trial, on_step: Callable[[BootstrapStep], None]) -> Tried:
    """Run what was prepared, until its first step; the host keeps nothing of it.

    Closing the channel ends it.

    Args:
        channel: Conversation with the host's agent, on which something was prepared.
        request: What to run, and how long.
        on_step: Called at least every five seconds.

    Raises:
        RefusedError: the host cannot run it.
        UnreachableError: it does not answer, or the connection broke.
    """
    doing = "running the script by itself"
    channel.send(request, doing=doing)
    while True:
        record, _ = channel.receive(SILENCE_S, doing)
        if isinstance(record, Tried):
            return record
        if not isinstance(record, BootstrapStep):
            raise unexpected(channel.connection.host, record)
        on_step(record)
