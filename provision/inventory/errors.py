"""Places in inventory files, and the error for content that cannot be read or is not supported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from provision.provider import ErrorKind, ProviderError


@dataclass(frozen=True)
class Location:
    """A line of a file.

    Attributes:
        path: The file, as the user named it.
        line: Number of the line, from 1; 0: the file as a whole.
    """

    path: Path
    line: int = 0

    def __str__(self) -> str:
        return f"{self.path}:{self.line}" if self.line else str(self.path)


class InventoryError(ProviderError):
    """An inventory is malformed, or has content that is not supported; nothing was started.

    Args:
        message: What is wrong, for the user.
        location: Location of the error; it begins the message.
        cause: Cause, if known.
        hint: What to change, one sentence.
        next_step: Commands that can be pasted into a shell, one a line.
        again: Options of ``fleet up`` to change before it is repeated.
    """

    def __init__(
        self,
        message: str,
        *,
        location: Location | None = None,
        cause: str = "",
        hint: str = "",
        next_step: str = "",
        again: Mapping[str, str | bool | None] | None = None,
    ) -> None:
        super().__init__(
            ErrorKind.USAGE,
            message if location is None else f"{location}: {message}",
            cause=cause,
            hint=hint,
            next_step=next_step,
            again=again,
        )
        self.location = location
