"""Records of the local instances, on disk.

An instance has a record, ``ROOT/FLEET-NAME.json``, and a directory next to it, ``ROOT/FLEET-NAME/``. The record is
written before the directory and deleted after it, so that no crash leaves a directory or a process without a record.
If a record is still lost or damaged, it is rebuilt from the directory and the arguments of the running sshd.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from provision.directories import delete_record, write_record
from provision.local import processes
from provision.names import index_of, is_instance_name
from provision.registry import convert_fields

Listening = Mapping[Path, tuple[int, str]]
_LISTEN_ADDRESS = re.compile(r"^ListenAddress (\S+):(\d{1,5})$", re.MULTILINE)


@dataclass(frozen=True)
class Record:
    """A local instance.

    Attributes:
        fleet: Name of its fleet.
        name: Name within the fleet, ``worker-0``.
        id: Unique for every creation; empty if it is unknown.
        created_at: Seconds since the epoch.
        python: Interpreter for the user's script.
        address: Loopback address that its sshd listens on; empty: unknown.
        port: TCP port that its sshd listens on; 0 until it answers.
        pid: Process of its sshd; 0 until it answers.
        deleting: Whether its deletion has begun; what is left of its directory is of no use.
    """

    fleet: str
    name: str
    id: str
    created_at: float = 0.0
    python: str = ""
    address: str = ""
    port: int = 0
    pid: int = 0
    deleting: bool = False


class Records:
    """The records in the directory `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def directory(self, fleet: str, name: str) -> Path:
        """Return the directory of all files of an instance."""
        return self.root / f"{fleet}-{name}"

    def write(self, record: Record) -> None:
        """Write `record`, atomically, over the existing one."""
        write_record(self._path(record.fleet, record.name), asdict(record))

    def read(self, fleet: str, name: str, listening: Listening | None = None) -> Record | None:
        """Return the record of an instance, rebuilt from its directory or sshd if the file is lost or damaged.

        Args:
            fleet: Name of its fleet.
            name: Its name.
            listening: The running sshds, by directory; None: search for them if necessary.

        Returns:
            The record; None if nothing is left of the instance.
        """
        try:
            return Record(**convert_fields(Record, json.loads(self._path(fleet, name).read_bytes())))
        except (OSError, ValueError, TypeError, RecursionError):
            listening = processes.listeners(self.root) if listening is None else listening
            return self._recovered(fleet, name, listening)

    def _recovered(self, fleet: str, name: str, listening: Listening) -> Record | None:
        directory, path = self.directory(fleet, name), self._path(fleet, name)
        pid, running = listening.get(directory, (0, ""))
        is_left = os.path.lexists(directory) or os.path.lexists(path) or any(self.root.glob(f"{path.name}.*"))
        if not (running or is_left):
            return None
        logs = sorted(directory.glob(processes.log_name("*")), key=lambda log: log.stat().st_mtime)
        logged = logs[-1].stem.removeprefix("sshd-") if logs else ""
        address, port = _listen_address(directory / "sshd_config")
        created_at = directory.stat().st_mtime if directory.exists() else 0.0
        return Record(fleet, name, running or logged, created_at, sys.executable, address, port, pid)

    def all(self, fleet: str | None) -> list[Record]:
        """Return the records of `fleet`, or of every fleet, ordered by fleet and index."""
        listening = processes.listeners(self.root)
        paths = (*self.root.glob("*-worker-*"), *listening)  # also of unfinished records
        split = (name.rpartition("-worker-") for name in {path.name.partition(".")[0] for path in paths})
        named = [(owner, f"worker-{index}") for owner, _, index in split if fleet in (None, owner)]
        records = [self.read(owner, name, listening) for owner, name in named if owner and is_instance_name(name)]
        existing = [record for record in records if record is not None]
        return sorted(existing, key=lambda record: (record.fleet, index_of(record.name)))

    def forget(self, fleet: str, name: str) -> None:
        """Delete the record of an instance, its last file."""
        path = self._path(fleet, name)
        if path.is_dir():
            shutil.rmtree(path)
        delete_record(path)

    def _path(self, fleet: str, name: str) -> Path:
        return self.root / f"{fleet}-{name}.json"


def _listen_address(config: Path) -> tuple[str, int]:
    """Return the address and the port of an sshd_config; empty and 0 if it has none."""
    try:
        match = _LISTEN_ADDRESS.search(config.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return "", 0
    return (match[1], int(match[2])) if match else ("", 0)
