"""Inventory of a host: interpreters with their versions, GPUs, and memory.

Each probe costs a process, so results are cached with a key that changes when they may.
"""

from __future__ import annotations

import json
import os
import zlib
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from train.agent.files.disk import read_json, read_text, write_atomic
from train.agent.host.processes import boot_id
from train.agent.host.spawn import PROVEN, install_hook, proof_environment
from train.agent.injected import read_source
from train.agent.protocol.errors import RefusedError
from train.agent.protocol.records import Gpu, Refusal

PROBE_DEADLINE_S = 60.0
GPU_DEADLINE_S = 30.0
_WORDS = 300  # characters of a program's output
_GPU_QUERY = ("--query-gpu=index,name,memory.total,driver_version", "--format=csv,noheader,nounits")
_PACKAGE_DIRECTORIES = ("site-packages", "dist-packages")
_PROBE_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "PYTHONNOUSERSITE", "PYTHONUSERBASE")


class Interpreter(NamedTuple):
    """A Python for the user's script."""

    path: str
    versions: Dict[str, str]
    runs_hook: bool = False  # it has proven that it runs the hook
    pin: str = ""  # its TensorFlow as a requirement; empty: it has none
    base: str = ""  # the interpreter of which it is a virtual environment, or itself; without links
    package_directories: Tuple[str, ...] = ()


def find_executables(program: str, search: str) -> Iterator[str]:
    """Yield every executable file called `program` on the path `search`, in order."""
    for directory in search.split(os.pathsep):
        path = os.path.join(directory, program)
        if directory and os.path.isfile(path) and os.access(path, os.X_OK):
            yield path


def _stamp(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


class Probe:
    """Probe the host, and cache the results in a file.

    Args:
        cache: The file.
        environment: In which the user's script will find its interpreter.
        hook: Directory of the hook that interpreters are to prove; empty: nothing is proven.
    """

    def __init__(self, cache: str, environment: Dict[str, str], hook: str = "") -> None:
        self._hook = hook
        sources = read_source("sitecustomize") + read_source("probe_interpreter")
        self._checksum = zlib.crc32(sources.encode()) if hook else 0
        self._cache = cache
        self._environment = environment
        self._values: Dict[str, Any] = read_json(cache) or {}
        self._changed = False
        self.no_gpus_reason = ""  # why the last look found no GPU

    def recall(self, name: str, key: Any) -> Any:
        """Return the cached result of `name`, or None if there is none for this `key`."""
        cached = self._values.get(name)
        return cached["found"] if cached and cached["key"] == key else None

    def keep(self, name: str, key: Any, value: Any) -> None:
        """Cache a result with the `key` that changes when it may; both are plain JSON."""
        self._values[name] = {"key": key, "found": value}
        self._changed = True

    def forget(self, name: str) -> None:
        """Discard a cached result."""
        self._changed = self._values.pop(name, None) is not None or self._changed

    def stamps(self, python: str) -> Dict[str, int]:
        """Return values that change when a package is installed for `python`, which `interpreter` has probed."""
        cached = self._values.get("interpreters", {}).get(self._key(python))
        return dict(cached["stamps"]) if cached else {}

    def save(self) -> None:
        """Write the cache; a full disk only makes the next probe slower."""
        if self._changed:
            try:
                write_atomic(self._cache, json.dumps(self._values).encode())
            except OSError:
                return
            self._changed = False

    def interpreter(self, requested: str) -> Interpreter:
        """Return the requested interpreter; if empty, the first python3 with TensorFlow, or else the first python3.

        Raises:
            RefusedError: there is none, or it does not run.
            OSError: the hook cannot be written.
        """
        search = self._environment.get("PATH", os.defpath)
        if requested:
            path = os.path.expanduser(requested)
            paths = [path] if "/" in path else list(find_executables(path, search))[:1]
            reason = f"the interpreter {requested} does not exist on this host"
        else:
            paths = list(find_executables("python3", search))
            reason = f"python3 is not on the PATH of this host ({search})"
        if self._hook:
            install_hook(self._hook)
        usable: List[Interpreter] = []
        for path in paths:
            interpreter = self._probe_interpreter(path)
            if interpreter and (requested or "tensorflow" in interpreter.versions):
                return interpreter
            if interpreter:
                usable.append(interpreter)
            elif requested:
                reason = f"{requested} on this host does not run as a Python interpreter"
        if not usable:
            raise RefusedError(Refusal.PYTHON, reason, "install Python on the host, or name its interpreter")
        return usable[0]

    def _probe_interpreter(self, path: str) -> Optional[Interpreter]:
        key = self._key(path)
        cached = self._values.setdefault("interpreters", {}).get(key)
        if cached and self._is_current(cached):
            return _interpreter(path, cached)
        environment = proof_environment(self._hook, self._environment) if self._hook else self._environment
        answer = _query_interpreter(path, "probe_interpreter", [], environment)
        try:
            entry: Dict[str, Any] = {"versions": dict(answer["versions"])}
            watched_paths = [path, os.path.realpath(path), *answer["directories"]]
        except (ValueError, LookupError, TypeError):
            return None
        entry.update({name: answer.get(name, "") for name in ("pin", "base")})
        entry["hooked"] = self._hook != "" and answer.get("hook") == PROVEN
        entry["asked"] = self._checksum
        entry["stamps"] = {path: _stamp(path) for path in watched_paths}
        self._values["interpreters"][key] = entry
        self._changed = True
        return _interpreter(path, entry) if entry["versions"] else None

    def missing_modules(self, python: str, names: Sequence[str], directories: Sequence[str] = ()) -> List[str]:
        """Return the top-level modules of `names` that `python` cannot find; none if it does not answer.

        Nothing is executed. The result is cached until a package is installed or removed, unless `directories` are
        given.

        Args:
            python: The interpreter.
            names: Without dots.
            directories: Absolute; searched after its own.
        """
        name, key = f"modules of {python}", [self.stamps(python), sorted(names)]
        missing = self.recall(name, key) if names and not directories else None
        if not names or missing is not None:
            return [str(module) for module in missing or ()]
        argument = json.dumps([sorted(names), list(directories)])
        missing = _query_interpreter(python, "find_modules", [argument], self._environment)
        if missing is not None and not directories:
            self.keep(name, key, missing)
        return [str(module) for module in missing or ()]

    def _key(self, path: str) -> str:
        return "\n".join([path] + [self._environment.get(name, "") for name in _PROBE_VARIABLES])

    def _is_current(self, cached: Dict[str, Any]) -> bool:
        is_same = all(_stamp(path) == stamp for path, stamp in cached["stamps"].items())
        return is_same and self._checksum in (0, cached.get("asked"))

    def gpus(self) -> List[Gpu]:
        """Return the GPUs that nvidia-smi lists; none if it is missing or does not answer."""
        program = next(find_executables("nvidia-smi", self._environment.get("PATH", os.defpath)), "")
        if not program:
            self.no_gpus_reason = "nvidia-smi is not installed"
            return []
        key = [program, _stamp(program), boot_id()]
        cached = self.recall("gpus", key)
        if cached:
            return [Gpu(*values) for values in cached]
        code, output = run_program([program, *_GPU_QUERY], self._environment, GPU_DEADLINE_S, merge=True)
        gpus = parse_gpus(output) if code == 0 else []
        self.no_gpus_reason = " ".join(output.split())[:_WORDS]
        if gpus:
            self.keep("gpus", key, [list(values) for values in gpus])
        return gpus


def _interpreter(path: str, entry: Dict[str, Any]) -> Interpreter:
    """Return an interpreter from its entry in the cache, which an older agent may have written."""
    stamps = entry["stamps"].items()
    return Interpreter(
        path,
        dict(entry["versions"]),
        entry.get("hooked", False),
        entry.get("pin", ""),
        entry.get("base", ""),
        tuple(
            directory for directory, stamp in stamps if stamp and os.path.basename(directory) in _PACKAGE_DIRECTORIES
        ),
    )


def list_packages(python: str, environment: Dict[str, str]) -> List[str]:
    """Return the packages that an interpreter finds, as ``NAME==VERSION``; empty if it does not answer.

    Args:
        python: The interpreter.
        environment: In which it runs.
    """
    packages = _query_interpreter(python, "list_packages", [], environment) if python else None
    return [str(package) for package in packages or ()]


def _query_interpreter(python: str, script: str, arguments: Sequence[str], environment: Dict[str, str]) -> Any:
    """Run a module of train.agent.injected; return the JSON value in its last line, or None if the module failed.

    Args:
        python: The interpreter.
        script: Name of the module.
        arguments: Of the module.
        environment: In which it runs.
    """
    command = [python, "-c", read_source(script), *arguments]
    code, printed = run_program(command, environment, PROBE_DEADLINE_S)
    try:
        return json.loads(printed.rstrip("\n").rpartition("\n")[2]) if code == 0 else None
    except ValueError:
        return None


def run_program(
    command: Sequence[str], environment: Dict[str, str], deadline_s: float, *, merge: bool = False
) -> Tuple[int, str]:
    """Run a program; return its exit code and output, or -1 and the reason if it could not run to its end.

    Args:
        command: The program.
        environment: All of its environment.
        deadline_s: How long it may take.
        merge: Return its standard error with its output; otherwise it is discarded.
    """
    import subprocess

    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merge else subprocess.DEVNULL,
            env=environment,
            cwd="/",
            timeout=deadline_s,
            check=False,
        )
    except OSError as error:
        return -1, f"{command[0]} cannot be run: {error.strerror}"
    except subprocess.TimeoutExpired:
        return -1, f"{command[0]} did not end within {deadline_s:.0f} s"
    return done.returncode, done.stdout.decode("utf-8", "replace")


def parse_gpus(text: str) -> List[Gpu]:
    """Parse ``nvidia-smi --query-gpu=index,name,memory.total,driver_version --format=csv,noheader,nounits``."""
    gpus = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) >= 4 and fields[0].isdigit():
            memory = int(fields[-2]) if fields[-2].isdigit() else 0
            gpus.append(Gpu(int(fields[0]), ", ".join(fields[1:-2]), memory, fields[-1]))
    return gpus


def keras_backend(session: Mapping[str, str]) -> str:
    """Return the backend of Keras 3 that a host's environment or keras.json sets; empty if neither does.

    Source: keras/src/backend/config.py of Keras 3.
    """
    given = session.get("KERAS_BACKEND")
    if given:
        return given
    home = session.get("KERAS_HOME") or os.path.join(session.get("HOME") or os.path.expanduser("~"), ".keras")
    return str((read_json(os.path.join(home, "keras.json")) or {}).get("backend", ""))


def memory_total() -> int:
    """Return the memory of this host in bytes; 0 if unknown."""
    for line in read_text("/proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return 0


def login_environment() -> Dict[str, str]:
    """Return the environment of this session, without variables of its SSH connection."""
    return {name: value for name, value in os.environ.items() if not name.startswith("SSH_")}
