"""Errors that end a request or a conversation."""

from train.agent.protocol.records import Refusal, Refused


class RefusedError(Exception):
    """The request cannot be met.

    Args:
        kind: Why, as a type.
        reason: Why, as a sentence for the user.
        hint: What to change, one sentence.
        job: The running job, where `kind` is BUSY.
        cause: Why, in the words of a program that was asked.
        next_step: Commands that can be pasted into a shell, one a line.
    """

    def __init__(
        self, kind: Refusal, reason: str, hint: str = "", job: str = "", cause: str = "", next_step: str = ""
    ) -> None:
        super().__init__(reason)
        self.record = Refused(kind, reason, hint, job, cause, next_step)


class ClientGoneError(Exception):
    """The client closed the connection, or was silent for too long."""
