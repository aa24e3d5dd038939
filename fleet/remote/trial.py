"""Request that a host's agent run a script alone as a smoke test."""

from __future__ import annotations

from collections.abc import Callable

from fleet.remote.bootstrap import step_by_step
from fleet.remote.channel import AgentChannel
from train.agent.protocol.records import BootstrapStep, Trial, Tried


def trial(channel: AgentChannel, request: Trial, on_step: Callable[[BootstrapStep], None]) -> Tried:
    """Run the prepared script until its first step; the host keeps no results.

    Closing the channel stops the script.

    Args:
        channel: Connection to the host's agent, on which the script was prepared.
        request: The program, and the time limit.
        on_step: Called at least every 5 seconds.

    Raises:
        RefusedError: the host cannot run the script.
        UnreachableError: the host does not answer, or the connection broke.
    """
    return step_by_step(channel, request, Tried, on_step, doing="running the script by itself")
