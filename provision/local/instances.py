"""Records of the local instances, on disk.

An instance has a record, ``ROOT/FLEET-NAME.json``, and a directory next to it, ``ROOT/FLEET-NAME/``. The record is
written before the directory and deleted after it, so that no crash leaves a directory or a process without a record.
An instance whose record is still lost or damaged is listed by its directory, and is of no use.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from provision.directories import delete_record, write_record
from provision.local import processes
from provision.names import index_of, is_instance_name
from provision.registry import convert_fields


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

    def read(self, fleet: str, name: str) -> Record | None:
        """Return the record of an instance; None if nothing is left of it.

        If the file is lost or damaged, the record has only the id, as far as it is known.
        """
        directory, path = self.directory(fleet, name), self._path(fleet, name)
        try:
            return Record(**convert_fields(Record, json.loads(path.read_bytes())))
        except (OSError, ValueError, TypeError, RecursionError):
            logs = sorted(directory.glob(processes.log_name("*")), key=lambda log: log.stat().st_mtime)
            is_left = directory.exists() or os.path.lexists(path) or any(self.root.glob(f"{path.name}.*"))
            return Record(fleet, name, logs[-1].stem.removeprefix("sshd-") if logs else "") if is_left else None

    def all(self, fleet: str | None) -> list[Record]:
        """Return the records of `fleet`, or of every fleet, ordered by fleet and index."""
        names = {path.name.partition(".")[0] for path in self.root.glob("*-worker-*")}  # also of unfinished records
        split = (name.rpartition("-worker-") for name in names)
        named = [(owner, f"worker-{index}") for owner, _, index in split if fleet in (None, owner)]
        records = [self.read(owner, name) for owner, name in named if owner and is_instance_name(name)]
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
