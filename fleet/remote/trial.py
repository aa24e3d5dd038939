"""The client's side of the conversation in which a script is tried on one host by itself."""

from __future__ import annotations

from collections.abc import Callable

from fleet.remote.bootstrap import step_by_step
from fleet.remote.channel import AgentChannel
from train.agent.protocol.records import BootstrapStep, Trial, Tried


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
    return step_by_step(channel, request, Tried, on_step, doing="running the script by itself")
