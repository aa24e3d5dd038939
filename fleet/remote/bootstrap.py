"""The client's side of the conversation that makes a host ready: packages, and GPUs that can be used."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from fleet.errors import NotReadyError
from fleet.remote.channel import AgentChannel
from fleet.remote.fanout import where
from fleet.remote.job import unexpected
from fleet.remote.quoting import one_line
from fleet.steps import read_steps
from train.agent.protocol.records import Bootstrap, Bootstrapped, BootstrapStep, NeedPip, PipWheel, Record
from train.pip_wheel import NoWheelError, read_pip_wheel

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
    requests: list[NeedPip] = []

    def supply(record: Record) -> tuple[Record, bytes] | None:
        if not isinstance(record, NeedPip) or requests:  # a host that asks again has no use for it
            return None
        requests.append(record)
        return _pip(channel, record)

    return step_by_step(channel, request, Bootstrapped, on_step, doing="getting ready", supply=supply)


def _pip(channel: AgentChannel, request: NeedPip) -> tuple[PipWheel, bytes]:
    """Return the answer to a host without pip, and the bytes that follow it.

    Raises:
        NotReadyError: there is no pip for the host's Python.
    """
    try:
        wheel = read_pip_wheel(str(request.python))
    except NoWheelError as error:
        raise NotReadyError(
            f"{where(channel.connection.host)} has Python {request.python} without pip, and none can be sent to it",
            cause=error.cause,
            hint=error.hint,
            next_steps=read_steps(error.next_step),
        ) from error
    content = b"" if wheel.digest in request.have else wheel.data
    return PipWheel(wheel.digest, len(content)), content


def step_by_step(
    channel: AgentChannel,
    request: Record,
    answer: type[T],
    on_step: Callable[[BootstrapStep], None],
    *,
    doing: str,
    supply: Callable[[Record], tuple[Record, bytes] | None] = lambda _: None,
) -> T:
    """Ask for what takes a while, of which the host tells the steps.

    Args:
        channel: Conversation with the host's agent.
        request: What to ask.
        answer: Type of the record that ends it.
        on_step: Called with every step, and at times with the same one again.
        doing: What the host does before it tells a step, for the sentence of an error.
        supply: Returns what a record of the host requests, and the bytes that follow it; None if nothing.

    Raises:
        RefusedError: the host does not do it.
        UnreachableError: it was silent for SILENCE_S, or the connection broke.
    """
    channel.send(request, doing=doing)
    while True:
        record, _ = channel.receive(SILENCE_S, doing)
        if isinstance(record, answer):
            return record
        supplied = supply(record)
        if supplied is not None:
            channel.send(*supplied, doing=doing)
            continue
        if not isinstance(record, BootstrapStep):
            raise unexpected(channel.connection.host, record)
        record = record._replace(step=one_line(record.step), detail=one_line(record.detail))
        doing = f"{record.step} ({record.detail})" if record.detail else record.step
        on_step(record)
