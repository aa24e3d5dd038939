"""Parse pip's output: progress and causes of failure. Pure.

The patterns match pip 20 to 26. Unknown output is ignored, or quoted as the cause.
"""

import re
from typing import List, NamedTuple, Optional, Sequence

from train.agent.protocol.records import Exit, Refusal, Refused

RESOLVING = "resolving packages"
DOWNLOADING = "downloading packages"
BUILDING = "building packages"
INSTALLING = "installing packages"

_UNITS = {"bytes": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}
_COLLECTING = re.compile(r"(?:Collecting|Obtaining|Processing) (\S+)")
_DOWNLOADING = re.compile(r"\s*Downloading (\S+) \(([\d.]+) (bytes|kB|MB|GB)\)")
_BUILDING = re.compile(r"\s*(?:Building wheel for|Preparing metadata|Getting requirements to build|Running setup.py)")
_INSTALLING = re.compile(r"Installing collected packages: (.+)")

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


class Reading:
    """Progress of pip, parsed from its output.

    Attributes:
        step: What it is doing.
        detail: With which package.
        file: Name of the file that is being downloaded; empty: none is.
        whole: Bytes of that file, or packages that are being installed; 0: not known.
        lines: What it printed, for `trouble`.
    """

    def __init__(self) -> None:
        self.step = RESOLVING
        self.detail = ""
        self.file = ""
        self.whole = 0
        self.lines: List[str] = []

    def feed(self, line: str) -> None:
        """Parse a line."""
        self.lines.append(line)
        installing = _INSTALLING.match(line)
        if installing:
            count = installing[1].count(",") + 1
            self._now(INSTALLING, f"{count} package{'' if count == 1 else 's'}", whole=count)
            return
        downloading = _DOWNLOADING.match(line)
        if downloading:
            self._download(downloading[1].rpartition("/")[2], float(downloading[2]) * _UNITS[downloading[3]])
            return
        collecting = _COLLECTING.match(line)
        if collecting:
            self._now(RESOLVING, collecting[1].rpartition("/")[2])
        elif _BUILDING.match(line):
            self._now(BUILDING, line.strip().split(":")[0])

    def _download(self, name: str, size: float) -> None:
        if name.endswith(".metadata"):
            self._now(RESOLVING, name.partition("-")[0])
        else:
            self._now(DOWNLOADING, name, file=name, whole=round(size))

    def _now(self, step: str, detail: str, file: str = "", whole: int = 0) -> None:
        self.step, self.detail, self.file, self.whole = step, detail, file, whole


class Trouble(NamedTuple):
    """Why pip failed."""

    kind: Refusal
    reason: str
    cause: str
    hint: str


def trouble(lines: Sequence[str], end: Exit) -> Refused:
    """Return why pip failed.

    Args:
        lines: All that it printed.
        end: How it ended.
    """
    found = _disk(lines) or _killed(end) or _network(lines) or _conflict(lines) or _no_version(lines) or _build(lines)
    found = found or _last_words(lines)
    return Refused(found.kind, found.reason, found.hint, cause=found.cause)


def _refused(reason: str, cause: str, hint: str) -> Trouble:
    return Trouble(Refusal.PACKAGES, reason, cause, hint)


def _disk(lines: Sequence[str]) -> Optional[Trouble]:
    if not any(words in line for line in lines for words in _FULL):
        return None
    reason = "no space left on this host for the packages"
    return Trouble(Refusal.DISK, reason, "", "free space on the host, or make its disk larger")


def _killed(end: Exit) -> Optional[Trouble]:
    if end.signal is None:
        return None
    return _refused(f"pip was killed by signal {end.signal}", "", "the host may have too little memory")


def _network(lines: Sequence[str]) -> Optional[Trouble]:
    broken = [line for line in lines if _BROKEN.search(line)]
    versions = [line for line in lines if _VERSIONS.search(line)]
    if not broken or any("(from versions: none)" not in line for line in versions):
        return None
    if not versions and not any(_BROKEN.search(line) for line in lines[-8:]):
        return None  # it was mended, and something else followed
    why = [found[0] for found in map(_WHY_BROKEN.search, broken) if found]
    return _refused(
        "pip cannot reach the package index",
        why[-1] if why else broken[-1].strip(),
        "let the host reach it; instances without an external address need Cloud NAT",
    )


def _conflict(lines: Sequence[str]) -> Optional[Trouble]:
    if not any("ResolutionImpossible" in line for line in lines):
        return None
    causes: List[str] = []
    for number, line in enumerate(lines):
        if line.strip() == "The conflict is caused by:":
            for told in lines[number + 1 :]:
                if not told.strip():
                    break
                causes.append(told.strip())
    return _refused("the packages exclude each other", "; ".join(causes), "request versions that fit together")


def _no_version(lines: Sequence[str]) -> Optional[Trouble]:
    wanted = [found[1] for found in map(_NO_VERSION.match, lines) if found]
    if not wanted:
        return None
    versions = next((found[1] for found in map(_VERSIONS.search, lines) if found), "none").split(", ")
    cause = "there are none for this Python and computer"
    if versions != ["none"]:
        cause = f"there are {'…, ' if len(versions) > _SHOWN else ''}{', '.join(versions[-_SHOWN:])}"
    others = [line.partition(_OTHER_PYTHON)[2] for line in lines if _OTHER_PYTHON in line]
    if others:
        cause += f"; for other versions of Python {others[0].rpartition('; ')[2]}"
    return _refused(f"pip finds no {wanted[-1]}", cause, "request a version that exists")


def _build(lines: Sequence[str]) -> Optional[Trouble]:
    failed = next((found[1] for found in map(_BUILD_FAILED.match, lines) if found), "")
    if not failed:
        return None
    output = [line.strip() for line in lines[: _index(lines, "[end of output]")] if line.strip()]
    words = next((line for line in output if _COMPILER.search(line)), output[-1])
    return _refused(f"pip fails in {failed}", words, "install what it needs on the host, or request another version")


def _index(lines: Sequence[str], wanted: str) -> int:
    return next((number for number, line in enumerate(lines) if line.strip() == wanted), len(lines))


def _last_words(lines: Sequence[str]) -> Trouble:
    said = [line.strip() for line in lines if line.strip()]
    errors = [
        line.partition(":")[2].strip()
        for line in said
        if line.lower().startswith("error:") and not any(words in line for words in _GENERAL)
    ]
    words = errors[-1] if errors else said[-1] if said else "it said nothing"
    return _refused("pip cannot install the packages", words, "correct the list of packages")
