"""The base interpreter of an overlay environment: its packages, and its TensorFlow as a pin."""

import json
import os
import re
import subprocess
from typing import Any, Dict, List, Tuple

from train.agent.files.paths import HostPaths
from train.agent.host.inventory import PROBE_DEADLINE_S, TENSORFLOWS, Probe, ran
from train.agent.packages.venv import Base, Wish, wanted
from train.agent.protocol.errors import RefusedError
from train.agent.protocol.records import Refusal

_HASHED = re.compile(r"(?:^|\s)--(?:hash|require-hashes)\b")
_ASK = """
import json, os, sys
from importlib.metadata import PackageNotFoundError, version
pins = []
for name in sys.argv[1:]:
    try:
        pins.append(name + "==" + version(name))
    except PackageNotFoundError:
        pass
directories = [p for p in sys.path if os.path.basename(p) in ("site-packages", "dist-packages") and os.path.isdir(p)]
print(json.dumps({"real": os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable),
                  "directories": directories, "pins": pins}))
"""


def on_top(host: HostPaths, probe: Probe, session: Dict[str, str], wish: Wish, base: Base) -> Tuple[Wish, Base]:
    """Return requirements and base of an environment that finds everything that the base interpreter finds.

    Where the requirements do not name TensorFlow, the one that is there is required, too: pip then keeps what it
    needs in versions that will do.

    Raises:
        RefusedError: the interpreter does not tell.
    """
    found = _found(probe, session, base)
    named = any(_names(line) in TENSORFLOWS for line in wanted(wish.requirements))
    # pip wants hashes of all packages or of none.
    pins = () if named or _HASHED.search(wish.requirements) else tuple(found["pins"][:1])
    directory = os.path.dirname(os.path.dirname(base.path))
    owner = directory if os.path.dirname(directory) == host.venvs else ""
    return wish._replace(pins=pins), Base(found["real"], base.version, tuple(found["directories"]), owner)


def _found(probe: Probe, session: Dict[str, str], base: Base) -> Dict[str, Any]:
    name, stamps = f"below {base.path}", probe.stamps(base.path)
    known: Any = probe.recall(name, stamps)
    if known:
        return dict(known)
    code, words = ran([base.path, "-c", _ASK, *TENSORFLOWS], session, PROBE_DEADLINE_S, subprocess.STDOUT)
    lines: List[str] = words.splitlines()
    try:
        found: Dict[str, Any] = json.loads(lines[-1])
    except (ValueError, IndexError):
        raise RefusedError(
            Refusal.PYTHON,
            f"{base.path} on this host does not tell where its packages are",
            "name another interpreter",
            cause=lines[-1] if lines else f"it ended with code {code}",
        ) from None
    probe.keep(name, stamps, found)
    return found


def _names(requirement: str) -> str:
    """Return the package name of a requirement, normalized as on PyPI."""
    found = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", requirement)
    return re.sub(r"[-_.]+", "-", found[0]).lower() if found else ""
