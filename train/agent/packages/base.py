"""The base interpreter of an overlay environment: its packages, and its TensorFlow as a pin."""

import os
import re
import subprocess
from typing import Any, Dict, Tuple

from train.agent.files.paths import HostPaths
from train.agent.host.facts import Probe, query_interpreter
from train.agent.injected.probe_interpreter import TENSORFLOWS
from train.agent.packages.venv import Base, EnvironmentSpec, significant_lines, split_requirement
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
    info = _packages_of(probe, session, base)
    named = any(split_requirement(line)[0] in TENSORFLOWS for line in significant_lines(spec.requirements))
    # pip requires hashes for all packages or for none.
    pins = () if named or _HASHED.search(spec.requirements) else tuple(info["pins"][:1])
    directory = os.path.dirname(os.path.dirname(base.path))
    owner = directory if os.path.dirname(directory) == host.venvs else ""
    return spec._replace(pins=pins), Base(info["real"], base.version, tuple(info["directories"]), owner)


def _packages_of(probe: Probe, session: Dict[str, str], base: Base) -> Dict[str, Any]:
    name, stamps = f"below {base.path}", probe.stamps(base.path)
    cached = probe.recall(name, stamps)
    if cached:
        return dict(cached)
    info, line = query_interpreter(base.path, "list_packages", TENSORFLOWS, session, subprocess.STDOUT)
    if info is None:
        raise RefusedError(
            Refusal.PYTHON,
            f"{base.path} on this host does not report where its packages are",
            "name another interpreter",
            cause=line,
        )
    probe.keep(name, stamps, info)
    return dict(info)
