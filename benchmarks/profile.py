"""`python -m benchmarks.profile ARGUMENTS`: show where `fleet ARGUMENTS` spends its CPU time, in all threads."""

from __future__ import annotations

import cProfile
import pstats
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

_SHOWN = 15
_PROFILES: list[cProfile.Profile] = []


def main() -> int:
    """Run the command under the profiler; print the functions with the most CPU time without their callees."""
    run = threading.Thread.run

    def profiled(thread: threading.Thread) -> None:
        _profiled(lambda: run(thread))

    threading.Thread.run = profiled  # type: ignore[assignment,method-assign]
    code = _profiled(_command)
    sys.stderr.write("\n".join(_lines()) + "\n")
    return int(code)


def _command() -> int:
    from fleet.__main__ import main as command

    return command()


def _profiled(call: Any) -> Any:
    profile = cProfile.Profile(time.thread_time)
    _PROFILES.append(profile)
    return profile.runcall(call)


def _lines() -> list[str]:
    """Return the functions with the most CPU time, in milliseconds and percent."""
    spent: Counter[str] = Counter()
    for profile in _PROFILES:
        for (file, _, name), (_, _, alone, *_) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
            spent[_label(file, name)] += alone
    total = sum(spent.values())
    rows = [f"{1e3 * alone:9.1f} ms {alone / total:6.1%}  {label}" for label, alone in spent.most_common(_SHOWN)]
    return [f"{1e3 * total:9.1f} ms 100.0%  CPU time of {len(_PROFILES)} threads, under the profiler", *rows]


def _label(file: str, name: str) -> str:
    """Return a name such as ``paramiko/packet.py: read_message``."""
    return name.strip("<>") if file == "~" else f"{'/'.join(Path(file).parts[-2:])}: {name}"


if __name__ == "__main__":
    sys.exit(main())
