"""Find out from pip's output why it failed. Pure.

The patterns match pip 20 to 26. Unknown output is quoted as the cause.
"""

from __future__ import annotations

import re
from typing import List, Optional, Sequence

from train.agent.protocol.records import Exit, Refusal, Refused

_FULL = ("No space left on device", "Disk quota exceeded")
_BROKEN = re.compile(r"connection broken by|Max retries exceeded|urllib3\.exceptions\.|requests\.exceptions\.")
_WHY_BROKEN = re.compile(
    r"Name or service not known|Temporary failure in name resolution|No address associated with hostname|"
    r"Connection refused|Network is unreachable|No route to host|Connection reset by peer|"
    r"CERTIFICATE_VERIFY_FAILED|Tunnel connection failed: [^'\")]*|Read timed out|timed out"
)
_NO_VERSION = re.compile(r"ERROR: No matching distribution found for (.+)")
_VERSIONS = re.compile(r"\(from versions: (.+)\)")
_OTHER_PYTHON = "that require a different python version: "
_BUILD_FAILED = re.compile(r"\s*[\u00d7x] (.+) did not run successfully")
_COMPILER = re.compile(r"\b(?:fatal )?error: (?!subprocess-exited|command )")
_GENERAL = ("subprocess-exited-with-error", "ResolutionImpossible")
_SHOWN = 5  # versions


def find_cause(lines: Sequence[str], end: Exit, *, logs_in: bool = False) -> Refused:
    """Return why pip failed.

    Args:
        lines: All that it printed.
        end: How it ended.
        logs_in: The index or the proxy requires a login. pip does not report a rejected login, but finds nothing.
    """
    failure = _disk(lines) or _killed(end) or _network(lines) or _conflict(lines) or _no_version(lines, logs_in)
    return failure or _build(lines) or _last_output(lines)


def _refused(reason: str, cause: str, hint: str, kind: Refusal = Refusal.INSTALLATION) -> Refused:
    return Refused(kind, reason, hint, cause=cause)


def _disk(lines: Sequence[str]) -> Optional[Refused]:
    if not any(text in line for line in lines for text in _FULL):
        return None
    reason = "no space left on this host for the packages"
    return Refused(Refusal.DISK, reason, "free space on the host, or make its disk larger")


def _killed(end: Exit) -> Optional[Refused]:
    if end.signal is None:
        return None
    return _refused(f"pip was killed by signal {end.signal}", "", "the host may have too little memory")


def _network(lines: Sequence[str]) -> Optional[Refused]:
    broken = [line for line in lines if _BROKEN.search(line)]
    versions = [line for line in lines if _VERSIONS.search(line)]
    if not broken or any("(from versions: none)" not in line for line in versions):
        return None
    if not versions and not any(_BROKEN.search(line) for line in lines[-8:]):
        return None  # pip recovered, and something else failed
    why = [match[0] for match in map(_WHY_BROKEN.search, broken) if match]
    return _refused(
        "pip cannot reach the package index",
        why[-1] if why else broken[-1].strip(),
        "let the host reach it; instances without an external address need Cloud NAT",
    )


def _conflict(lines: Sequence[str]) -> Optional[Refused]:
    if not any("ResolutionImpossible" in line for line in lines):
        return None
    causes: List[str] = []
    for number, line in enumerate(lines):
        if line.strip() == "The conflict is caused by:":
            for cause_line in lines[number + 1 :]:
                if not cause_line.strip():
                    break
                causes.append(cause_line.strip())
    hint = "request versions that fit together"
    return _refused("the packages exclude each other", "; ".join(causes), hint, Refusal.PACKAGES)


def _no_version(lines: Sequence[str], logs_in: bool) -> Optional[Refused]:
    requirements = [match[1] for match in map(_NO_VERSION.match, lines) if match]
    if not requirements:
        return None
    versions = next((match[1] for match in map(_VERSIONS.search, lines) if match), "none").split(", ")
    cause = "there are none for this Python and computer"
    if logs_in:
        cause += ", or the index or the proxy rejected the login"
    if versions != ["none"]:
        cause = f"there are {'…, ' if len(versions) > _SHOWN else ''}{', '.join(versions[-_SHOWN:])}"
    others = [line.partition(_OTHER_PYTHON)[2] for line in lines if _OTHER_PYTHON in line]
    if others:
        cause += f"; for other versions of Python {others[0].rpartition('; ')[2]}"
    hint = "request a version that exists"
    return _refused(f"pip finds no {requirements[-1]}", cause, hint, Refusal.PACKAGES)


def _build(lines: Sequence[str]) -> Optional[Refused]:
    failed = next((match[1] for match in map(_BUILD_FAILED.match, lines) if match), "")
    if not failed:
        return None
    output = [line.strip() for line in lines[: _index(lines, "[end of output]")] if line.strip()]
    text = next((line for line in output if _COMPILER.search(line)), output[-1])
    return _refused(f"pip fails in {failed}", text, "install what it needs on the host, or request another version")


def _index(lines: Sequence[str], text: str) -> int:
    return next((number for number, line in enumerate(lines) if line.strip() == text), len(lines))


def _last_output(lines: Sequence[str]) -> Refused:
    lines = [line.strip() for line in lines if line.strip()]
    errors = [
        line.partition(":")[2].strip()
        for line in lines
        if line.lower().startswith("error:") and not any(text in line for text in _GENERAL)
    ]
    text = errors[-1] if errors else lines[-1] if lines else "no output"
    kind = Refusal.PACKAGES if text.startswith("Invalid requirement") else Refusal.INSTALLATION
    return _refused("pip cannot install the packages", text, "correct the list of packages", kind)
