"""Instances that are OpenSSH servers on this computer: no cloud account, no cost, the same SSH routes."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from provision.directories import make_directory, remove_directory
from provision.local import login, processes, sshd
from provision.local.instances import Record, Records
from provision.local.options import LocalOptions
from provision.model import Finding, FleetSpec, Host, Instance, InstanceState, LocalProgram, Quote
from provision.names import index_of
from provision.openssh import install_openssh
from provision.provider import ErrorKind, Progress, Provider, ProviderError, Site, check_prerequisite
from provision.ssh_config.programs import AcceptedPrograms, describe_program, fingerprint

WORKERS_MAX = 256


class LocalProvider(Provider):
    """Creates instances from sshd processes and the directories in `root`.

    Args:
        root: Directory of the records and directories of all local instances; created with the first one.
    """

    name = "local"

    def __init__(self, root: Path) -> None:
        self._records = Records(root.absolute())
        self._accepted = AcceptedPrograms(root.absolute().parent / "programs")

    @classmethod
    def open(cls, options: LocalOptions, site: Site) -> LocalProvider:
        """Return the provider of local instances."""
        del options
        return cls(site.directory / "local")

    def check(self, spec: FleetSpec) -> None:
        """Check that `spec` can be created on this computer; touch nothing.

        Raises:
            ProviderError: it cannot be created.
        """
        super().check(spec)
        if spec.workers > WORKERS_MAX:
            raise ProviderError(
                ErrorKind.USAGE,
                f"at most {WORKERS_MAX} workers are supported on this computer, {spec.workers} requested",
                again={"--workers": str(WORKERS_MAX)},
            )
        if spec.packages:
            raise ProviderError(
                ErrorKind.USAGE,
                "packages cannot be installed for a fleet on this computer",
                cause="its scripts run with the interpreter that runs fleet",
                hint="remove --package, or select another interpreter: --python PATH",
                again={"--package": None},
            )
        if spec.python and shutil.which(spec.python) is None:
            raise ProviderError(
                ErrorKind.USAGE,
                f"--python {spec.python} is not a program on this computer",
                hint="give an interpreter of Python 3.9 or later, or remove the option to use that of fleet",
                again={"--python": None},
            )
        login.check_login()
        _find_sshd()

    def programs(self, spec: FleetSpec) -> Sequence[LocalProgram]:
        """Return the interpreter, if a fleet.toml chose it.

        Raises:
            ProviderError: it cannot be read.
        """
        return [describe_program(spec.python_source, "python", spec.python)] if spec.python_source else []

    def quote(self, spec: FleetSpec, names: Sequence[str]) -> Quote:
        """Return what would be started, at no cost."""
        del spec
        return Quote(len(names), notes=(f"{', '.join(names)} would be started on this computer, at no cost",))

    def create(self, spec: FleetSpec, names: Sequence[str], progress: Progress) -> None:
        """Start an sshd for each of `names` that has none; create incomplete instances again.

        If the sshd of an instance has ended, start another one in the same directory and if possible on the same
        port. Processes that were started through the old sshd keep running.

        Raises:
            ProviderError: an instance could not be made; all others were.
        """
        program = _find_sshd()
        user = login.check_login()
        existing = {instance.name: instance for instance in self.list(spec.name)}
        running = {name for name, instance in existing.items() if instance.state is InstanceState.RUNNING}
        whole = {name: record for name in existing if (record := self._whole(spec.name, name)) is not None}
        self.delete([existing[name] for name in names if name in existing and name not in whole], progress)
        # A program that ended after it started an sshd and before it wrote the record left an unrecorded sshd.
        again = {whole[name].id for name in names if name in whole and name not in running}
        processes.end(again, only_listeners=True)
        self._make_root()

        servers: dict[str, tuple[Record, sshd.Server]] = {}
        failures: dict[str, ProviderError | OSError] = {}
        for name in dict.fromkeys(names):
            if name not in running:
                try:
                    record = whole.get(name) or self._begin(spec, name)
                    progress(name, "starting sshd")
                    place = (program, self._records.directory(spec.name, name), record.id, record.address, user)
                    servers[name] = record, sshd.Server(*place, port=record.port)
                except OSError as error:
                    failures[name] = error
        for name, (record, server) in servers.items():
            try:
                server.wait()
                self._records.write(replace(record, port=server.port, pid=server.pid))
            except (ProviderError, OSError) as error:
                failures[name] = error
            else:
                progress(name, "ready")
        if failures:
            raise _start_error(failures)

    def _begin(self, spec: FleetSpec, name: str) -> Record:
        """Write the record of a new instance, and its keys."""
        address, python = sshd.loopback_address(spec.name, index_of(name)), spec.python or sys.executable
        record = Record(spec.name, name, uuid.uuid4().hex, time.time(), python, address)
        self._records.write(record)
        _write_keys(self._records.directory(spec.name, name), spec, name)
        return record

    def _make_root(self) -> None:
        try:
            make_directory(self._records.root)
            sshd.make_separation_directory()
        except OSError as error:
            raise ProviderError(
                ErrorKind.MISSING,
                f"cannot create the directory {error.filename}",
                cause=error.strerror or str(error),
                hint="create it, or allow this user to create it",
            ) from error

    def _whole(self, fleet: str, name: str) -> Record | None:
        """Return the record of a complete instance, even if its sshd does not run."""
        record = self._records.read(fleet, name)
        if record is None or not record.port or record.deleting:
            return None
        return record if (self._records.directory(fleet, name) / "host_key.pub").exists() else None

    def hosts(self, spec: FleetSpec, instances: Sequence[Instance]) -> list[Host]:
        """Return the SSH routes to `instances`, in their order.

        Raises:
            ProviderError: the sshd of an instance does not run, or the user has not accepted their interpreter.
        """
        self._accepted.require(self.programs(spec))
        hosts = [self._host(instance) for instance in instances]
        return [replace(host, agreed=fingerprint(host.python)) for host in hosts] if spec.python_source else hosts

    def _host(self, instance: Instance) -> Host:
        record = self._records.read(instance.fleet, instance.name)
        if record is None or record.id != instance.id or _instance(record).state is not InstanceState.RUNNING:
            raise ProviderError(
                ErrorKind.UNREACHABLE,
                f"the sshd of {instance.name} in fleet {instance.fleet} is not running",
                next_steps=[("fleet", "up")],
            )
        directory = self._records.directory(record.fleet, record.name)
        try:
            kind, key, *_ = (directory / "host_key.pub").read_text(encoding="ascii").split()
        except (OSError, ValueError) as error:
            raise ProviderError(
                ErrorKind.UNREACHABLE,
                f"the host key of {instance.name} in fleet {instance.fleet} is missing",
                cause=str(error),
                next_steps=[("fleet", "down"), ("fleet", "up")],
            ) from error
        return Host(
            name=record.name,
            address=record.address,
            port=record.port,
            user=login.current_user().pw_name,
            host_key=f"{kind} {key}",
            key_alias=f"local.{record.id}",
            private_address=record.address,
            python=record.python,
            root=str(directory / "fleet"),
        )

    def delete(self, instances: Sequence[Instance], progress: Progress) -> None:
        """End every process of `instances` and delete their directories; a missing one is success.

        Raises:
            ProviderError: a process does not end, a file cannot be deleted, or this program runs in one of the
                instances.
        """
        ids = {instance.id for instance in instances if instance.id}
        if os.environ.get(processes.MARK) in ids:
            raise ProviderError(
                ErrorKind.USAGE,
                "this program runs on one of the hosts to delete",
                hint="repeat the command in a terminal that is not logged in there",
            )
        for instance in instances:
            progress(instance.name, "deleting")
            record = self._records.read(instance.fleet, instance.name)
            if record is not None and record.id == instance.id:  # an interruption must not leave half of it in use
                with contextlib.suppress(OSError):  # if the disk is full, the deletion makes space
                    self._records.write(replace(record, deleting=True))
        processes.end(ids)
        for instance in instances:
            record = self._records.read(instance.fleet, instance.name)
            if record is not None and record.id in (instance.id, ""):
                processes.reap(record.pid)
                remove_directory(self._records.directory(record.fleet, record.name))
                self._records.forget(record.fleet, record.name)
            progress(instance.name, "deleted")

    def doctor(self, workers: int = 1) -> list[Finding]:  # noqa: ARG002 - any number
        """Check sshd, the login, TensorFlow, and the directory of the instances, without changing them."""
        return [
            check_prerequisite("sshd", lambda: f"the OpenSSH server is {_find_sshd()}"),
            check_prerequisite("login", lambda: f"{login.check_login()} can log in"),
            _tensorflow_finding(),
            _directory_finding(self._records.root),
        ]

    def list(self, fleet: str | None = None) -> list[Instance]:
        """Return all instances of `fleet` (None: of every fleet), ordered by fleet and index."""
        return [_instance(record) for record in self._records.all(fleet)]


def _tensorflow_finding() -> Finding:
    from importlib.util import find_spec

    if find_spec("tensorflow") is None:
        return Finding(
            "tensorflow",
            False,
            f"{sys.executable}, which runs the scripts, has no TensorFlow",
            next_steps=[(sys.executable, "-m", "pip", "install", "tf-keras")],  # with the TensorFlow that fits it
        )
    return Finding("tensorflow", True, f"{sys.executable}, which runs the scripts, has TensorFlow")


def _directory_finding(root: Path) -> Finding:
    """Check that `root` can be written, or created in its nearest existing parent."""
    nearest = next(path for path in (root, *root.parents) if path.exists())
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        return Finding("directory", True, f"{root} can be written")
    return Finding("directory", False, f"{root} cannot be written", hint=f"let this user write to {nearest}")


def _find_sshd() -> str:
    program = sshd.find()
    if program is None:
        raise ProviderError(
            ErrorKind.MISSING,
            "the OpenSSH server (sshd) is not installed on this computer",
            cause="a local fleet consists of one OpenSSH server per worker",
            hint="install it with the package manager of your system",
            next_steps=install_openssh("server"),
        )
    return program


def _instance(record: Record) -> Instance:
    state = InstanceState.STOPPED
    if record.id and not record.port and not record.deleting:
        state = InstanceState.STARTING
    elif record.port and not record.deleting and processes.listens(record.pid, record.id):
        state = InstanceState.RUNNING
    return Instance(
        record.name,
        record.fleet,
        record.id,
        state,
        "localhost",
        created_at=record.created_at,
        has_data=not record.deleting,
    )


def _write_keys(directory: Path, spec: FleetSpec, name: str) -> None:
    from provision.keys import generate_ed25519

    directory.mkdir(mode=0o700, exist_ok=True)
    pair = generate_ed25519(f"host key of {name} in fleet {spec.name}")
    private = directory / "host_key"
    private.touch(mode=0o600)
    private.write_text(pair.private, encoding="ascii")
    (directory / "host_key.pub").write_text(pair.public + "\n", encoding="ascii")
    (directory / "authorized_keys").write_text(spec.public_key.strip() + "\n", encoding="utf-8")


def _start_error(failures: Mapping[str, ProviderError | OSError]) -> ProviderError:
    message, first = f"could not start {', '.join(failures)}", next(iter(failures.values()))
    if isinstance(first, OSError):
        return ProviderError(ErrorKind.CAPACITY, message, cause=str(first), again={})
    first.cause = f"{first.message}: {first.cause}" if first.cause else first.message
    first.message = message
    return first
