"""The client's side of the conversation that makes a host ready: packages, and GPUs that can be used."""

from __future__ import annotations

from collections.abc import Callable

from fleet.remote.channel import AgentChannel
from fleet.remote.job import unexpected
from train.agent.records import Bootstrap, Bootstrapped, BootstrapStep

SILENCE_S = 120.0
"""Longest time without a word, in seconds: the agent speaks every five, but while it asks nvidia-smi or Python."""


def bootstrap(channel: AgentChannel, request: Bootstrap, on_step: Callable[[BootstrapStep], None]) -> Bootstrapped:
    """Have a host install packages, unless they are there, and see whether its GPUs can be used.

    Closing the channel ends what the host is doing.

    Args:
        channel: Conversation with the host's agent.
        request: What to install, and how many GPUs must be usable.
        on_step: Called with every step, and at times with the same one again.

    Raises:
        RefusedError: the host cannot install them, or cannot use its GPUs.
        UnreachableError: it does not answer, or the connection broke.
    """
    doing = "getting ready"
    channel.send(request, doing=doing)
    while True:
        record, _ = channel.receive(SILENCE_S, doing)
        if isinstance(record, Bootstrapped):
            return record
        if not isinstance(record, BootstrapStep):
            raise unexpected(channel.connection.host, record)
        doing = f"{record.step} ({record.detail})" if record.detail else record.step
        on_step(record)
