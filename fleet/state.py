"""The state of fleets on the user's computer.

    ROOT/
        fleets/NAME.lock          held while a command changes the fleet; names who holds it
        fleets/NAME/fleet.json    what was asked for, and how SSH reaches the hosts
        fleets/NAME/journal       every intent, one JSON line, on disk before the call that it announces
        fleets/NAME/id_ed25519    the fleet's own key, for its owner alone
        fleets/NAME/known_hosts   the pinned host keys, as OpenSSH reads them
        local/                    the instances of the local provider

Instances are the provider's truth and jobs the hosts'; this is what finds both again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.errors import FleetError, NotFoundError, NotReadyError, UsageError
from provision.keys import generate_ed25519
from provision.model import FleetSpec, Host

LOCK_WAIT_S = 5.0
_LOCK_POLL_S = 0.05


@dataclass(frozen=True)
class FleetRecord:
    """A fleet as the user's computer knows it.

    Attributes:
        spec: What was asked for.
        created_at: Seconds since the epoch.
        hosts: How SSH reaches each host, in the order of their index; empty until `fleet up` has finished.
        price_usd_h: Estimated price of the whole fleet in US dollars an hour.
        last_job: Newest job that was started from here.
        last_script: Its script.
    """

    spec: FleetSpec
    created_at: float
    hosts: tuple[Host, ...] = ()
    price_usd_h: float = 0.0
    last_job: str = ""
    last_script: str = ""

    @property
    def ready(self) -> bool:
        """Whether `fleet up` has finished."""
        return bool(self.hosts)


def write_atomic(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace the file at `path` by `data`, whole or not at all."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _record_from(values: dict[str, Any]) -> FleetRecord:
    def fields(kind: type[Any], given: dict[str, Any]) -> dict[str, Any]:
        known = {field.name for field in dataclasses.fields(kind)}
        return {key: value for key, value in given.items() if key in known}

    spec = FleetSpec(**fields(FleetSpec, values["spec"]))
    hosts = tuple(Host(**fields(Host, host)) for host in values.get("hosts", ()))
    rest = {key: value for key, value in fields(FleetRecord, values).items() if key not in ("spec", "hosts")}
    return FleetRecord(spec=spec, hosts=hosts, **rest)


@dataclass(frozen=True)
class FleetFolder:
    """The files of one fleet."""

    path: Path

    @property
    def key(self) -> Path:
        """The fleet's private key."""
        return self.path / "id_ed25519"

    def exists(self) -> bool:
        """Whether anything is known of the fleet."""
        return self.path.is_dir()

    def read(self) -> FleetRecord | None:
        """The fleet's record; None where there is none yet.

        Raises:
            FleetError: the file is damaged.
        """
        file = self.path / "fleet.json"
        try:
            return _record_from(json.loads(file.read_bytes()))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FleetError(
                f"the record of fleet {self.path.name!r} cannot be read: {file}",
                cause=str(error),
                next_step="fleet down   deletes the fleet by its name",
            ) from error

    def write(self, record: FleetRecord) -> None:
        """Replace the fleet's record and the known_hosts that goes with it."""
        lines = "".join(f"{host.key_alias} {host.host_key}\n" for host in record.hosts)
        write_atomic(self.path / "known_hosts", lines.encode())
        write_atomic(self.path / "fleet.json", json.dumps(dataclasses.asdict(record), indent=1).encode())

    def intend(self, intent: str, **details: Any) -> None:
        """Write an intent to the journal; on disk when this returns."""
        line = json.dumps({"at": time.time(), "intent": intent, **details}) + "\n"
        with open(self.path / "journal", "a", encoding="utf-8") as journal:  # noqa: PTH123 - append
            journal.write(line)
            journal.flush()
            os.fsync(journal.fileno())

    def create(self) -> str:
        """Make the folder and the fleet's key where they are missing.

        Returns:
            The public key, one line.
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        public = self.path / "id_ed25519.pub"
        if not (self.key.exists() and public.exists()):
            pair = generate_ed25519(f"fleet {self.path.name}")
            write_atomic(self.key, pair.private.encode())
            write_atomic(public, pair.public.encode() + b"\n", 0o644)
        return public.read_text().strip()

    def delete(self) -> None:
        """Forget the fleet."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.path)


@dataclass(frozen=True)
class Store:
    """All state below `root`."""

    root: Path

    @property
    def local(self) -> Path:
        """Folder of the local provider's instances."""
        return self.root / "local"

    @property
    def hashes(self) -> Path:
        """File of the hashes of contents that were pushed before."""
        return self.root / "hashes.json"

    def fleet(self, name: str) -> FleetFolder:
        """The files of fleet `name`, whether they are there or not."""
        return FleetFolder(self.root / "fleets" / name)

    def names(self) -> list[str]:
        """Names of all fleets of which anything is known."""
        with contextlib.suppress(FileNotFoundError):
            return sorted(entry.name for entry in (self.root / "fleets").iterdir() if entry.is_dir())
        return []

    def need(self, name: str) -> tuple[FleetFolder, FleetRecord]:
        """The fleet `name`, which must be up.

        Raises:
            NotFoundError: there is no such fleet.
            NotReadyError: `fleet up` has not finished.
        """
        folder = self.fleet(name)
        record = folder.read() if folder.exists() else None
        if record is None and not folder.exists():
            others = ", ".join(self.names())
            raise NotFoundError(
                f"there is no fleet {name!r}",
                cause=f"fleets that are up: {others}" if others else "",
                next_step="fleet up --workers 2",
            )
        if record is None or not record.ready:
            raise NotReadyError(
                f"fleet {name!r} is not ready: `fleet up` has not finished",
                next_step="fleet up   repairs it, fleet down   deletes it",
            )
        return folder, record

    @contextlib.contextmanager
    def lock(self, name: str, command: str, wait_s: float = LOCK_WAIT_S) -> Iterator[None]:
        """Hold the lock of fleet `name` for `command`; another holder is waited for `wait_s` seconds.

        Raises:
            NotReadyError: somebody else holds it; the sentence says who.
        """
        path = self.root / "fleets" / f"{name}.lock"
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UsageError(
                f"the state folder {self.root} cannot be written",
                cause=error.strerror or str(error),
                next_step="set FLEET_STATE_DIR to a folder of yours",
            ) from error
        try:
            self._acquire(descriptor, name, wait_s)
            owner = {"pid": os.getpid(), "command": command, "since": time.time()}
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(owner).encode(), 0)
            yield
            os.ftruncate(descriptor, 0)
        finally:
            os.close(descriptor)

    def _acquire(self, descriptor: int, name: str, wait_s: float) -> None:
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise NotReadyError(
                        f"fleet {name!r} is in use by {_owner_of(descriptor)}",
                        next_step="wait for it, or use another fleet: --fleet NAME",
                    ) from None
                time.sleep(_LOCK_POLL_S)
            else:
                return


def _owner_of(descriptor: int) -> str:
    try:
        owner = json.loads(os.pread(descriptor, 4096, 0))
        since = time.strftime("%H:%M:%S", time.localtime(owner["since"]))
        return f"`fleet {owner['command']}`, process {owner['pid']}, since {since}"
    except (ValueError, KeyError, TypeError):
        return "another process"


def with_hosts(record: FleetRecord, hosts: Sequence[Host], price_usd_h: float) -> FleetRecord:
    """`record` as it is once `fleet up` has finished."""
    return dataclasses.replace(record, hosts=tuple(hosts), price_usd_h=price_usd_h)
