"""The base interpreter of an overlay environment: its packages, and its TensorFlow as a pin."""

import json
import os
import re
import subprocess
from typing import Any, Dict, List, Tuple

from train.agent.files.paths import HostPaths
from train.agent.host.facts import PROBE_DEADLINE_S, Probe, run_program
from train.agent.injected import read_source
from train.agent.injected.probe_interpreter import TENSORFLOWS
from train.agent.packages.venv import Base, EnvironmentSpec, significant_lines
from train.agent.protocol.errors import RefusedError
from train.agent.protocol.records import Refusal

_HASHED = re.compile(r"(?:^|\s)--(?:hash|require-hashes)\b")


def overlay(
    host: HostPaths, probe: Probe, session: Dict[str, str], spec: EnvironmentSpec, base: Base
) -> Tuple[EnvironmentSpec, Base]:
    """Return requirements and base of an environment that finds everything that the base interpreter finds.

    Where the requirements do not name TensorFlow, the one that is there is required, too: pip then keeps what it
    needs in versions that will do.

    Raises:
        RefusedError: the interpreter does not answer.
    """
    info = _found(probe, session, base)
    named = any(_names(line) in TENSORFLOWS for line in significant_lines(spec.requirements))
    # pip requires hashes for all packages or for none.
    pins = () if named or _HASHED.search(spec.requirements) else tuple(info["pins"][:1])
    directory = os.path.dirname(os.path.dirname(base.path))
    owner = directory if os.path.dirname(directory) == host.venvs else ""
    return spec._replace(pins=pins), Base(info["real"], base.version, tuple(info["directories"]), owner)


def _found(probe: Probe, session: Dict[str, str], base: Base) -> Dict[str, Any]:
    name, stamps = f"below {base.path}", probe.stamps(base.path)
    cached: Any = probe.recall(name, stamps)
    if cached:
        return dict(cached)
    code, output = run_program(
        [base.path, "-c", read_source("list_packages"), *TENSORFLOWS], session, PROBE_DEADLINE_S, subprocess.STDOUT
    )
    lines: List[str] = output.splitlines()
    try:
        info: Dict[str, Any] = json.loads(lines[-1])
    except (ValueError, IndexError):
        raise RefusedError(
            Refusal.PYTHON,
            f"{base.path} on this host does not report where its packages are",
            "name another interpreter",
            cause=lines[-1] if lines else f"it ended with code {code}",
        ) from None
    probe.keep(name, stamps, info)
    return info


def _names(requirement: str) -> str:
    """Return the package name of a requirement, normalized as on PyPI."""
    match = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", requirement)
    return re.sub(r"[-_.]+", "-", match[0]).lower() if match else ""
