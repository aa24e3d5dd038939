"""Virtual environments of this host: one per content, created once, under a lock, and atomically.

They cannot be moved (https://docs.python.org/3/library/venv.html), so each is created in its final place, and is
complete once its last file exists.

An overlay environment finds the packages of a base interpreter; only requirements that these do not satisfy are
installed. Python's own ``--system-site-packages`` would show the packages of the interpreter that the base was
created with, not those of the base itself. So its directories are listed in a .pth file
(https://docs.python.org/3/library/site.html), which pip and Python both respect.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from typing import Dict, Iterator, List, NamedTuple, Set, Tuple

from train.agent.files import disk
from train.agent.files.journal import read_job, read_result
from train.agent.files.paths import HostPaths, VenvPaths
from train.agent.host.facts import Interpreter
from train.agent.host.jobs import newest_tasks, open_lock, try_lock
from train.agent.host.runner import OverdueError, Steps, run, run_quietly
from train.agent.injected.probe import TENSORFLOWS
from train.agent.packages.index import hide_logins, netrc_text, pip_environment
from train.agent.packages.pip import find_cause
from train.agent.packages.uv import InstallationWatch, Uv
from train.agent.protocol.errors import RefusedError
from train.agent.protocol.records import PipSource, Refusal

KEPT = 3
OLDEST_PYTHON = (3, 9)
_FORMAT = "1"  # of what is in such a directory
_VENV_DEADLINE_S = 180.0
_PIP_DEADLINE_S = 900.0  # without a line, a byte or a package
_LOCK_DEADLINE_S = 1800.0
_LOCK_AGAIN_S = 0.2
# What is there of a Python and a host must not get into the new environment.
_REMOVED_VARIABLES = (
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONUSERBASE",
    "VIRTUAL_ENV",
    "PIP_TARGET",
    "PIP_PREFIX",
    "PIP_QUIET",
)
_VARIABLES = {"PYTHONUNBUFFERED": "1", "LC_ALL": "C.UTF-8", "NO_COLOR": "1", "PIP_USER": "0"}
_NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(\[[^\]]*\])?")
_HASHED = re.compile(r"(?:^|\s)--(?:hash|require-hashes)\b")
# Disk space of large packages, with their downloads. An installation of others begins with the least.
_GIB = 1 << 30
_LARGE_BYTES = {"tensorflow[and-cuda]": 10 * _GIB, "tensorflow": 3 * _GIB}
_LEAST_BYTES = _GIB
_BASE_FILE = "below.pth"


class Base(NamedTuple):
    """The interpreter that an environment is created with."""

    path: str  # without links
    version: str  # 3.12.3
    base_directories: Tuple[str, ...] = ()  # directories whose packages the environment finds behind its own
    owner: str = ""  # our environment that these are of; empty: of none


class EnvironmentSpec(NamedTuple):
    """The requested content of an environment."""

    requirements: str
    constraints: str = ""
    pins: Tuple[str, ...] = ()  # requirements that are met below
    index_url: str = ""  # without a login; empty: the settings of the host

    @property
    def text(self) -> str:
        """Return all requirements."""
        return "\n".join([self.requirements.rstrip("\n"), *self.pins]) + "\n"


def significant_lines(requirements: str) -> List[str]:
    """Return the significant lines, sorted; lines that a backslash joins are one."""
    lines = requirements.replace("\r\n", "\n").replace("\\\n", " ").split("\n")
    kept = (re.sub(r"(^|\s)#.*", "", line).strip() for line in lines)
    return sorted(line for line in kept if line)


def environment_name(spec: EnvironmentSpec, base: Base) -> str:
    """Return the name of the environment's directory: a hash of everything that determines its content."""
    parts = [_FORMAT, base.path, ".".join(base.version.split(".")[:2]), *significant_lines(spec.text)]
    if significant_lines(spec.constraints):
        parts += ["within", *significant_lines(spec.constraints)]
    if spec.index_url:
        parts += ["from", spec.index_url]
    if base.base_directories:
        parts += ["on top of", *base.base_directories]
    return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def split_requirement(line: str) -> Tuple[str, str]:
    """Return the package name of a requirement, normalized as on PyPI, and its extras in brackets."""
    match = _NAME.match(line)
    if match is None:
        return "", ""
    return re.sub(r"[-_.]+", "-", match[1]).lower(), (match[2] or "").replace(" ", "").lower()


def least_disk_bytes(requirements: str) -> int:
    """Return the free disk space without which an installation would fail after minutes."""
    packages = (split_requirement(line) for line in significant_lines(requirements))
    sizes = (_LARGE_BYTES.get(name + extras, _LARGE_BYTES.get(name, 0)) for name, extras in packages)
    return max([_LEAST_BYTES, *sizes])


def overlay(host: HostPaths, spec: EnvironmentSpec, interpreter: Interpreter) -> Tuple[EnvironmentSpec, Base]:
    """Return requirements and base of an environment that finds everything that the interpreter finds.

    If the requirements do not name TensorFlow, the installed one is required, too: pip then installs only versions
    that are compatible with it.
    """
    named = any(split_requirement(line)[0] in TENSORFLOWS for line in significant_lines(spec.requirements))
    # pip requires hashes for all packages or for none.
    pins = (interpreter.pin,) if interpreter.pin and not named and not _HASHED.search(spec.requirements) else ()
    directory = os.path.dirname(os.path.dirname(interpreter.path))
    owner = directory if os.path.dirname(directory) == host.venvs else ""
    base = Base(
        interpreter.base or interpreter.path, interpreter.versions["python"], interpreter.package_directories, owner
    )
    return spec._replace(pins=pins), base


class Venvs:
    """The virtual environments of one host.

    Args:
        host: Paths of the fleet on this host.
        session: Environment of the login.
        steps: Reports the progress.
        source: Index and proxy for pip.
    """

    def __init__(self, host: HostPaths, session: Dict[str, str], steps: Steps, source: PipSource) -> None:
        self._host = host
        session = {name: value for name, value in session.items() if name not in _REMOVED_VARIABLES}
        self._environment = {**session, **_VARIABLES}
        self._steps = steps
        self._source = source

    def ensure(self, spec: EnvironmentSpec, base: Base) -> Tuple[str, bool]:
        """Create the requested environment if it is missing; return its interpreter, and whether it was created now.

        Args:
            spec: Its content.
            base: Its interpreter.

        Raises:
            RefusedError: they cannot be installed; nothing is left of them.
            ClientGoneError: the client disconnected; likewise.
            OSError: probably because the disk is full; likewise.
        """
        paths = self._host.venv(environment_name(spec, base))
        if base.owner:
            _mark_used(VenvPaths(base.owner))
        if _mark_used(paths):
            return paths.python, False
        disk.make_directory(self._host.venvs)
        with self._locked():
            if _mark_used(paths):
                return paths.python, False
            self._prune(base)
            self._check_disk(spec, base)
            try:
                self._create(paths, spec, base)
            except BaseException:
                disk.remove_tree(paths.directory)
                raise
        return paths.python, True

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        lock = open_lock(self._host.venvs_lock)
        try:
            end = time.monotonic() + _LOCK_DEADLINE_S
            while not try_lock(lock):
                if time.monotonic() > end:
                    minutes = _LOCK_DEADLINE_S / 60
                    reason = f"packages have been installed for others on this host for {minutes:.0f} min"
                    raise RefusedError(Refusal.BUSY, reason, "end it, and run the command again")
                self._steps.report_step("waiting", "packages are installed for others on this host")
                self._steps.pause(_LOCK_AGAIN_S)
            yield
        finally:
            os.close(lock)

    def _prune(self, base: Base) -> None:
        """Remove incomplete environments, and unused ones but the newest."""
        all_paths = [self._host.venv(name) for name in disk.list_names(self._host.venvs)]
        all_paths = [paths for paths in all_paths if os.path.isdir(paths.directory)]
        ready = {paths: disk.read_json(paths.ready) for paths in all_paths}
        used = _in_use(self._host) | {base.owner} | {str(info.get("owner")) for info in ready.values() if info}
        unused = [paths for paths in all_paths if paths.directory not in used]
        complete = [paths for paths in unused if ready[paths] is not None]
        complete.sort(key=lambda paths: os.stat(paths.ready).st_mtime, reverse=True)
        for paths in unused:
            if paths not in complete[: KEPT - 1]:
                self._steps.report_step("removing old packages")
                disk.remove_file(paths.ready)
                disk.remove_tree(paths.directory)

    def _check_disk(self, spec: EnvironmentSpec, base: Base) -> None:
        free, total = disk.free_space(self._host.venvs)
        # An overlay has the large packages already, most likely.
        needed = disk.DISK_RESERVE + (0 if base.base_directories else least_disk_bytes(spec.requirements))
        if free < needed:
            raise RefusedError(
                Refusal.DISK,
                f"no space left on this host: {self._host.venvs} has {disk.readable_size(free)} free of "
                f"{disk.readable_size(total)}, and the packages need more than {disk.readable_size(needed)}",
                "free space on the host, or make its disk larger",
            )

    def _create(self, paths: VenvPaths, spec: EnvironmentSpec, base: Base) -> None:
        began = time.monotonic()
        self._steps.report_step("creating the environment", f"Python {base.version}")
        disk.remove_tree(paths.directory)
        disk.make_directory(paths.scratch)
        disk.write_atomic(paths.requirements, spec.text.encode("utf-8", "surrogateescape"))
        disk.write_atomic(paths.constraints, spec.constraints.encode("utf-8", "surrogateescape"))
        netrc = os.path.join(paths.scratch, "netrc")
        disk.write_atomic(netrc, netrc_text(self._source).encode())
        environment = pip_environment({**self._environment, "TMPDIR": paths.scratch}, self._source, netrc)
        self._fill(paths, base, environment)
        disk.remove_tree(paths.scratch)
        seconds = round(time.monotonic() - began, 1)
        info = {"base": base.path, "python": base.version, "owner": base.owner, "seconds": seconds}
        disk.write_atomic(paths.ready, json.dumps(info).encode())

    def _fill(self, paths: VenvPaths, base: Base, environment: Dict[str, str]) -> None:
        """Create an environment, and install its packages: with uv if it replaces pip, otherwise with pip."""
        uv = Uv(self._host, environment, self._source, self._steps)
        lists = ["-r", paths.requirements, "-c", paths.constraints]
        if base.base_directories:
            self._create_empty(paths, base, uv)
            _write_base_file(paths, base)  # uv does not see the packages below
        elif uv.replaces_pip and uv.create(paths, base.path):
            if uv.install(paths, "--compile-bytecode", *lists, "pip"):
                return
        else:
            self._create_empty(paths, base, uv)
        self._ensure_pip(paths, base, uv)
        self._run_pip(paths, lists, environment)

    def _create_empty(self, paths: VenvPaths, base: Base, uv: Uv) -> None:
        """Create an environment without packages."""
        problem = self._problem([base.path, "-I", "-m", "venv", "--without-pip", paths.directory])
        if problem and not uv.create(paths, base.path):
            raise RefusedError(
                Refusal.PYTHON,
                f"{base.path} on this host cannot create a virtual environment",
                "use an image or an interpreter with the whole standard library",
                cause=problem,
            )

    def _ensure_pip(self, paths: VenvPaths, base: Base, uv: Uv) -> None:
        """Install pip into an environment that does not find it."""
        pip, ensurepip = [["-m", "pip", "--version"], ["-m", "ensurepip", "--default-pip"]]
        for arguments in (pip, ensurepip):
            if not self._problem([paths.python, "-I", *arguments]):
                return
        if not uv.install(paths, "pip"):
            raise RefusedError(
                Refusal.PYTHON,
                f"{base.path} on this host has no pip",
                "install it (apt install python3-venv), or let the host reach a package index that has uv and pip; "
                "instances without an external address need Cloud NAT",
                cause=f"uv cannot install it: {hide_logins(uv.obstacle, self._source) or 'the index has none'}",
            )

    def _problem(self, command: List[str]) -> str:
        """Run a command; return the last line of its output if it fails, or else nothing."""
        end, lines = run_quietly(command, self._environment, self._steps, _VENV_DEADLINE_S)
        if end is None:
            return f"{' '.join(command[:4])} did not end within {_VENV_DEADLINE_S:.0f} s"
        last = next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")
        return last if end.code else ""

    def _run_pip(self, paths: VenvPaths, lists: List[str], environment: Dict[str, str]) -> None:
        options = ["--progress-bar", "off", "--no-input", "--disable-pip-version-check"]
        command = [paths.python, "-I", "-m", "pip", "install", *options, *lists]
        output: List[str] = []
        watch = InstallationWatch(paths, self._steps, lambda line: output.append(hide_logins(line, self._source)))
        directory, on_lines = paths.directory, watch.on_lines
        try:
            end = run(command, environment, directory, self._steps, deadline_s=_PIP_DEADLINE_S, on_lines=on_lines)
        except OverdueError:
            raise RefusedError(
                Refusal.INSTALLATION,
                f"pip made no progress for {_PIP_DEADLINE_S / 60:.0f} min",
                "run the command again; what was downloaded is kept",
                cause=output[-1].strip() if output else "",
            ) from None
        if end.code != 0:
            logs_in = bool(netrc_text(self._source)) or "@" in self._source.proxy
            raise RefusedError(*find_cause(output, end, logs_in=logs_in))


def _write_base_file(paths: VenvPaths, base: Base) -> None:
    """Let an environment find the packages of its base behind its own."""
    lines = "".join(f"import site; site.addsitedir({directory!r})\n" for directory in base.base_directories)
    library = os.path.join(paths.directory, "lib")
    for python in disk.list_names(library):
        path = os.path.join(library, python, "site-packages", _BASE_FILE)
        disk.write_atomic(path, lines.encode("utf-8", "surrogateescape"))


def _mark_used(paths: VenvPaths) -> bool:
    """Return True if an environment is complete; update the time of its last use."""
    try:
        os.utime(paths.ready)
    except FileNotFoundError:
        return False
    return os.access(paths.python, os.X_OK) and os.path.exists(paths.ready)


def _in_use(host: HostPaths) -> Set[str]:
    """Return the directories of environments in which a process runs, or whose job has not ended."""
    commands = (disk.read_text(f"/proc/{name}/cmdline") for name in os.listdir("/proc") if name.isdigit())
    pythons = [command.partition("\0")[0] for command in commands]
    for paths in (paths for slot in host.slots() for paths in newest_tasks(slot, 1 << 30)):
        job = read_job(paths)
        if job is not None and read_result(paths) is None:
            pythons += [str(word) for word in (*job.get("command", [])[:1], job.get("python", ""))]
    directories = (os.path.dirname(os.path.dirname(python)) for python in pythons)
    return {directory for directory in directories if os.path.dirname(directory) == host.venvs}
