"""Request that a host's agent install packages and check its GPUs."""

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
"""Longest time without a record, in seconds: the agent sends one every 5 s, but not while nvidia-smi runs."""


def bootstrap(channel: AgentChannel, request: Bootstrap, on_step: Callable[[BootstrapStep], None]) -> Bootstrapped:
    """Install missing packages on a host, and check whether its GPUs can be used.

    Closing the channel ends what the host is doing.

    Args:
        channel: Connection to the host's agent.
        request: What to install, and how many GPUs must be usable.
        on_step: Called with every step; the same step may be repeated.

    Raises:
        RefusedError: the host cannot install them, or cannot use its GPUs.
        UnreachableError: the host does not answer, or the connection broke.
    """
    requests: list[NeedPip] = []

    def supply(record: Record) -> tuple[Record, bytes] | None:
        if not isinstance(record, NeedPip) or requests:  # a second request is invalid
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
    """Send a request whose steps the host reports until it answers.

    Args:
        channel: Connection to the host's agent.
        request: The request.
        answer: Type of the record that ends the exchange.
        on_step: Called with every step; the same step may be repeated.
        doing: The action of the host before it reports a step, for the message of an error.
        supply: Returns the answer to another request of the host, and the bytes that follow it; None: not supported.

    Raises:
        RefusedError: the host refuses the request.
        UnreachableError: the host was silent for SILENCE_S, or the connection broke.
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
