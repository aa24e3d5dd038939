"""Which hosts are in which fleet, on disk: ``ROOT/FLEET.json``, replaced whole or not at all."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from provision.private import make_directory


@dataclass(frozen=True)
class Record:
    """A host that is in a fleet.

    Attributes:
        name: Name within the fleet, ``worker-0``.
        id: Tells the host from all others; empty where the record cannot be read.
        place: Its name in the inventory.
        target: What ssh is given as the host.
        options: What ssh is given besides, word by word.
        python: Interpreter for the user's script; empty: found on the host.
        private_address: Address by which the other hosts reach it; empty: the host itself tells.
        root: Directory of the fleet's files there.
        host_key: Its key, where the user's word is all that speaks for it; empty: known_hosts does, or nothing yet.
        created_at: When it came into the fleet, in seconds since the epoch.
    """

    name: str
    id: str
    place: str = ""
    target: str = ""
    options: tuple[str, ...] = ()
    python: str = ""
    private_address: str = ""
    root: str = ""
    host_key: str = ""
    created_at: float = 0.0


class Records:
    """The records below the directory `root`, which is made when the first is written."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def read(self, fleet: str) -> list[Record]:
        """The hosts of a fleet, in their order; one without an id where the file is damaged."""
        try:
            content = json.loads(self._path(fleet).read_bytes())
            return [Record(**{**one, "options": tuple(one["options"])}) for one in content["hosts"]]
        except FileNotFoundError:
            return []
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return [Record("worker-0", "")]

    def write(self, fleet: str, records: Sequence[Record]) -> None:
        """Replace what is known of a fleet; nothing where `records` is empty."""
        if not records:
            self.forget(fleet)
            return
        make_directory(self.root)
        path = self._path(fleet)
        fresh = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
        with fresh.open("w", encoding="utf-8") as file:
            json.dump({"hosts": [asdict(record) for record in records]}, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)

    def forget(self, fleet: str) -> None:
        """Delete what is known of a fleet; a missing file is success."""
        path = self._path(fleet)
        for left_by_a_crash in self.root.glob(f"{path.name}.*"):
            left_by_a_crash.unlink(missing_ok=True)
        path.unlink(missing_ok=True)

    def fleets(self) -> list[str]:
        """Names of all fleets that have hosts, in order."""
        return sorted(path.stem for path in self.root.glob("*.json"))

    def _path(self, fleet: str) -> Path:
        return self.root / f"{fleet}.json"
