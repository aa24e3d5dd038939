"""Assignments of the hosts of each fleet, on disk: ``ROOT/FLEET.json``, replaced atomically."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from provision.directories import delete_record, make_directory, write_record


@dataclass(frozen=True)
class Assignment:
    """A host that is in a fleet.

    Attributes:
        name: Name within the fleet, ``worker-0``.
        id: Unique identifier of the host; empty if the record cannot be read.
        inventory_name: Its name in the inventory.
        target: Host argument of ssh.
        options: Other arguments of ssh.
        python: Interpreter for the user's script; empty: detected on the host.
        private_address: Address at which the other hosts reach it; empty: the host reports it.
        root: Directory of the fleet's files on the host.
        host_key: Host key, if only the user confirmed it; empty: it is in known_hosts, or not confirmed yet.
        created_at: Time at which it joined the fleet, in seconds since the epoch.
    """

    name: str
    id: str
    inventory_name: str = ""
    target: str = ""
    options: tuple[str, ...] = ()
    python: str = ""
    private_address: str = ""
    root: str = ""
    host_key: str = ""
    created_at: float = 0.0


class Assignments:
    """The assignments in the directory `root`, which is created with the first record."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def read(self, fleet: str) -> list[Assignment]:
        """Return the hosts of a fleet, in their order; a damaged file gives one record without an id."""
        try:
            content = json.loads(self._path(fleet).read_bytes())
            return [Assignment(**{**entry, "options": tuple(entry["options"])}) for entry in content["hosts"]]
        except FileNotFoundError:
            return []
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return [Assignment("worker-0", "")]

    def write(self, fleet: str, records: Sequence[Assignment]) -> None:
        """Replace the records of a fleet; delete the file if `records` is empty."""
        if not records:
            self.forget(fleet)
            return
        make_directory(self.root)
        write_record(self._path(fleet), {"hosts": [asdict(record) for record in records]})

    def forget(self, fleet: str) -> None:
        """Delete the records of a fleet; a missing file is success."""
        delete_record(self._path(fleet))

    def fleets(self) -> list[str]:
        """Return the names of all fleets that have hosts, in order."""
        return sorted(path.stem for path in self.root.glob("*.json"))

    def _path(self, fleet: str) -> Path:
        return self.root / f"{fleet}.json"
