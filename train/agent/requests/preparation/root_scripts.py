"""Wait for the scripts that root runs on this host before packages are installed."""

from __future__ import annotations

import os
import time
from typing import Dict, Optional, Tuple

from train.agent.files.disk import read_text
from train.agent.host.processes import read_stat
from train.agent.host.runner import Steps
from train.agent.protocol.errors import RefusedError
from train.agent.protocol.records import Refusal

# Written by the startup script of the provider, provision/gce/api/startup.sh.
RESULTS = ("/run/fleet/scripts", "/var/lib/fleet/scripts")
AGAIN = "/run/fleet/again"
DEADLINE_S = 3600.0
BEGIN_S = 180.0
BEGIN_LEAST_S = 10.0
_LOOK_S = 0.2
_TAIL = 4096
_LINES = 10


def await_root_scripts(scripts: Dict[str, str], again: bool, steps: Steps) -> None:
    """Return when all scripts have ended with exit code 0.

    Args:
        scripts: SHA-256 of each script, by the option that gives it.
        again: Let a script run again that failed before this request.
        steps: Reports the progress.

    Raises:
        RefusedError: a script failed, or does not end.
        ClientGoneError: the client is gone.
    """
    if scripts:
        _await_begin(steps)
    for option, digest in scripts.items():
        if again and _find_result(digest)[0] not in (None, 0):
            _request_again(digest)
        _await(option, digest, steps)


def _await_begin(steps: Steps) -> None:
    """Return when the startup script runs, which creates the directory `AGAIN`.

    Raises:
        RefusedError: it does not run although the host has been up for some time.
        ClientGoneError: the client is gone.
    """
    began = time.monotonic()
    while not os.path.isdir(AGAIN):
        if time.monotonic() > began + BEGIN_LEAST_S and _up_s() > BEGIN_S:
            raise RefusedError(
                Refusal.SETUP,
                "the startup script of this host does not run, or is of an older version",
                "select an image that runs startup scripts, or run it: sudo google_metadata_script_runner startup",
                next_step="fleet up",
            )
        steps.report_step("waiting for the startup script of the host")
        steps.pause(_LOOK_S)


def _up_s() -> float:
    """Return the time since the first process of this host began, in seconds; 0 if unknown."""
    first, uptime = read_stat(1), read_text("/proc/uptime").split()
    return float(uptime[0]) - first.started / os.sysconf("SC_CLK_TCK") if first and uptime else 0.0


def _await(option: str, digest: str, steps: Steps) -> None:
    end = time.monotonic() + DEADLINE_S
    while True:
        code, log = _find_result(digest)
        if code is not None and not os.path.exists(os.path.join(AGAIN, digest)):
            break
        if time.monotonic() > end:
            raise RefusedError(
                Refusal.SETUP,
                f"the script of {option} did not end within {DEADLINE_S / 60:.0f} min on this host",
                cause=_last_lines(log) or "it did not begin: the startup script of the instance may have failed",
            )
        lines = _last_lines(log).split("\n")
        steps.report_step(f"running the script of {option} as root", lines[-1])
        steps.pause(_LOOK_S)
    if code:
        raise RefusedError(
            Refusal.SETUP,
            f"the script of {option} failed with exit code {code} on this host",
            "correct it; fleet up runs it again",
            cause=_last_lines(log),
        )


def _find_result(digest: str) -> Tuple[Optional[int], str]:
    """Return the exit code of a script, None while it has none, and the path of its output."""
    log = ""
    for directory in RESULTS:
        path = os.path.join(directory, digest)
        if os.path.exists(f"{path}.log"):
            log = f"{path}.log"
        try:
            with open(path, encoding="ascii") as file:
                return int(file.read()), log
        except (FileNotFoundError, ValueError):
            continue
    return None, log


def _request_again(digest: str) -> None:
    with open(os.path.join(AGAIN, digest), "w", encoding="ascii"):
        pass


def _last_lines(path: str) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.path.getsize(path) - _TAIL))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.strip().split("\n")[-_LINES:])
