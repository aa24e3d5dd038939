"""The request Bootstrap: wait for root's scripts, install packages, and check that the GPUs are usable."""

from __future__ import annotations

import os
import sys
import time
from typing import Dict, Optional, Tuple

from train.agent.files.disk import make_directory, read_text
from train.agent.files.paths import HostPaths
from train.agent.host.facts import Interpreter, Probe, login_environment
from train.agent.host.gpus import await_driver, count_tensorflow_gpus
from train.agent.host.processes import read_stat
from train.agent.host.runner import Steps
from train.agent.packages.venv import (
    OLDEST_PYTHON,
    Base,
    EnvironmentSpec,
    Venvs,
    overlay,
    significant_lines,
)
from train.agent.protocol.channel import Channel
from train.agent.protocol.errors import RefusedError
from train.agent.protocol.records import Bootstrap, Bootstrapped, Refusal


def bootstrap(channel: Channel, host: HostPaths, request: Bootstrap) -> Bootstrapped:
    """Answer Bootstrap; report the steps.

    If the packages replace TensorFlow by another framework, only the driver is asked for the GPUs.

    Raises:
        RefusedError: a script of root failed, the packages cannot be installed, or the GPUs cannot be used.
        ClientGoneError: the client disconnected; nothing is left of an incomplete installation.
        OSError: probably because the disk is full; likewise.
    """
    began = time.monotonic()
    make_directory(host.root)
    session = login_environment()
    probe = Probe(host.probe, session, host.hook)
    steps = Steps(channel)
    await_root_scripts(request.scripts, request.again, steps)
    python, made = request.python, False
    try:
        if significant_lines(request.requirements):
            python, made = _ensure_environment(host, probe, request, session, steps)
        steps.report_step("checking Python")
        interpreter = probe.interpreter(python)
        gpus, seen = [], 0
        if request.gpus > 0:
            steps.report_step("checking the GPUs")
            gpus = await_driver(probe, request.gpus, steps)
            is_replaced = bool(significant_lines(request.requirements)) and "tensorflow" not in interpreter.versions
            if not is_replaced:
                seen = count_tensorflow_gpus(probe, interpreter, gpus, request.gpus, session, steps)
    finally:
        probe.save()
    seconds = round(time.monotonic() - began, 3)
    return Bootstrapped(interpreter.path, interpreter.versions, gpus, seen, made, seconds)


def _ensure_environment(
    host: HostPaths, probe: Probe, request: Bootstrap, session: Dict[str, str], steps: Steps
) -> Tuple[str, bool]:
    """Return the interpreter of the environment that a request describes, and whether it was created now.

    Raises:
        RefusedError: it cannot be created.
    """
    interpreter = _find_base(probe, request)
    spec = EnvironmentSpec(request.requirements, request.constraints, index_url=request.source.index_url)
    base = Base(os.path.realpath(interpreter.path), interpreter.versions["python"])
    if request.on_top:
        spec, base = overlay(host, spec, interpreter)
    return Venvs(host, session, steps, request.source).ensure(spec, base)


def _find_base(probe: Probe, request: Bootstrap) -> Interpreter:
    """Return the interpreter for new environments: the given one, or else the agent's or the task's.

    Raises:
        RefusedError: there is none, or it is too old.
    """
    interpreter = probe.interpreter(request.python or ("" if request.on_top else sys.executable))
    version = interpreter.versions.get("python", "")
    numbers = tuple(int(number) for number in version.split(".")[:2] if number.isdigit())
    if numbers < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        raise RefusedError(
            Refusal.PYTHON,
            f"{interpreter.path} on this host is Python {version}, and virtual environments need {oldest}",
            f"install Python {oldest} or later there, or name its interpreter",
        )
    return interpreter


# Written by the startup script of the provider, provision/gce/api/startup.sh.
RESULTS = ("/run/fleet/scripts", "/var/lib/fleet/scripts")
AGAIN = "/run/fleet/again"
DEADLINE_S = 3600.0
BEGIN_S = 180.0
BEGIN_LEAST_S = 10.0
_LOOK_S = 0.2
_TAIL = 4096
_LINES = 10


def await_root_scripts(scripts: Dict[str, str], again: bool, steps: Steps) -> None:
    """Return when all scripts have ended with exit code 0.

    Args:
        scripts: SHA-256 of each script, by the option that gives it.
        again: Let a script run again that failed before this request.
        steps: Reports the progress.

    Raises:
        RefusedError: a script failed, or does not end.
        ClientGoneError: the client is gone.
    """
    if scripts:
        _await_begin(steps)
    for option, digest in scripts.items():
        if again and _find_result(digest)[0] not in (None, 0):
            _request_again(digest)
        _await(option, digest, steps)


def _await_begin(steps: Steps) -> None:
    """Return when the startup script runs, which creates the directory `AGAIN`.

    Raises:
        RefusedError: it does not run although the host has been up for some time.
        ClientGoneError: the client is gone.
    """
    began = time.monotonic()
    while not os.path.isdir(AGAIN):
        if time.monotonic() > began + BEGIN_LEAST_S and _up_s() > BEGIN_S:
            raise RefusedError(
                Refusal.SETUP,
                "the startup script of this host does not run, or is of an older version",
                "select an image that runs startup scripts, or run it: sudo google_metadata_script_runner startup",
                next_step="fleet up",
            )
        steps.report_step("waiting for the startup script of the host")
        steps.pause(_LOOK_S)


def _up_s() -> float:
    """Return the time since the first process of this host began, in seconds; 0 if unknown."""
    first, uptime = read_stat(1), read_text("/proc/uptime").split()
    return float(uptime[0]) - first.started / os.sysconf("SC_CLK_TCK") if first and uptime else 0.0


def _await(option: str, digest: str, steps: Steps) -> None:
    end = time.monotonic() + DEADLINE_S
    while True:
        code, log = _find_result(digest)
        if code is not None and not os.path.exists(os.path.join(AGAIN, digest)):
            break
        if time.monotonic() > end:
            raise RefusedError(
                Refusal.SETUP,
                f"the script of {option} did not end within {DEADLINE_S / 60:.0f} min on this host",
                cause=_last_lines(log) or "it did not begin: the startup script of the instance may have failed",
            )
        lines = _last_lines(log).split("\n")
        steps.report_step(f"running the script of {option} as root", lines[-1])
        steps.pause(_LOOK_S)
    if code:
        raise RefusedError(
            Refusal.SETUP,
            f"the script of {option} failed with exit code {code} on this host",
            "correct it; fleet up runs it again",
            cause=_last_lines(log),
        )


def _find_result(digest: str) -> Tuple[Optional[int], str]:
    """Return the exit code of a script, None while it has none, and the path of its output."""
    log = ""
    for directory in RESULTS:
        path = os.path.join(directory, digest)
        if os.path.exists(f"{path}.log"):
            log = f"{path}.log"
        try:
            with open(path, encoding="ascii") as file:
                return int(file.read()), log
        except (FileNotFoundError, ValueError):
            continue
    return None, log


def _request_again(digest: str) -> None:
    with open(os.path.join(AGAIN, digest), "w", encoding="ascii"):
        pass


def _last_lines(path: str) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.path.getsize(path) - _TAIL))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.strip().split("\n")[-_LINES:])
