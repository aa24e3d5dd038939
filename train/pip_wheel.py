"""The pip wheel for a host whose Python brings none: one of those that virtualenv carries, by version of Python."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple


class Wheel(NamedTuple):
    """A wheel.

    Attributes:
        data: Its content.
        digest: SHA-256 of the content, hexadecimal.
    """

    data: bytes
    digest: str


class NoWheelError(Exception):
    """There is no pip for a version of Python.

    Args:
        cause: Why not.
        hint: What to change, one sentence.
        next_step: Command that can be pasted into a shell.
    """

    def __init__(self, cause: str, *, hint: str = "", next_step: str = "") -> None:
        super().__init__(cause)
        self.cause = cause
        self.hint = hint
        self.next_step = next_step


def read_pip_wheel(python: str) -> Wheel:
    """Return the pip wheel for a version of Python.

    Args:
        python: The version, ``3.12``.

    Raises:
        NoWheelError: virtualenv carries none, or its file is missing or damaged.
    """
    from virtualenv import __version__
    from virtualenv.seed.wheels.embed import get_embed_wheel

    try:
        wheel = get_embed_wheel("pip", python)
        data = Path(wheel.path).read_bytes() if wheel is not None else b""
    except (OSError, RuntimeError, ValueError) as error:
        raise NoWheelError(
            f"the package virtualenv on this computer is damaged: {error}",
            next_step="python3 -m pip install --force-reinstall virtualenv",
        ) from error
    if not data:
        raise NoWheelError(
            f"virtualenv {__version__} has no pip for Python {python}",
            hint="use an image or an interpreter with a newer Python",
        )
    return Wheel(data, hashlib.sha256(data).hexdigest())
