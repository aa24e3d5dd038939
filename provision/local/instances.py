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
from provision.names import index_of

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
        address: Loopback address that its sshd listens on; empty until it answers.
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
        path = self._path(fleet, name)
        try:
            written = self._written(fleet, name, path.read_text(encoding="utf-8", errors="replace"))
        except OSError:
            written = None
        if written is not None:
            return written
        return self._recovered(fleet, name, processes.listeners(self.root) if listening is None else listening)

    def _recovered(self, fleet: str, name: str, listening: Listening) -> Record | None:
        directory = self.directory(fleet, name)
        pid, running = listening.get(directory, (0, ""))
        if not (running or os.path.lexists(directory) or os.path.lexists(self._path(fleet, name))):
            return None
        logs = sorted(directory.glob(processes.log_name("*")), key=lambda log: log.stat().st_mtime)
        logged = logs[-1].stem.removeprefix("sshd-") if logs else ""
        address, port = _listen_address(directory / "sshd_config")
        created_at = directory.stat().st_mtime if directory.exists() else 0.0
        return Record(fleet, name, running or logged, created_at, sys.executable, address, port, pid)

    @staticmethod
    def _written(fleet: str, name: str, text: str) -> Record | None:
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
                deleting=fields.get("deleting") is True,
            )
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return None

    def all(self, fleet: str | None) -> list[Record]:
        """Return the records of `fleet`, or of every fleet, ordered by fleet and index."""
        listening = processes.listeners(self.root)
        directories = [path for path in self.root.glob("*-worker-*") if path.is_dir()]
        names = {path.name for path in (*directories, *listening)} | {path.stem for path in self.root.glob("*.json")}
        records = []
        for owner, _, index in (name.rpartition("-worker-") for name in names):
            if owner and index.isascii() and index.isdecimal() and fleet in (None, owner):
                record = self.read(owner, f"worker-{index}", listening)
                if record is not None:
                    records.append(record)
        return sorted(records, key=lambda record: (record.fleet, index_of(record.name)))

    def forget(self, fleet: str, name: str) -> None:
        """Delete the record of an instance, its last file."""
        path = self._path(fleet, name)
        if path.is_dir():
            shutil.rmtree(path)
        delete_record(path)

    def forget_unfinished(self, fleet: str) -> None:
        """Delete unfinished record files of instances that have no record."""
        for path in self.root.glob(f"{fleet}-worker-*.json.*"):
            record, _, _ = path.name.rpartition(".")
            if record.removeprefix(f"{fleet}-worker-").removesuffix(".json").isdecimal():
                path.unlink(missing_ok=True)

    def _path(self, fleet: str, name: str) -> Path:
        return self.root / f"{fleet}-{name}.json"


def _listen_address(config: Path) -> tuple[str, int]:
    """Return the address and the port of an sshd_config; empty and 0 if it has none."""
    try:
        match = _LISTEN_ADDRESS.search(config.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return "", 0
    return (match[1], int(match[2])) if match else ("", 0)
