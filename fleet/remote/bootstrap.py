"""The client's side of the conversation that makes a host ready: packages, and GPUs that can be used."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from fleet.remote.channel import AgentChannel
from fleet.remote.job import unexpected
from train.agent.records import Bootstrap, Bootstrapped, BootstrapStep, Record

T = TypeVar("T")

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
    return step_by_step(channel, request, Bootstrapped, on_step, doing="getting ready")


def step_by_step(
    channel: AgentChannel, request: Record, answer: type[T], on_step: Callable[[BootstrapStep], None], *, doing: str
) -> T:
    """Ask for what takes a while, of which the host tells the steps.

    Args:
        channel: Conversation with the host's agent.
        request: What to ask.
        answer: Type of the record that ends it.
        on_step: Called with every step, and at times with the same one again.
        doing: What the host does before it tells a step, for the sentence of an error.

    Raises:
        RefusedError: the host does not do it.
        UnreachableError: it was silent for SILENCE_S, or the connection broke.
    """
    channel.send(request, doing=doing)
    while True:
        record, _ = channel.receive(SILENCE_S, doing)
        if isinstance(record, answer):
            return record
        if not isinstance(record, BootstrapStep):
            raise unexpected(channel.connection.host, record)
        doing = f"{record.step} ({record.detail})" if record.detail else record.step
        on_step(record)
