"""Find modules that an interpreter lacks, without executing them."""

import json
import subprocess
from typing import Dict, List, Sequence

from train.agent.host.facts import PROBE_DEADLINE_S, Probe, run_program
from train.agent.injected import read_source


def missing(
    probe: Probe, python: str, environment: Dict[str, str], names: Sequence[str], directories: Sequence[str] = ()
) -> List[str]:
    """Return the top-level modules of `names` that `python` cannot find; none if it does not answer.

    Args:
        probe: Of the interpreter; what is found is kept there until a package is installed or removed.
        python: The interpreter.
        environment: In which it runs.
        names: Without dots.
        directories: Absolute; searched after its own.
    """
    if not names:
        return []
    key = [probe.stamps(python), sorted(names)]
    name = f"modules of {python}"
    names_missing = probe.recall(name, key) if not directories else None
    if names_missing is None:
        asked = json.dumps([sorted(names), list(directories)])
        code, words = run_program(
            [python, "-c", read_source("find_modules"), asked], environment, PROBE_DEADLINE_S, subprocess.DEVNULL
        )
        try:
            names_missing = json.loads(words.splitlines()[-1]) if code == 0 else []
        except (ValueError, IndexError):
            return []
        if not directories:
            probe.keep(name, key, names_missing)
    return [str(name_missing) for name_missing in names_missing]
