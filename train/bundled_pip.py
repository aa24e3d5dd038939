"""Pack the pip of this program's environment for a host whose Python has neither pip nor ensurepip."""

from __future__ import annotations

import functools
import hashlib
import io
import re
import threading
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from typing import NamedTuple

from train.errors import TrainError

_EPOCH = (1980, 1, 1, 0, 0, 0)  # of all files: equal packages have equal hashes
_PACKING = threading.Lock()  # all hosts may need it at once; the first one packs it


class Wheel(NamedTuple):
    """A wheel.

    Attributes:
        data: Its content.
        digest: SHA-256 of the content, hexadecimal.
    """

    data: bytes
    digest: str


def read_pip_wheel(python: str) -> Wheel:
    """Return pip as a wheel for a version of Python.

    Args:
        python: The version, ``3.12``.

    Raises:
        TrainError: pip is not installed here, or its version does not run on this Python.
    """
    with _PACKING:
        wheel, oldest = _pack()
    if _numbers(python) < _numbers(oldest):
        raise TrainError(
            f"no pip is available for Python {python}",
            cause=f"the pip of this program's environment needs Python {oldest}",
            hint="use an image or an interpreter with a newer Python",
        )
    return wheel


@functools.cache
def _pack() -> tuple[Wheel, str]:
    """Return the wheel, and the oldest version of Python that it supports."""
    try:
        pip = distribution("pip")
        paths = [path for path in pip.files or () if path.parts[0] != ".." and path.suffix != ".pyc"]
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for path in sorted(paths):
                archive.writestr(zipfile.ZipInfo(str(path), _EPOCH), path.read_binary(), zipfile.ZIP_DEFLATED, 1)
        archive.getinfo("pip/__main__.py")
    except (PackageNotFoundError, OSError, KeyError) as error:
        raise TrainError(
            "pip of this program's environment cannot be read",
            cause=str(error),
            next_steps=[("python3", "-m", "pip", "install", "--force-reinstall", "pip")],
        ) from error
    data = buffer.getvalue()
    match = re.search(r">=\s*(\d+\.\d+)", pip.metadata["Requires-Python"] or "")
    return Wheel(data, hashlib.sha256(data).hexdigest()), match[1] if match else "3.0"


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]
