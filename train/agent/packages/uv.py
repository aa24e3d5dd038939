"""Install packages with uv, in a third of pip's time, on hosts that can get it from their package index.

uv does not read the settings of pip. A host that has others than the index gets its packages from pip, and from uv
only pip itself.
"""

from __future__ import annotations

import os
import sys
from typing import Callable, Dict, List

from train.agent.files import disk
from train.agent.files.paths import HostPaths, VenvPaths
from train.agent.host.runner import OverdueError, Steps, run, run_quietly
from train.agent.injected import read_source
from train.agent.protocol.records import PipSource

_PUBLIC_INDEX = "https://pypi.org/simple"
_FETCH_DEADLINE_S = 300.0
_DEADLINE_S = 900.0  # without a line, or a change of the free disk space
_CONFIGURATIONS = ("/etc/pip.conf", "/etc/xdg/pip/pip.conf", "~/.config/pip/pip.conf", "~/.pip/pip.conf")
# Variables of pip that uv replaces, or that change nothing about the packages.
_REPLACED = {
    *("PIP_INDEX_URL", "PIP_CERT", "PIP_DEFAULT_TIMEOUT", "PIP_RETRIES", "PIP_NO_INPUT", "PIP_USER", "PIP_PROXY"),
    *("PIP_DISABLE_PIP_VERSION_CHECK", "PIP_PROGRESS_BAR", "PIP_ROOT_USER_ACTION", "PIP_REQUIRE_VIRTUALENV"),
    *("PIP_CACHE_DIR", "PIP_TRUSTED_HOST", "PIP_NO_CACHE_DIR", "PIP_BREAK_SYSTEM_PACKAGES", "PIP_CONFIG_FILE"),
}


class InstallationWatch:
    """Report the progress of uv or pip: its last line; it advances if it prints one, or writes to the disk.

    Args:
        paths: Paths of the environment.
        steps: Reports the progress.
        on_line: Called with each line.
    """

    def __init__(self, paths: VenvPaths, steps: Steps, on_line: Callable[[str], None] = lambda _: None) -> None:
        self._paths = paths
        self._steps = steps
        self._on_line = on_line
        self._free = 0
        self._shown = ""

    def on_lines(self, lines: List[str]) -> bool:
        """Handle the next lines; return whether the program advances."""
        for line in lines:
            self._on_line(line)
            self._shown = line.strip() or self._shown
        before, (self._free, _) = self._free, disk.free_space(self._paths.directory)
        self._steps.report_step("installing packages", self._shown)
        return bool(lines) or self._free != before


class Uv:
    """uv on this host.

    Args:
        host: Paths of the fleet.
        environment: Variables for pip, with the index, the proxy, and the file of logins.
        source: The index of the fleet.
        steps: Reports the progress.

    Attributes:
        replaces_pip: The host has no settings of pip that uv does not read.
        obstacle: Why it could not be downloaded.
    """

    def __init__(self, host: HostPaths, environment: Dict[str, str], source: PipSource, steps: Steps) -> None:
        self._path = host.uv
        self._steps = steps
        self._index = source.index_url or environment.get("PIP_INDEX_URL") or _PUBLIC_INDEX
        configuration = environment.get("PIP_CONFIG_FILE")
        files = [os.path.expanduser(path) for path in ([configuration] if configuration else _CONFIGURATIONS)]
        others = {name for name, value in environment.items() if name.startswith("PIP_") and value} - _REPLACED
        self.replaces_pip = not others and not any(os.path.isfile(path) for path in files)
        self.obstacle = ""
        self._environment = {name: value for name, value in environment.items() if not name.startswith("PIP_")}
        self._environment.update(
            UV_DEFAULT_INDEX=self._index,
            UV_NO_CONFIG="1",
            UV_PYTHON_DOWNLOADS="never",
            UV_COMPILE_BYTECODE_TIMEOUT="0",
        )
        if environment.get("PIP_CERT"):
            self._environment["SSL_CERT_FILE"] = environment["PIP_CERT"]

    def create(self, paths: VenvPaths, python: str) -> bool:
        """Create an environment without packages; return whether it worked."""
        if not self._fetch():
            return False
        command = [self._path, "venv", "--quiet", "--allow-existing", "--python", python, paths.directory]
        end, _ = run_quietly(command, self._environment, self._steps, _DEADLINE_S)
        return end is not None and end.code == 0

    def install(self, paths: VenvPaths, *arguments: str) -> bool:
        """Install packages into an environment; return whether it worked: if not, pip finds out why."""
        if not self._fetch():
            return False
        command = [self._path, "pip", "install", "--python", paths.python, *arguments]
        cache = os.path.join(paths.scratch, "uv")  # its files become those of the environment
        watch = InstallationWatch(paths, self._steps)
        environment = {**self._environment, "UV_CACHE_DIR": cache, "TMPDIR": paths.scratch}
        try:
            end = run(
                command, environment, paths.directory, self._steps, deadline_s=_DEADLINE_S, on_lines=watch.on_lines
            )
        except OverdueError:
            return False
        return end.code == 0

    def _fetch(self) -> bool:
        """Return whether this host has uv; download it if it is missing."""
        if not os.access(self._path, os.X_OK) and not self.obstacle:
            self._steps.report_step("receiving uv")
            disk.make_directory(os.path.dirname(self._path))
            command = [sys.executable, "-I", "-c", read_source("fetch_uv"), self._index, self._path]
            end, lines = run_quietly(command, self._environment, self._steps, _FETCH_DEADLINE_S)
            if end is None or end.code:
                self.obstacle = next((line for line in reversed(lines) if line.strip()), "its download does not end")
        return os.access(self._path, os.X_OK)
