"""What a host has: interpreters with their versions, GPUs, memory.

Looking costs a process each, so what was found is kept beside what would change with it.
"""

import json
import os
import subprocess
import zlib
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence

from train.agent.disk import read_json, read_text, write_atomic
from train.agent.errors import RefusedError
from train.agent.hook import PROVEN, SOURCE, install, proving
from train.agent.processes import boot_id
from train.agent.records import Gpu, Refusal

PROBE_DEADLINE_S = 60.0
GPU_DEADLINE_S = 30.0
_GPU_QUERY = ("--query-gpu=index,name,memory.total,driver_version", "--format=csv,noheader,nounits")
_PROBE = """
import json, os, sys
found = {"python": "%d.%d.%d" % sys.version_info[:3]}
try:
    from importlib.metadata import version
except ImportError:
    version = None
def look(name, packages):
    for package in packages:
        try:
            found[name] = version(package)
            return
        except Exception:
            pass
if version:
    look("tensorflow", ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tensorflow-intel", "tensorflow-rocm",
                        "tensorflow-cpu-aws", "tensorflow-aarch64", "intel-tensorflow", "tf-nightly",
                        "tf-nightly-cpu", "tf-nightly-gpu"))
    look("keras", ("keras", "keras-nightly"))
    look("tf_keras", ("tf-keras", "tf_keras", "tf-keras-nightly"))
print(json.dumps({"versions": found, "folders": [p for p in sys.path if p], "hook": os.environ.get("FLEET_HOOK")}))
"""
_PROBE_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "PYTHONNOUSERSITE", "PYTHONUSERBASE")


class Interpreter(NamedTuple):
    """A Python for the user's script."""

    path: str
    versions: Dict[str, str]
    hooked: bool = False  # it has proven that it runs the hook


def which(program: str, search: str) -> Iterator[str]:
    """Every executable file called `program` on the path `search`, first ones first."""
    for folder in search.split(os.pathsep):
        path = os.path.join(folder, program)
        if folder and os.path.isfile(path) and os.access(path, os.X_OK):
            yield path


def _stamp(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


class Probe:
    """Finds out what the host has, and remembers it in a file.

    Args:
        cache: The file.
        environment: In which the user's script will find its interpreter.
        hook: Folder of the hook that interpreters are to prove; empty: nothing is proven.
    """

    def __init__(self, cache: str, environment: Dict[str, str], hook: str = "") -> None:
        self._hook = hook
        self._asked = zlib.crc32(SOURCE.encode()) if hook else 0
        self._cache = cache
        self._environment = environment
        self._known: Dict[str, Any] = read_json(cache) or {}
        self._changed = False

    def save(self) -> None:
        """Keep what was found; a disk that is full only makes the next look slower."""
        if self._changed:
            try:
                write_atomic(self._cache, json.dumps(self._known).encode())
            except OSError:
                return
            self._changed = False

    def interpreter(self, asked: str) -> Interpreter:
        """The interpreter `asked` for; where that is empty, the first python3 with TensorFlow, else the first.

        Raises:
            RefusedError: there is none, or it does not run.
            OSError: the hook cannot be written.
        """
        search = self._environment.get("PATH", os.defpath)
        if asked:
            path = os.path.expanduser(asked)
            found = [path] if "/" in path else list(which(path, search))[:1]
            reason = f"there is no interpreter {asked} on this host"
        else:
            found = list(which("python3", search))
            reason = f"there is no python3 on the PATH of this host ({search})"
        if self._hook:
            install(self._hook)
        usable: List[Interpreter] = []
        for path in found:
            one = self._look(path)
            if one and (asked or "tensorflow" in one.versions):
                return one
            if one:
                usable.append(one)
            elif asked:
                reason = f"{asked} on this host does not run as a Python interpreter"
        if not usable:
            raise RefusedError(Refusal.PYTHON, reason, "install Python on the host, or name its interpreter")
        return usable[0]

    def _look(self, path: str) -> Optional[Interpreter]:
        key = "\n".join([path] + [self._environment.get(name, "") for name in _PROBE_VARIABLES])
        known = self._known.setdefault("interpreters", {}).get(key)
        if known and self._holds(known):
            return Interpreter(path, dict(known["versions"]), known.get("hooked", False))
        environment = proving(self._hook, self._environment) if self._hook else self._environment
        printed = _printed([path, "-c", _PROBE], environment, PROBE_DEADLINE_S)
        try:
            answer = json.loads(printed.splitlines()[-1])
            versions: Dict[str, str] = dict(answer["versions"])
            watched = [path, os.path.realpath(path), *answer["folders"]]
        except (ValueError, LookupError, TypeError):
            return None
        hooked = self._hook != "" and answer.get("hook") == PROVEN
        stamps = {one: _stamp(one) for one in watched}
        found = {"versions": versions, "stamps": stamps, "asked": self._asked, "hooked": hooked}
        self._known["interpreters"][key] = found
        self._changed = True
        return Interpreter(path, versions, hooked) if versions else None

    def _holds(self, known: Dict[str, Any]) -> bool:
        same = all(_stamp(one) == stamp for one, stamp in known["stamps"].items())
        return same and self._asked in (0, known.get("asked"))

    def gpus(self) -> List[Gpu]:
        """The GPUs that nvidia-smi lists; none where it is missing or does not answer."""
        program = next(which("nvidia-smi", self._environment.get("PATH", os.defpath)), "")
        if not program:
            return []
        key = [program, _stamp(program), boot_id()]
        known = self._known.get("gpus")
        if known and known["key"] == key:
            return [Gpu(*one) for one in known["found"]]
        found = parse_gpus(_printed([program, *_GPU_QUERY], self._environment, GPU_DEADLINE_S))
        if found:
            self._known["gpus"] = {"key": key, "found": [list(one) for one in found]}
            self._changed = True
        return found


def _printed(command: Sequence[str], environment: Dict[str, str], deadline_s: float) -> str:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd="/",
            timeout=deadline_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""


def parse_gpus(text: str) -> List[Gpu]:
    """GPUs of ``nvidia-smi --query-gpu=index,name,memory.total,driver_version --format=csv,noheader,nounits``."""
    found = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) >= 4 and fields[0].isdigit():
            memory = int(fields[-2]) if fields[-2].isdigit() else 0
            found.append(Gpu(int(fields[0]), ", ".join(fields[1:-2]), memory, fields[-1]))
    return found


def memory_total() -> int:
    """Memory of this host in bytes; 0 if it does not tell."""
    for line in read_text("/proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return 0


def login_environment() -> Dict[str, str]:
    """The environment of this session, without what ends with its connection."""
    return {name: value for name, value in os.environ.items() if not name.startswith("SSH_")}
