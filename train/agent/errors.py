"""What ends a request or a conversation early."""

from train.agent.records import Refusal, Refused


class RefusedError(Exception):
    """The request cannot be met.

    Args:
        kind: Why, as a type.
        reason: Why, as a sentence for the user.
        next_step: What to type or change.
        job: The running job, where `kind` is BUSY.
        cause: Why, in the words of a program that was asked.
    """

    def __init__(self, kind: Refusal, reason: str, next_step: str = "", job: str = "", cause: str = "") -> None:
        super().__init__(reason)
        self.record = Refused(kind, reason, next_step, job, cause)


class ClientGoneError(Exception):
    """The other end closed the connection, or was silent for too long."""
