"""What is known of the local instances, on disk.

An instance has a record, ``ROOT/FLEET-NAME.json``, and a folder beside it, ``ROOT/FLEET-NAME/``. The record is
written before the folder and deleted after it, so that no crash leaves a folder or a process that no record tells.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from provision.names import index_of


@dataclass(frozen=True)
class Record:
    """A local instance.

    Attributes:
        fleet: Name of its fleet.
        name: Name within the fleet, ``worker-0``.
        id: Unique for every creation; empty where the record cannot be read.
        created_at: Seconds since the epoch.
        python: Interpreter for the user's script.
        address: Loopback address that its sshd listens on; empty until it answers.
        port: TCP port that its sshd listens on; 0 until it answers.
        pid: Process of its sshd; 0 until it answers.
    """

    fleet: str
    name: str
    id: str
    created_at: float = 0.0
    python: str = ""
    address: str = ""
    port: int = 0
    pid: int = 0


class Records:
    """The records below the folder `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, fleet: str, name: str) -> Path:
        """Folder of everything that belongs to an instance."""
        return self.root / f"{fleet}-{name}"

    def write(self, record: Record) -> None:
        """Put `record` in place of the one there, whole or not at all."""
        path = self._path(record.fleet, record.name)
        fresh = path.with_name(f"{path.name}.{record.id}")
        with fresh.open("w", encoding="utf-8") as file:
            json.dump(asdict(record), file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)

    def read(self, fleet: str, name: str) -> Record | None:
        """The record of an instance; None where there is none."""
        try:
            text = self._path(fleet, name).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return None
        try:
            fields = json.loads(text)
            return Record(
                fleet=fleet,
                name=name,
                id=str(fields["id"]),
                created_at=float(fields["created_at"]),
                python=str(fields["python"]),
                address=str(fields["address"]),
                port=int(fields["port"]),
                pid=int(fields["pid"]),
            )
        except (ValueError, TypeError, KeyError):
            return Record(fleet, name, id="")

    def all(self, fleet: str | None) -> list[Record]:
        """The records of `fleet`, or of every fleet, ordered by fleet and index."""
        found = []
        for path in self.root.glob("*.json"):
            owner, _, index = path.stem.rpartition("-worker-")
            if owner and index.isdecimal() and fleet in (None, owner):
                record = self.read(owner, f"worker-{index}")
                if record is not None:
                    found.append(record)
        return sorted(found, key=lambda record: (record.fleet, index_of(record.name)))

    def forget(self, fleet: str, name: str) -> None:
        """Delete the record of an instance, the last trace of it."""
        path = self._path(fleet, name)
        for left_by_a_crash in self.root.glob(f"{path.name}.*"):
            left_by_a_crash.unlink(missing_ok=True)
        path.unlink(missing_ok=True)

    def _path(self, fleet: str, name: str) -> Path:
        return self.root / f"{fleet}-{name}.json"
