"""The base interpreter of an overlay environment: its packages, and its TensorFlow as a pin."""

from __future__ import annotations

import os
import re
from typing import Tuple

from train.agent.files.paths import HostPaths
from train.agent.host.facts import Interpreter
from train.agent.injected.probe_interpreter import TENSORFLOWS
from train.agent.packages.venv import Base, EnvironmentSpec, significant_lines, split_requirement

_HASHED = re.compile(r"(?:^|\s)--(?:hash|require-hashes)\b")


def overlay(host: HostPaths, spec: EnvironmentSpec, interpreter: Interpreter) -> Tuple[EnvironmentSpec, Base]:
    """Return requirements and base of an environment that finds everything that the interpreter finds.

    If the requirements do not name TensorFlow, the installed one is required, too: pip then installs only versions
    that are compatible with it.
    """
    named = any(split_requirement(line)[0] in TENSORFLOWS for line in significant_lines(spec.requirements))
    # pip requires hashes for all packages or for none.
    pins = (interpreter.pin,) if interpreter.pin and not named and not _HASHED.search(spec.requirements) else ()
    directory = os.path.dirname(os.path.dirname(interpreter.path))
    owner = directory if os.path.dirname(directory) == host.venvs else ""
    base = Base(
        interpreter.base or interpreter.path, interpreter.versions["python"], interpreter.package_directories, owner
    )
    return spec._replace(pins=pins), base
