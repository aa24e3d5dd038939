"""The request Bootstrap: wait for root's scripts, install packages, and check that the GPUs are usable."""

from __future__ import annotations

import os
import sys
import time
from typing import Dict

from train.agent.files.disk import make_directory
from train.agent.files.paths import HostPaths
from train.agent.host.facts import Interpreter, Probe, login_environment
from train.agent.host.gpus import await_driver, count_tensorflow_gpus
from train.agent.host.runner import Steps
from train.agent.packages.venv import (
    OLDEST_PYTHON,
    Base,
    EnvironmentSpec,
    Venvs,
    is_complete,
    overlay,
    significant_lines,
)
from train.agent.protocol.channel import Channel
from train.agent.protocol.errors import RefusedError
from train.agent.protocol.records import Bootstrap, Bootstrapped, Refusal
from train.agent.requests.preparation.root_scripts import await_root_scripts


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
            environment = _Environment(host, probe, request, session, steps)
            made = environment.ensure()
            python = environment.paths.python
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


class _Environment:
    """The environment that a request describes.

    Args:
        host: Paths of the fleet on this host.
        probe: Finds the interpreter.
        request: The request.
        session: Environment of the login.
        steps: Reports the progress.

    Attributes:
        paths: Its paths.
    """

    def __init__(
        self, host: HostPaths, probe: Probe, request: Bootstrap, session: Dict[str, str], steps: Steps
    ) -> None:
        interpreter = _find_base(probe, request)
        version = interpreter.versions["python"]
        self._spec = EnvironmentSpec(request.requirements, request.constraints, index_url=request.source.index_url)
        self._base = Base(os.path.realpath(interpreter.path), version)
        if request.on_top:
            self._spec, self._base = overlay(host, self._spec, interpreter)
        self._venvs = Venvs(host, session, steps, request.source)
        self.paths = self._venvs.locate(self._spec, self._base)

    def ensure(self) -> bool:
        """Create the environment if it is missing; return whether it was created.

        Raises:
            RefusedError: it cannot be created.
        """
        return not is_complete(self.paths, self._base) and self._venvs.ensure(self._spec, self._base)


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
