"""Inventory of a host: interpreters with their versions, GPUs, and memory.

Each probe costs a process, so results are cached with a key that changes when they may.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from typing import Any, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

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
    stamps: Dict[str, int] = {}  # by path; they change when a package is installed

    @property
    def package_directories(self) -> Tuple[str, ...]:
        """Return the directories in which it finds packages, in order."""
        paths = (path for path, stamp in self.stamps.items() if stamp)
        return tuple(path for path in paths if os.path.basename(path) in _PACKAGE_DIRECTORIES)


def find_executables(program: str, search: str) -> Iterator[str]:
    """Yield every executable file called `program` on the path `search`, in order."""
    for directory in search.split(os.pathsep):
        path = os.path.join(directory, program)
        if directory and os.path.isfile(path) and os.access(path, os.X_OK):
            yield path


def _stamps(paths: Iterable[str]) -> Dict[str, int]:
    """Return the times at which files and directories were changed; 0: missing."""
    stamps = dict.fromkeys(paths, 0)
    for path in stamps:
        with contextlib.suppress(OSError):
            stamps[path] = os.stat(path).st_mtime_ns
    return stamps


class Probe:
    """Probe the host, and cache the results in a file.

    Args:
        cache: The file.
        environment: In which the user's script will find its interpreter.
        hook: Directory of the hook that interpreters are to prove.
    """

    def __init__(self, cache: str, environment: Dict[str, str], hook: str) -> None:
        self._hook = hook
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
        program = os.path.expanduser(requested or "python3")
        paths = [program] if "/" in program else list(find_executables(program, search))
        install_hook(self._hook)
        usable: Optional[Interpreter] = None
        for interpreter in filter(None, map(self._probe_interpreter, paths[:1] if requested else paths)):
            if requested or "tensorflow" in interpreter.versions:
                return interpreter
            usable = usable or interpreter
        if usable is None:
            reason = f"python3 is not on the PATH of this host ({search})"
            if requested:
                problem = "does not run as a Python interpreter" if paths else "does not exist"
                reason = f"{requested} on this host {problem}"
            raise RefusedError(Refusal.PYTHON, reason, "install Python on the host, or name its interpreter")
        return usable

    def _probe_interpreter(self, path: str) -> Optional[Interpreter]:
        name = "\n".join([f"interpreter {path}", *(self._environment.get(name, "") for name in _PROBE_VARIABLES)])
        checksum = zlib.crc32((read_source("sitecustomize") + read_source("probe")).encode())
        stamps = self._values.get(name, {"key": [0, {}]})["key"][1]
        cached = self.recall(name, [checksum, _stamps(stamps)])
        if cached:
            return Interpreter(path, **cached, stamps=stamps)
        answer = _query_interpreter(path, ["versions"], proof_environment(self._hook, self._environment))
        try:
            stamps = _stamps([path, os.path.realpath(path), *answer["directories"]])
            values = {"versions": answer["versions"], **{name: answer.get(name, "") for name in ("pin", "base")}}
        except (LookupError, TypeError):
            return None
        values["runs_hook"] = answer.get("hook") == PROVEN
        self.keep(name, [checksum, stamps], values)
        return Interpreter(path, **values, stamps=stamps)

    def missing_modules(
        self, interpreter: Interpreter, names: Sequence[str], directories: Sequence[str] = ()
    ) -> List[str]:
        """Return the top-level modules of `names` that an interpreter cannot find; none if it does not answer.

        Nothing is executed. The result is cached until a package is installed or removed, unless `directories` are
        given.

        Args:
            interpreter: Was probed.
            names: Without dots.
            directories: Absolute; searched after its own.
        """
        name, key = f"modules of {interpreter.path}", [interpreter.stamps, sorted(names)]
        missing = self.recall(name, key) if names and not directories else None
        if names and missing is None:
            argument = json.dumps([sorted(names), list(directories)])
            missing = _query_interpreter(interpreter.path, ["missing", argument], self._environment)
            if missing is not None and not directories:
                self.keep(name, key, missing)
        return [str(module) for module in missing or ()]

    def gpus(self) -> List[Gpu]:
        """Return the GPUs that nvidia-smi lists; none if it is missing or does not answer."""
        program = next(find_executables("nvidia-smi", self._environment.get("PATH", os.defpath)), "")
        if not program:
            self.no_gpus_reason = "nvidia-smi is not installed"
            return []
        key = [_stamps([program]), boot_id()]
        cached = self.recall("gpus", key)
        if cached:
            return [Gpu(*values) for values in cached]
        code, output = run_program([program, *_GPU_QUERY], self._environment, GPU_DEADLINE_S, merge=True)
        gpus = parse_gpus(output) if code == 0 else []
        self.no_gpus_reason = " ".join(output.split())[:_WORDS]
        if gpus:
            self.keep("gpus", key, [list(values) for values in gpus])
        return gpus


def list_packages(python: str, environment: Dict[str, str]) -> List[str]:
    """Return the packages that an interpreter finds, as ``NAME==VERSION``; empty if it does not answer.

    Args:
        python: The interpreter.
        environment: In which it runs.
    """
    packages = _query_interpreter(python, ["packages"], environment) if python else None
    return [str(package) for package in packages or ()]


def _query_interpreter(python: str, arguments: Sequence[str], environment: Dict[str, str]) -> Any:
    """Run train.agent.injected.probe; return the JSON value in its last line, or None if it failed.

    Args:
        python: The interpreter.
        arguments: The question, and its argument.
        environment: In which it runs.
    """
    command = [python, "-c", read_source("probe"), *arguments]
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
