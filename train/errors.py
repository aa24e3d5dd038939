"""Errors of training scripts and of the rendezvous."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class TrainError(Exception):
    """A job cannot be started, or the rendezvous of its processes failed.

    Args:
        message: What happened.
        cause: Why, if it is known and adds something.
        hint: What to change, one sentence.
        next_steps: Commands to run next, each as its words: ``("fleet", "train", "task.py")``.
        again: Options of the command to change before it is repeated (None removes one), ``SCRIPT`` among them.
    """

    def __init__(
        self,
        message: str,
        *,
        cause: str = "",
        hint: str = "",
        next_steps: Sequence[tuple[str, ...]] = (),
        again: Mapping[str, str | bool | None] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.cause = cause
        self.hint = hint
        self.next_steps = tuple(next_steps)
        self.again = again


class ScriptError(TrainError):
    """The script cannot be started."""


class KerasError(TrainError):
    """The script cannot run with the Keras of the hosts."""


class RendezvousError(TrainError):
    """The rendezvous of the processes of a job failed."""
