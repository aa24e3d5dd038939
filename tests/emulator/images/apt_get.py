"""A stand-in for apt-get: it takes dpkg's lock as apt does, and lists packages that are installed in a file.

The lock is one of fcntl, as in apt. Without DPkg::Lock::Timeout, a lock that another process holds is an error. An
upgrade, or the installation of a package of NVIDIA, replaces the libraries of the driver: until the next boot, they
do not match the kernel module that is loaded.
"""

from __future__ import annotations

import fcntl
import pathlib
import re
import sys
import time

LOCK = pathlib.Path("/var/lib/dpkg/lock-frontend")
DRIVER = pathlib.Path("/run/emulator/driver")
_UPGRADES = ("upgrade", "full-upgrade", "dist-upgrade")
_TIMEOUT = re.compile(r'DPkg::Lock::Timeout "?(-?\d+)"?;')


def main(words: list[str]) -> int:
    """Install the packages in `words`, or upgrade; do nothing for other commands."""
    packages = [word for word in words if not word.startswith("-")]
    command = packages.pop(0) if packages else ""
    if command not in ("install", *_UPGRADES):
        return 0
    with LOCK.open("a") as lock:
        end = time.monotonic() + _timeout_s()
        while True:
            try:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() >= end:
                    sys.stderr.write(f"E: Could not get lock {LOCK}. It is held by process 911 (unattended-upgr)\n")
                    return 100
            time.sleep(0.1)
        with LOCK.with_name("installed").open("a") as file:
            file.writelines(f"{package}\n" for package in packages)
        if command in _UPGRADES or any("nvidia" in package for package in packages):
            DRIVER.write_text("mismatch\n")
    return 0


def _timeout_s() -> float:
    texts = [path.read_text() for path in pathlib.Path("/etc/apt/apt.conf.d").glob("*fleet")]
    return max((float(match[1]) for text in texts for match in _TIMEOUT.finditer(text)), default=0.0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
