"""Install pip into a new virtual environment, from the wheel of the host's Python or from the client.

Debian and Ubuntu keep ensurepip and pip in separate packages, which cloud images lack; elsewhere ensurepip takes
seconds. A pure Python wheel is installed by unpacking it:
https://packaging.python.org/en/latest/specifications/binary-distribution-format/.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from typing import Dict, List, Tuple

from train.agent.files.disk import list_names, make_directory, write_atomic
from train.agent.files.paths import HostPaths, VenvPaths
from train.agent.host.facts import PROBE_DEADLINE_S, run_program
from train.agent.host.runner import Steps
from train.agent.protocol.errors import RefusedError
from train.agent.protocol.records import NeedPip, PipWheel, Refusal

SUFFIX = ".whl"
LARGEST_WHEEL = 32 << 20  # bytes; pip's has about 2 MB
_RECEIVE_DEADLINE_S = 300.0  # without a byte
_LIBRARY = "import os; print(os.path.dirname(os.__file__))"
_BUNDLED = re.compile(r"pip-(\d+(?:\.\d+)*)[^/]*-none-any\.whl")


def find_wheel(host: HostPaths, python: str, version: str, session: Dict[str, str], steps: Steps) -> str:
    """Return the path of a pip wheel for an interpreter; the client is asked for one if Python has none.

    Args:
        host: Paths of the fleet on this host.
        python: The interpreter.
        version: Its version, ``3.12.3``.
        session: Environment of the login.
        steps: Reports the progress; connection to the client.

    Raises:
        RefusedError: what the client sends is not a pip wheel.
        ClientGoneError: the client is gone.
        OSError: the wheel cannot be written.
    """
    return _bundled(python, session) or _received(host, version, steps)


def unpack_wheel(wheel: str, paths: VenvPaths, site: str) -> None:
    """Install a pip wheel into a virtual environment.

    Args:
        wheel: Path of the wheel.
        paths: Paths of the environment.
        site: Its directory of packages.

    Raises:
        OSError: the environment cannot be written.
    """
    import zipfile

    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    script = f'#!/bin/sh\nexec {shlex.quote(paths.python)} -I -m pip "$@"\n'.encode("utf-8", "surrogateescape")
    for name in ("pip", "pip3"):
        write_atomic(os.path.join(os.path.dirname(paths.python), name), script, 0o700)


def _bundled(python: str, session: Dict[str, str]) -> str:
    """Return the newest pip wheel that ensurepip of `python` would install; empty if there is none."""
    code, printed = run_program([python, "-I", "-S", "-c", _LIBRARY], session, PROBE_DEADLINE_S)
    directory = os.path.join(printed.strip(), "ensurepip", "_bundled")
    wheels: List[Tuple[List[int], str]] = []
    for name in _names(directory) if code == 0 else ():
        match = _BUNDLED.fullmatch(name)
        path = os.path.join(directory, name)
        if match and _is_pip(path):
            wheels.append(([int(part) for part in match[1].split(".")], path))
    return max(wheels)[1] if wheels else ""


def _received(host: HostPaths, version: str, steps: Steps) -> str:
    """Return the wheel that the client selects; it is sent unless this host has it."""
    have = [name[: -len(SUFFIX)] for name in _names(host.pip) if _is_whole(host.pip_wheel(name[: -len(SUFFIX)]))]
    steps.report_step("receiving pip")
    steps.channel.send(NeedPip(".".join(version.split(".")[:2]), have))
    answer = steps.channel.receive(_RECEIVE_DEADLINE_S)
    if not isinstance(answer, PipWheel) or answer.payload > LARGEST_WHEEL:
        raise RefusedError(Refusal.REQUEST, f"something else than pip came while {steps.step}")
    path = host.pip_wheel(answer.sha256)
    if answer.sha256 not in have:
        data = b"".join(steps.channel.payload(answer.payload, _RECEIVE_DEADLINE_S))
        if hashlib.sha256(data).hexdigest() != answer.sha256:
            raise RefusedError(Refusal.BUNDLE, "pip arrived damaged", "run the command again")
        make_directory(host.pip)
        write_atomic(path, data)
    if not _is_pip(path):
        raise RefusedError(Refusal.BUNDLE, "the file that came as pip is not a wheel of pip")
    return path


def _names(directory: str) -> List[str]:
    return sorted(name for name in list_names(directory) if name.endswith(SUFFIX))


def _is_whole(path: str) -> bool:
    """Return True if the content of a wheel has the hash in its name."""
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest() == os.path.basename(path)[: -len(SUFFIX)]


def _is_pip(path: str) -> bool:
    import zipfile

    try:
        with zipfile.ZipFile(path) as archive:
            return "pip/__main__.py" in archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False
