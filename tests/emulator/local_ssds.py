"""The Local SSDs of a guest: files that appear as its devices, smaller than real ones, and mounted by loop devices.

Like those of Compute Engine, they are blank at each start of the instance, and keep their content when the guest
restarts. Images have no mdadm.
"""

from __future__ import annotations

import shutil
from pathlib import Path

SIZE_BYTES = 32 << 20
_NAME = "google-local-nvme-ssd-{}"


def prepare(directory: Path, count: int) -> None:
    """Create the disks of a guest that are missing.

    Args:
        directory: Of the guest.
        count: Number of disks.
    """
    for number in range(count):
        path = _directory(directory) / "by-id" / _NAME.format(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.touch()
            with path.open("r+b") as file:
                file.truncate(SIZE_BYTES)


def boot_lines(directory: Path) -> list[str]:
    """Return commands that let a guest see its disks in /dev/disk, and have a file system for mount points."""
    source = _directory(directory)
    if not source.exists():
        return []
    return ["mkdir -p /dev/disk", f"mount --bind {source.name} /dev/disk", "mount -t tmpfs tmpfs /mnt"]


def discard(directory: Path) -> None:
    """Discard the content of the disks of a guest."""
    shutil.rmtree(_directory(directory), ignore_errors=True)


def _directory(directory: Path) -> Path:
    return directory / "local-ssds"
