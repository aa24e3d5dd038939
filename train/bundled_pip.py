"""Read the pip wheel for a host whose Python has no pip: one of those in virtualenv, by version of Python."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

from train.errors import TrainError


class Wheel(NamedTuple):
    """A wheel.

    Attributes:
        data: Its content.
        digest: SHA-256 of the content, hexadecimal.
    """

    data: bytes
    digest: str


def read_pip_wheel(python: str) -> Wheel:
    """Return the pip wheel for a version of Python.

    Args:
        python: The version, ``3.12``.

    Raises:
        TrainError: virtualenv has none, or its file is missing or damaged.
    """
    from virtualenv import __version__
    from virtualenv.seed.wheels.embed import get_embed_wheel

    try:
        wheel = get_embed_wheel("pip", python)
        data = Path(wheel.path).read_bytes() if wheel is not None else b""
    except (OSError, RuntimeError, ValueError) as error:
        raise TrainError(
            f"pip for Python {python} cannot be read",
            cause=f"the package virtualenv on this computer is damaged: {error}",
            next_steps=[("python3", "-m", "pip", "install", "--force-reinstall", "virtualenv")],
        ) from error
    if not data:
        raise TrainError(
            f"no pip is available for Python {python}",
            cause=f"virtualenv {__version__} does not have one",
            hint="use an image or an interpreter with a newer Python",
        )
    return Wheel(data, hashlib.sha256(data).hexdigest())
