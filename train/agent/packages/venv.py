"""Virtual environments of this host: one per content, created once, under a lock, and atomically.

They cannot be moved (https://docs.python.org/3/library/venv.html), so each is created in its final place, and is
complete once its last file exists.

An overlay environment finds the packages of a base interpreter; only requirements that these do not satisfy are
installed. Python's own ``--system-site-packages`` would show the packages of the interpreter that the base was
created with, not those of the base itself. So its directories are listed in a .pth file
(https://docs.python.org/3/library/site.html), which pip and Python both respect.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import time
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from train.agent.files.disk import (
    DISK_RESERVE,
    free_space,
    make_directory,
    read_json,
    read_text,
    readable_size,
    remove_file,
    remove_tree,
    write_atomic,
)
from train.agent.files.journal import read_job, read_result
from train.agent.files.paths import HostPaths, VenvPaths
from train.agent.host.jobs import newest_tasks
from train.agent.host.runner import OverdueError, Steps, run
from train.agent.packages.pip import INSTALLING, Reading, trouble
from train.agent.packages.pip_wheel import find_wheel, unpack_wheel
from train.agent.protocol.errors import RefusedError
from train.agent.protocol.records import Refusal

KEPT = 3
UNUSED_S = 30 * 86400.0
OLDEST_PYTHON = (3, 9)
_FORMAT = "1"  # of what is in such a directory
_VENV_DEADLINE_S = 180.0
_PIP_DEADLINE_S = 900.0  # without a line, a byte or a package
_LOCK_DEADLINE_S = 1800.0
_LOCK_AGAIN_S = 0.2
# What is there of a Python and a host must not get into the new environment.
_FOREIGN = ("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "VIRTUAL_ENV", "PIP_TARGET", "PIP_PREFIX", "PIP_QUIET")
_NO_VENV = re.compile(r"No module named '?venv")
_NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(\[[^\]]*\])?")
_GIB = 1 << 30
# Of packages that take much: installed, and what was downloaded for them beside. All others fit into the rest.
_LARGE = {
    "tensorflow[and-cuda]": 10 * _GIB,
    "tensorflow": 3 * _GIB,
    "tensorflow-cpu": 2 * _GIB,
    "tf-nightly": 3 * _GIB,
    "torch": 9 * _GIB,
}
_OTHERS = _GIB // 8


_BELOW_FILE = "below.pth"


class Base(NamedTuple):
    """The interpreter that an environment is created with."""

    path: str  # without links
    version: str  # 3.12.3
    below: Tuple[str, ...] = ()  # directories whose packages the environment finds behind its own
    owner: str = ""  # our environment that these are of; empty: of none


class Wish(NamedTuple):
    """The requested content of an environment."""

    requirements: str
    constraints: str = ""
    pins: Tuple[str, ...] = ()  # requirements that are met below

    @property
    def text(self) -> str:
        """Return all requirements."""
        return "\n".join([self.requirements.rstrip("\n"), *self.pins]) + "\n"


def wanted(requirements: str) -> List[str]:
    """Return the significant lines, sorted; lines that a backslash joins are one."""
    lines = requirements.replace("\r\n", "\n").replace("\\\n", " ").split("\n")
    kept = (re.sub(r"(^|\s)#.*", "", line).strip() for line in lines)
    return sorted(line for line in kept if line)


def name_of(wish: Wish, base: Base) -> str:
    """Return the name of the environment's directory: a hash of everything that determines its content."""
    parts = [_FORMAT, base.path, ".".join(base.version.split(".")[:2]), *wanted(wish.text)]
    if wanted(wish.constraints):
        parts += ["within", *wanted(wish.constraints)]
    if base.below:
        parts += ["on top of", *base.below]
    return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def bytes_estimated(requirements: str) -> int:
    """Return the estimated disk space of an environment; an unknown package counts as small."""
    total = _OTHERS
    for line in wanted(requirements):
        found = _NAME.match(line)
        if found:
            name = re.sub(r"[-_.]+", "-", found[1]).lower()
            extras = (found[2] or "").replace(" ", "").lower()
            total += _LARGE.get(name + extras, _LARGE.get(name, 0))
    return total


def superfluous(complete: Sequence[Tuple[float, VenvPaths]], now: float) -> List[VenvPaths]:
    """Return the environments to remove before a new one is created, of the complete and unused ones.

    Args:
        complete: Each with the time of its last use, in seconds since the epoch.
        now: Seconds since the epoch.
    """
    newest_first = sorted(complete, reverse=True)
    kept = {paths for at, paths in newest_first[: KEPT - 1] if now - at < UNUSED_S}
    return [paths for _, paths in newest_first if paths not in kept]


class Venvs:
    """The virtual environments of one host.

    Args:
        host: Paths of the fleet on this host.
        session: Environment of the login.
        steps: Told what is being done.
    """

    def __init__(self, host: HostPaths, session: Dict[str, str], steps: Steps) -> None:
        self._host = host
        self._session = {name: value for name, value in session.items() if name not in _FOREIGN}
        self._steps = steps

    def need(self, wish: Wish, base: Base) -> Tuple[str, bool]:
        """Return the interpreter of the requested environment, and whether it was created now.

        Raises:
            RefusedError: they cannot be installed; nothing is left of them.
            ClientGoneError: the client disconnected; likewise.
            OSError: probably because the disk is full; likewise.
        """
        paths = self._host.venv(name_of(wish, base))
        if base.owner:
            _use(VenvPaths(base.owner))
        if _use(paths):
            return paths.python, False
        make_directory(self._host.venvs)
        with self._locked():
            if _use(paths):
                return paths.python, False
            self._prune(base)
            self._check_disk(wish, base)
            try:
                self._make(paths, wish, base)
            except BaseException:
                remove_tree(paths.directory)
                raise
        return paths.python, True

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        lock = os.open(self._host.venvs_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            end = time.monotonic() + _LOCK_DEADLINE_S
            while not _try_lock(lock):
                if time.monotonic() > end:
                    reason = (
                        f"packages have been installed for others on this host for {_LOCK_DEADLINE_S / 60:.0f} min"
                    )
                    raise RefusedError(Refusal.BUSY, reason, "end it, and run the command again")
                self._steps.tell("waiting", "packages are installed for others on this host")
                self._steps.pause(_LOCK_AGAIN_S)
            yield
        finally:
            os.close(lock)

    def _prune(self, base: Base) -> None:
        """Remove incomplete environments, and unused ones but the newest."""
        used = _in_use(self._host) | {base.owner} | _owners(self._host)
        complete = []
        for name in sorted(os.listdir(self._host.venvs)):
            paths = self._host.venv(name)
            if not os.path.isdir(paths.directory) or paths.directory in used:
                continue
            if os.path.exists(paths.ready):
                complete.append((os.stat(paths.ready).st_mtime, paths))
            else:
                self._remove(paths)
        for paths in superfluous(complete, time.time()):
            self._remove(paths)

    def _remove(self, paths: VenvPaths) -> None:
        self._steps.tell("removing old packages")
        remove_file(paths.ready)
        remove_tree(paths.directory)

    def _check_disk(self, wish: Wish, base: Base) -> None:
        free, total = free_space(self._host.venvs)
        # On top of another the large ones are there already, most likely.
        needed = bytes_estimated("" if base.below else wish.requirements) + DISK_RESERVE
        if free < needed:
            raise RefusedError(
                Refusal.DISK,
                f"no space left on this host: {self._host.venvs} has {readable_size(free)} free of "
                f"{readable_size(total)}, and the packages need about {readable_size(needed)}",
                "free space on the host, or make its disk larger",
            )

    def _make(self, paths: VenvPaths, wish: Wish, base: Base) -> None:
        began = time.monotonic()
        self._steps.tell("making the environment", f"Python {base.version}")
        remove_tree(paths.directory)
        make_directory(paths.directory)
        self._make_empty(paths, base)
        if base.below:
            _put_on_top(paths, base)
        make_directory(paths.scratch)
        write_atomic(paths.requirements, wish.text.encode("utf-8", "surrogateescape"))
        write_atomic(paths.constraints, wish.constraints.encode("utf-8", "surrogateescape"))
        self._install(paths)
        remove_tree(paths.scratch)
        seconds = round(time.monotonic() - began, 1)
        told = {"base": base.path, "python": base.version, "owner": base.owner, "seconds": seconds}
        write_atomic(paths.ready, json.dumps(told).encode())

    def _make_empty(self, paths: VenvPaths, base: Base) -> None:
        """Create an environment that contains only pip."""
        words = self._run_to_end([base.path, "-I", "-m", "venv", "--without-pip", paths.directory])
        if words is not None:
            raise _no_environment(words, base)
        wheel = find_wheel(self._host, base.path, base.version, self._session, self._steps)
        for directory in _site_directories(paths):
            unpack_wheel(wheel, paths, directory)

    def _run_to_end(self, command: List[str]) -> Optional[str]:
        """Return None if the command succeeded, or else its output."""
        lines: List[str] = []

        def look(new: List[str]) -> bool:
            lines.extend(new)
            return False

        try:
            end = run(command, self._environment(), "/", self._steps, deadline_s=_VENV_DEADLINE_S, look=look)
        except OverdueError:
            return f"{' '.join(command[:4])} did not end within {_VENV_DEADLINE_S:.0f} s"
        return None if end.code == 0 else "\n".join(lines)

    def _install(self, paths: VenvPaths) -> None:
        watched = _Watched(paths, self._steps)
        options = ["--progress-bar", "off", "--no-input", "--disable-pip-version-check"]
        lists = ["-r", paths.requirements, "-c", paths.constraints]
        command = [paths.python, "-I", "-m", "pip", "install", *options, *lists]
        env = {**self._environment(), "TMPDIR": paths.scratch}
        try:
            end = run(command, env, paths.directory, self._steps, deadline_s=_PIP_DEADLINE_S, look=watched.look)
        except OverdueError:
            reading = watched.reading
            raise RefusedError(
                Refusal.PACKAGES,
                f"pip got no further for {_PIP_DEADLINE_S / 60:.0f} min while {reading.step}"
                + (f" ({reading.detail})" if reading.detail else ""),
                "run the command again; what was downloaded is kept",
            ) from None
        if end.code != 0:
            why = trouble(watched.reading.lines, end)
            raise RefusedError(why.kind, why.reason, why.hint, cause=why.cause, next_step=why.next_step)

    def _environment(self) -> Dict[str, str]:
        return {**self._session, "PYTHONUNBUFFERED": "1", "LC_ALL": "C.UTF-8", "NO_COLOR": "1", "PIP_USER": "0"}


class _Watched:
    """Follow pip's progress by its output and by the files that it writes."""

    def __init__(self, paths: VenvPaths, steps: Steps) -> None:
        self._paths = paths
        self._steps = steps
        self._part = 0
        self._present = _count_installed(paths)
        self.reading = Reading()
        steps.tell(self.reading.step)

    def look(self, lines: List[str]) -> bool:
        for line in lines:
            self.reading.feed(line)
        part = self._measure()
        advanced = bool(lines) or part != self._part
        self._part = part
        reading = self.reading
        self._steps.tell(reading.step, reading.detail, min(part, reading.whole), reading.whole)
        return advanced

    def _measure(self) -> int:
        if self.reading.file:
            return _downloaded(self._paths.scratch, self.reading.file)
        if self.reading.step == INSTALLING:
            return max(0, _count_installed(self._paths) - self._present)
        return 0


def _put_on_top(paths: VenvPaths, base: Base) -> None:
    lines = "".join(f"import site; site.addsitedir({directory!r})\n" for directory in base.below)
    for directory in _site_directories(paths):
        write_atomic(os.path.join(directory, _BELOW_FILE), lines.encode("utf-8", "surrogateescape"))


def _owners(host: HostPaths) -> Set[str]:
    """Return the directories of environments that overlays depend on."""
    ready = (read_json(host.venv(name).ready) for name in os.listdir(host.venvs))
    return {str(one.get("owner", "")) for one in ready if one is not None}


def _use(paths: VenvPaths) -> bool:
    """Return True if an environment is complete; update the time of its last use."""
    try:
        os.utime(paths.ready)
    except FileNotFoundError:
        return False
    return os.access(paths.python, os.X_OK) and os.path.exists(paths.ready)


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        return False
    return True


def _no_environment(printed: str, base: Base) -> RefusedError:
    if _NO_VENV.search(printed):
        return RefusedError(
            Refusal.PYTHON,
            f"{base.path} on this host has no module venv",
            "use an image or an interpreter with the whole standard library",
            cause="its standard library is not installed completely",
        )
    lines = [line.strip() for line in printed.split("\n") if line.strip()]
    return RefusedError(
        Refusal.PYTHON,
        f"{base.path} on this host fails to make a virtual environment",
        "use another image or interpreter",
        cause=lines[-1] if lines else "it printed nothing",
    )


def _in_use(host: HostPaths) -> Set[str]:
    """Return the directories of environments in which a process runs, or whose job has not ended."""
    pythons = [_first_word(name) for name in os.listdir("/proc") if name.isdigit()]
    for paths in (paths for slot in host.slots() for paths in newest_tasks(slot, 1 << 30)):
        job = read_job(paths)
        if job is not None and read_result(paths) is None:
            pythons += [str(word) for word in (*job.get("command", [])[:1], job.get("python", ""))]
    directories = (os.path.dirname(os.path.dirname(python)) for python in pythons)
    return {directory for directory in directories if os.path.dirname(directory) == host.venvs}


def _first_word(pid: str) -> str:
    return read_text(f"/proc/{pid}/cmdline").partition("\0")[0]


def _downloaded(scratch: str, name: str) -> int:
    """Return the size of the file that pip is downloading, in a directory that pip has created for it."""
    most = 0
    for directory in _listed(scratch):
        with contextlib.suppress(OSError):
            most = max(most, os.stat(os.path.join(scratch, directory, name)).st_size)
    return most


def _count_installed(paths: VenvPaths) -> int:
    return sum(name.endswith(".dist-info") for directory in _site_directories(paths) for name in _listed(directory))


def _site_directories(paths: VenvPaths) -> List[str]:
    above = os.path.join(paths.directory, "lib")
    return [os.path.join(above, python, "site-packages") for python in _listed(above)]


def _listed(directory: str) -> List[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []
