"""A stand-in for unattended-upgrade: holds dpkg's lock for the time in its argument, as apt-daily-upgrade.service."""

from __future__ import annotations

import fcntl
import pathlib
import sys
import time

if __name__ == "__main__":
    unit = pathlib.Path("/run/emulator/units/apt-daily-upgrade.service")
    with pathlib.Path("/var/lib/dpkg/lock-frontend").open("a") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        unit.write_text("activating\n")
        time.sleep(float(sys.argv[1]))
        unit.unlink()
