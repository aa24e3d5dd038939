"""The state of fleets on the user's computer.

    ROOT/
        owner                     label that distinguishes the fleets of this directory in clouds
        fleets/NAME.lock          held while a command changes the fleet; names the holder
        fleets/NAME/fleet.json    what was requested, and how SSH reaches the hosts
        fleets/NAME/fleet.json.copy   the same, to restore it if it is damaged
        fleets/NAME/journal       every intent, one JSON line, on disk before the call that it announces
        fleets/NAME/id_ed25519    the fleet's own key, readable only by its owner
        fleets/NAME/known_hosts   the pinned host keys, as OpenSSH reads them
        fleets/NAME/ssh_config    the hosts NAME-worker-0, …, as OpenSSH reads them
        fleets/NAME/results/JOB   which results of a job are on this computer
        fleets/NAME/commands/JOB  the `fleet train` that started a job
        local/, static/, ...      the files of each provider

Providers are the source of truth for instances, hosts for jobs; the state directory locates both.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import getpass
import json
import os
import re
import shlex
import shutil
import socket
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from fleet.errors import DamagedStateError, NotFoundError, NotReadyError, UsageError
from fleet.steps import Shell, Step
from provision import ledger
from provision.directories import make_directory
from provision.keys import generate_ed25519, public_key
from provision.model import FleetSpec, Host, Instance, InstanceState
from provision.names import instance_name
from provision.registry import UnknownProviderError, convert_fields, make_options
from train.agent.files.disk import write_atomic
from train.agent.files.paths import SLOT_PREFIX

LOCK_WAIT_S = 5.0
BAKING = "bake"
"""Name of the only fleet in `Store.baking`: the host of which an image is made."""
COPY = "fleet.json.copy"
"""Name of the copy of a fleet's record in its directory."""
SSH_CONFIG = "ssh_config"
"""Name of the SSH configuration in the directory of a fleet."""
_LOCK_POLL_S = 0.05
_OWNER_LETTERS = "abcdefghijklmnopqrstuvwxyz234567"
_OWNER_LENGTH = 8

STATE_VARIABLE = "FLEET_STATE_DIR"
_LABEL_LENGTH = 63  # of Compute Engine
_DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""Errors of reading a file that is damaged."""

T = TypeVar("T")


def state_root() -> Path:
    """Return the directory of all state: ``FLEET_STATE_DIR``, else the user's state directory of the system."""
    given = os.environ.get(STATE_VARIABLE, "")
    if given:
        return Path(given).expanduser().absolute()
    from platformdirs import user_state_path

    return user_state_path("fleet")


def caller() -> str:
    """Return user and computer in characters that cloud labels accept: ``ann-laptop``."""
    try:
        login = getpass.getuser()
    except (KeyError, OSError):  # no such user in the system's list
        login = str(os.getuid())
    plain = re.sub(r"[^a-z0-9_-]+", "-", f"{login}-{socket.gethostname().partition('.')[0]}".lower())
    return plain.strip("-_")[:_LABEL_LENGTH]


@dataclass(frozen=True)
class FleetRecord:
    """Record of a fleet on this computer.

    Attributes:
        spec: The requested fleet.
        created_at: When its cost began, in seconds since the epoch.
        hosts: How SSH reaches each host, in the order of their index; empty until `fleet up` has finished.
        instances: Instances of the hosts, as last reported by their provider.
        price_usd_h: Estimated price of the whole fleet in US dollars an hour, with the disks of stopped instances.
        delete_at: When its provider deletes the first of its instances, in seconds since the epoch; 0: never.
        stop_at: When the first of its instances stops by itself, in seconds since the epoch; 0: never.
        last_job: Newest job that was started from here.
        last_script: Its script.
        tasks_per_host: Number of tasks that each host has in the newest job.
        kept: Names of instances that were kept although `fleet up` failed to prepare them.
        kept_until: When these stop automatically, in seconds since the epoch; 0: none is kept.
        stopped_at: When `fleet down --keep-disks` stopped the instances, in seconds since the epoch; 0: it did not.
        unsaved: Hosts that stored results then that were not on this computer.
    """

    spec: FleetSpec
    created_at: float
    hosts: tuple[Host, ...] = ()
    instances: tuple[Instance, ...] = ()
    price_usd_h: float = 0.0
    delete_at: float = 0.0
    stop_at: float = 0.0
    last_job: str = ""
    last_script: str = ""
    tasks_per_host: int = 1
    kept: tuple[str, ...] = ()
    kept_until: float = 0.0
    stopped_at: float = 0.0
    unsaved: tuple[str, ...] = ()

    @property
    def slots(self) -> tuple[Host, ...]:
        """Return the slots of the newest job: one per host, or several side by side."""
        return slots(self.hosts, self.tasks_per_host)

    @property
    def ready(self) -> bool:
        """True if `fleet up` has finished."""
        return bool(self.hosts)


@dataclass(frozen=True)
class OnThisComputer:
    """Results of a job on this computer.

    Attributes:
        directory: Directory to which `fleet pull` copied them; empty: none.
        log_shown: `fleet train` or `fleet logs` has shown the log from its beginning to the end of the job.
        pull_to: Directory that `fleet train --pull` named, until the results are in it; empty: none.
        legacy_keras: The job ran with Keras 2, which `fleet train` selected.
    """

    directory: str = ""
    log_shown: bool = False
    pull_to: str = ""
    legacy_keras: bool = False


@dataclass(frozen=True)
class TrainCommand:
    """The `fleet train` that started a job, without the options that concern only one run.

    Attributes:
        directory: Working directory of the command.
        options: Options and SCRIPT; values of variables whose names look like those of secrets are left out.
        program: Arguments after ``--``.
        name: The name of the job; empty: none.
    """

    directory: str
    options: tuple[str, ...]
    program: tuple[str, ...] = ()
    name: str = ""


def slots(hosts: Sequence[Host], count: int) -> tuple[Host, ...]:
    """Return each host `count` times, each with its name and directory; packages are shared."""
    if count == 1:
        return tuple(hosts)
    return tuple(
        dataclasses.replace(
            host, name=instance_name(at * count + slot), root=f"{host.root}/{SLOT_PREFIX}{slot}", shared=host.root
        )
        for at, host in enumerate(hosts)
        for slot in range(count)
    )


def _replace(path: Path, data: bytes, mode: int = 0o600) -> None:
    write_atomic(str(path), data, mode, sync=True)


def _from_json(kind: type[T], given: Mapping[str, Any]) -> T:
    """Return an object of `kind` from its JSON; unknown fields are left out."""
    return kind(**convert_fields(kind, given))


def _load(kind: type[T], path: Path) -> T | None:
    """Return the object of `kind` in a file; None if it is missing or damaged."""
    with contextlib.suppress(*_DAMAGE):
        return _from_json(kind, json.loads(path.read_bytes().decode("utf-8", "surrogateescape")))
    return None


def _list_files(directory: Path) -> list[Path]:
    """Return the files of a directory, which need not exist, the last name first."""
    return sorted(directory.iterdir(), reverse=True) if directory.is_dir() else []


def _record_from(values: dict[str, Any]) -> FleetRecord:
    spec = values["spec"]
    options = make_options(spec["provider"], spec.get("options") or {})
    instances = [{**entry, "state": InstanceState(entry["state"])} for entry in values.get("instances", ())]
    return _from_json(
        FleetRecord,
        {
            **values,
            "spec": _from_json(FleetSpec, {**spec, "options": options}),
            "hosts": [_from_json(Host, host) for host in values.get("hosts", ())],
            "instances": [_from_json(Instance, entry) for entry in instances],
        },
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    raise TypeError(f"{type(value).__name__} is not serializable")


@dataclass(frozen=True)
class FleetDirectory:
    """The files of one fleet.

    Attributes:
        path: Their directory.
        on_unwritten: Takes the error if an intent cannot be written to the journal; None: it is raised.
    """

    path: Path
    on_unwritten: Callable[[UsageError], None] | None = None

    @property
    def key(self) -> Path:
        """Return the path of the fleet's private key."""
        return self.path / "id_ed25519"

    @property
    def known_hosts(self) -> Path:
        """Return the path of the pinned host keys."""
        return self.path / "known_hosts"

    def exists(self) -> bool:
        """Return True if the fleet has a directory."""
        return self.path.is_dir()

    def read(self) -> FleetRecord | None:
        """Return the fleet's record; None if there is none yet.

        Raises:
            DamagedStateError: the file is damaged.
        """
        file = self.path / "fleet.json"
        try:
            return _record_from(json.loads(file.read_bytes()))
        except FileNotFoundError:
            return None
        except UnknownProviderError as error:
            raise DamagedStateError(
                f"the provider of fleet {self.path.name!r} is not installed",
                cause=str(error),
                hint="install the package that has it in the environment of fleet",
            ) from error
        except _DAMAGE as error:
            raise DamagedStateError(
                f"the record of fleet {self.path.name!r} cannot be read: {file}",
                cause=str(error),
                next_steps=[*self._restoration(), Step("down", fleet=self.path.name)],
            ) from error

    def _restoration(self) -> list[Shell]:
        """Return the command that restores the fleet's record from its copy, if that can be read."""
        copy = self.path / COPY
        with contextlib.suppress(*_DAMAGE):
            _record_from(json.loads(copy.read_bytes()))
            return [Shell(shlex.join(["cp", str(copy), str(self.path / "fleet.json")]))]
        return []

    def write(self, record: FleetRecord) -> None:
        """Replace the fleet's record, and the known_hosts and the SSH configuration that go with it."""
        lines = "".join(f"{host.key_alias} {host.host_key}\n" for host in record.hosts)
        content = json.dumps(dataclasses.asdict(record), indent=1, default=_plain).encode()
        with _writing(self.path):
            _replace(self.known_hosts, lines.encode())
            with contextlib.suppress(ValueError):  # `export_ssh_config` reports it
                self.export_ssh_config(record)
            _replace(self.path / COPY, content)
            _replace(self.path / "fleet.json", content)

    def export_ssh_config(self, record: FleetRecord) -> Path:
        """Write the hosts as an SSH configuration, and return its path.

        Raises:
            ValueError: a path cannot be written into a configuration.
        """
        from provision.inventory.export import export

        text = export(self.path.name, record.hosts, self.key, self.known_hosts, "ssh-config")
        path = self.path / SSH_CONFIG
        _replace(path, text.encode())
        return path

    def intend(self, intent: str, **details: Any) -> None:
        """Write an intent to the journal; on disk when this returns.

        Raises:
            UsageError: it cannot be written, for example because the disk is full, and `on_unwritten` is None.
        """
        try:
            self._append(json.dumps({"at": time.time(), "intent": intent, **details}).encode() + b"\n")
        except UsageError as error:
            if self.on_unwritten is None:
                raise
            self.on_unwritten(error)

    def _append(self, line: bytes) -> None:
        """Append a line to the journal."""
        with _writing(self.path), (self.path / "journal").open("a+b") as journal:
            end = journal.tell()
            if end and os.pread(journal.fileno(), 1, end - 1) != b"\n":
                line = b"\n" + line  # must not continue a line that a crash cut off
            journal.write(line)
            journal.flush()
            os.fsync(journal.fileno())
        if not end:
            _sync_directory(self.path)

    def intents(self) -> list[dict[str, Any]]:
        """Return the intents of the journal, oldest first, without an incomplete last line.

        Raises:
            DamagedStateError: it cannot be read.
        """
        entries, path = [], self.path / "journal"
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise DamagedStateError(
                f"the journal of fleet {self.path.name!r} cannot be read: {path}",
                cause=error.strerror or "",
                next_steps=[Shell(shlex.join(["ls", "-ld", str(path)]))],
            ) from error
        for line in content.splitlines():
            with contextlib.suppress(ValueError, RecursionError):
                entry = json.loads(line)
                if isinstance(entry, dict) and "intent" in entry:
                    entries.append(entry)
        return entries

    def observe(self, instances: Sequence[Instance], now: float) -> None:
        """Write a complete list of the fleet's instances to the journal, unless it equals the last one there."""
        entry = ledger.entry(instances, now)
        if self.exists() and ledger.is_new(entry, self.intents()):
            self.intend(**entry)

    def intervals(self) -> list[ledger.Interval]:
        """Return the times in which the instances that the fleet has had ran or were stopped."""
        return ledger.intervals(self.intents())

    def cost_usd(self, now: float) -> float:
        """Return the estimated cost of all instances that the fleet has had, until `now`, in US dollars."""
        return ledger.cost_usd(self.intervals(), now)

    def price_usd_h(self, now: float) -> float:
        """Return the estimated price of the instances that the fleet has, as they were last listed, an hour."""
        return ledger.price_usd_h(self.intervals(), now)

    def create(self) -> str:
        """Create the directory and the fleet's key if they are missing.

        Returns:
            The public key, one line.

        Raises:
            DamagedStateError: the private key cannot be read.
        """
        make_directory(self.path)
        comment = f"fleet {self.path.name}"
        if not self.key.exists():
            pair = generate_ed25519(comment)
            _replace(self.key, pair.private.encode())
            return pair.public
        try:
            return public_key(self.key.read_bytes(), comment)
        except (OSError, ValueError) as error:  # it must never be replaced: hosts accept only this key
            raise DamagedStateError(
                f"the key of fleet {self.path.name!r} cannot be read: {self.key}",
                cause=str(error),
                hint="without it, no user can log in to the hosts of this fleet",
                next_steps=[Step("down", fleet=self.path.name)],
            ) from error

    def recorded_jobs(self) -> list[str]:
        """Return the jobs of which results or logs were on this computer, the newest first."""
        return [path.name for path in _list_files(self.path / "results")]

    def on_this_computer(self, job: str) -> OnThisComputer:
        """Return the results of `job` on this computer."""
        return _load(OnThisComputer, self.path / "results" / job) or OnThisComputer()

    def note_results(self, job: str, **changes: Any) -> None:
        """Add fields of OnThisComputer to the record of `job`; another directory replaces the earlier one.

        A fleet that was deleted meanwhile is not changed.
        """
        before = self.on_this_computer(job)
        given = {name: value for name, value in changes.items() if value}
        self._record_results(job, dataclasses.replace(before, **given))

    def forget_pull(self, job: str) -> None:
        """Record that no pull of `job` is pending."""
        self._record_results(job, dataclasses.replace(self.on_this_computer(job), pull_to=""))

    def _record_results(self, job: str, results: OnThisComputer) -> None:
        path = self.path / "results" / job
        with _writing(self.path), contextlib.suppress(FileNotFoundError):
            if results == OnThisComputer():
                path.unlink()
                return
            path.parent.mkdir(mode=0o700, exist_ok=True)
            _replace(path, json.dumps(dataclasses.asdict(results)).encode())

    def note_command(self, job: str, command: TrainCommand) -> None:
        """Record the command that started `job`."""
        directory = self.path / "commands"
        directory.mkdir(mode=0o700, exist_ok=True)
        _replace(directory / job, json.dumps(dataclasses.asdict(command)).encode("utf-8", "surrogateescape"))

    def commands(self) -> dict[str, TrainCommand]:
        """Return the commands that started jobs, by job, newest first; damaged records are left out."""
        loaded = {path.name: _load(TrainCommand, path) for path in _list_files(self.path / "commands")}
        return {job: command for job, command in loaded.items() if command is not None}

    def forget_command(self, job: str) -> None:
        """Delete the record of the command that started `job`."""
        (self.path / "commands" / job).unlink(missing_ok=True)

    def delete(self) -> None:
        """Forget the fleet."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.path)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Store:
    """State below `root`; the journals of all fleets, as providers write and read them (provision.provider.Journal).

    Attributes:
        root: The state directory.
        on_unwritten: Takes the error if an intent cannot be written to a journal; None: it is raised.
    """

    root: Path
    on_unwritten: Callable[[UsageError], None] | None = None

    def check(self) -> None:
        """Reject a state directory in which another user could create files.

        Raises:
            UsageError: it belongs to another user, others may write to it, or it cannot be read.
        """
        with _writing(self.root, "read"), contextlib.suppress(FileNotFoundError):
            _check_owner(self.root, self.root.stat())
            for path in self.root.iterdir():
                if path.is_dir():
                    _check_owner(path, path.stat())

    def intend(self, fleet: str, intent: str, **details: Any) -> None:
        """Write an intent; on disk when this returns. Intents of unknown fleets are not written."""
        directory = self.fleet(fleet)
        if directory.exists():
            directory.intend(intent, **details)

    def intents(self, fleet: str) -> list[dict[str, Any]]:
        """Return all intents of a fleet as given, oldest first, the name under ``intent``; empty if unknown."""
        return self.fleet(fleet).intents()

    def owner(self, *, keep: bool = True) -> str:
        """Return the label of this directory's fleets in clouds: 8 characters of a-z and 2-7.

        Args:
            keep: Store a new label if none is stored; otherwise each call returns another label until one is stored.

        Raises:
            UsageError: the directory cannot be written.
            DamagedStateError: the file that holds it is damaged.
        """
        path = self.root / "owner"
        if not keep:
            return _owner_in(path) or _new_owner()
        with _writing(self.root):
            make_directory(self.root)
            with path.open("a", encoding="ascii") as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # held for some milliseconds
                if not path.stat().st_size:
                    file.write(_new_owner() + "\n")
                    file.flush()
                    os.fsync(file.fileno())
                    _sync_directory(self.root)
        if owner := _owner_in(path):
            return owner
        raise _damaged_owner(path)

    @property
    def baking(self) -> Store:
        """Return the state of hosts of which images are made: they belong to no fleet of the user."""
        return Store(self.root / "baking")

    @property
    def hashes(self) -> Path:
        """Return the file of the hashes of contents that were pushed before."""
        return self.root / "hashes.json"

    @property
    def ssh_configs(self) -> Path:
        """Return the pattern of the SSH configurations of all fleets."""
        return self.root / "fleets" / "*" / SSH_CONFIG

    def fleet(self, name: str) -> FleetDirectory:
        """Return the files of fleet `name`, which need not exist."""
        return FleetDirectory(self.root / "fleets" / name, self.on_unwritten)

    def names(self) -> list[str]:
        """Return the names of all fleets that have files here."""
        return [path.name for path in reversed(_list_files(self.root / "fleets")) if path.is_dir()]

    def need(self, name: str, *, stopped: bool = False) -> tuple[FleetDirectory, FleetRecord]:
        """Return the fleet `name`, which must be up.

        Args:
            name: Name of the fleet.
            stopped: It may also be stopped, by `fleet down --keep-disks`.

        Raises:
            NotFoundError: the fleet does not exist.
            NotReadyError: `fleet up` has not finished, or the fleet is stopped.
        """
        directory = self.fleet(name)
        record = directory.read() if directory.exists() else None
        if record is None and not directory.exists():
            others = ", ".join(self.names())
            raise NotFoundError(
                f"fleet {name!r} does not exist",
                cause=f"fleets that are up: {others}" if others else "",
                next_steps=[Step("up", "--workers", "2")],
            )
        if record is None or not record.ready:
            raise NotReadyError(
                f"fleet {name!r} is not ready: `fleet up` has not finished",
                hint="fleet up repairs it, fleet down deletes it",
                next_steps=[Step("up"), Step("down")],
            )
        if record.stopped_at and not stopped:
            raise NotReadyError(
                f"fleet {name!r} is stopped; its disks are kept",
                hint="fleet up starts it again, with all its files and packages",
                next_steps=[Step("up")],
            )
        return directory, record

    @contextlib.contextmanager
    def lock(self, name: str, command: str, wait_s: float = LOCK_WAIT_S) -> Iterator[None]:
        """Hold the lock of fleet `name` for `command`; wait up to `wait_s` seconds for another holder.

        Raises:
            NotReadyError: another command holds it; the message names it.
        """
        path = self.root / "fleets" / f"{name}.lock"
        with _writing(self.root):
            make_directory(path.parent)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._acquire(descriptor, name, wait_s)
            owner = {"pid": os.getpid(), "command": command, "since": time.time()}
            os.ftruncate(descriptor, 0)
            with contextlib.suppress(OSError):  # a full disk: others cannot report the holder, but wait for it
                os.pwrite(descriptor, json.dumps(owner).encode(), 0)
            yield
            os.ftruncate(descriptor, 0)
        finally:
            os.close(descriptor)

    def is_locked(self, name: str) -> bool:
        """Return whether a command holds the lock of fleet `name`."""
        try:
            descriptor = os.open(self.root / "fleets" / f"{name}.lock", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def _acquire(self, descriptor: int, name: str, wait_s: float) -> None:
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise NotReadyError(
                        f"fleet {name!r} is in use by {_owner_of(descriptor)}",
                        hint="wait for it, or use another fleet: --fleet NAME",
                    ) from None
                time.sleep(_LOCK_POLL_S)
            else:
                return


def _owner_of(descriptor: int) -> str:
    try:
        owner = json.loads(os.pread(descriptor, 4096, 0))
        since = time.strftime("%H:%M:%S", time.localtime(owner["since"]))
        return f"`fleet {owner['command']}`, process {owner['pid']}, since {since}"
    except (ValueError, KeyError, TypeError, OverflowError, OSError, RecursionError):
        return "another process"


def _check_owner(path: Path, status: os.stat_result) -> None:
    if status.st_uid != os.geteuid():
        raise UsageError(
            f"the state directory {path} belongs to another user (uid {status.st_uid})",
            cause="its owner decides which programs fleet runs to reach its hosts",
            next_steps=[_other_directory(path)],
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UsageError(
            f"other users may write to the state directory {path}",
            cause="any user who can write there decides which programs fleet runs to reach its hosts",
            next_steps=[Shell(shlex.join(["chmod", "go-w", str(path)]))],
        )


def _other_directory(failed: Path) -> Shell:
    """Return the command that selects a state directory outside of the one that cannot be used."""
    home, name = Path.home(), f"fleet-{os.getuid()}"
    is_usable = os.environ.get("HOME") and home.is_dir() and os.access(home, os.W_OK)
    if is_usable and not failed.is_relative_to(home / "fleet-state"):
        return Shell('export FLEET_STATE_DIR="$HOME/fleet-state"')
    parent = "/tmp" if failed.is_relative_to(f"/var/tmp/{name}") else "/var/tmp"  # noqa: S108 - the owner is checked
    return Shell(f"export FLEET_STATE_DIR={parent}/{name}")


@contextlib.contextmanager
def _writing(directory: Path, verb: str = "written") -> Iterator[None]:
    """Raise UsageError if files of a state directory cannot be written, or read."""
    try:
        yield
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise UsageError(
            f"the state directory {directory} cannot be {verb}",
            cause=error.strerror or str(error),
            hint="free space on its disk" if is_full else "set FLEET_STATE_DIR to a directory of your own",
            next_steps=[Shell(shlex.join(["df", "-h", str(directory)])) if is_full else _other_directory(directory)],
        ) from error


def _new_owner() -> str:
    import secrets

    return "".join(secrets.choice(_OWNER_LETTERS) for _ in range(_OWNER_LENGTH))


def _owner_in(path: Path) -> str:
    """Return the content of the file; empty if it is missing or not written yet.

    Raises:
        DamagedStateError: it has another content.
    """
    try:
        text = path.read_text(encoding="ascii", errors="replace").strip()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise _damaged_owner(path, error.strerror or "") from error
    if text and (len(text) != _OWNER_LENGTH or not set(text) <= set(_OWNER_LETTERS)):
        raise _damaged_owner(path)
    return text


def _damaged_owner(path: Path, cause: str = "") -> DamagedStateError:
    return DamagedStateError(
        f"{path} is damaged: it stores the owner ID of this state directory",
        cause=cause,
        hint="move it away; fleet gc then finds the resources of the old owner",
        next_steps=[Shell(shlex.join(["mv", str(path), f"{path}.damaged"])), Step("gc")],
    )


def replace_hosts(record: FleetRecord, hosts: Sequence[Host], instances: Sequence[Instance]) -> FleetRecord:
    """Return `record` as of the end of `fleet up`: price and deletion time are those of `instances`.

    What earlier instances cost is in the journal.
    """
    return dataclasses.replace(
        record,
        hosts=tuple(hosts),
        instances=tuple(instances),
        kept=(),
        kept_until=0.0,
        stopped_at=0.0,
        unsaved=(),
        price_usd_h=sum(instance.current_usd_h for instance in instances),
        delete_at=min((instance.delete_at for instance in instances if instance.delete_at), default=0.0),
        stop_at=min((instance.stop_at for instance in instances if instance.stop_at), default=0.0),
    )
