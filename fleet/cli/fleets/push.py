"""`fleet push`: copy files from this computer to the hosts of a fleet."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated

from fleet.cli.application import command
from fleet.cli.options import Fleet, HostsOption, Output, OutputOption, argument, option
from fleet.cli.runtime import make_services, resolve_fleet, run_command
from fleet.errors import CancelledError, UsageError
from fleet.events import FilesPushed, Note, PushedHost, PushProgress, Sink
from fleet.fleets.access import Access
from fleet.fleets.agents import ALL, call_each, fleet_opened, opened, select_hosts
from fleet.remote.fanout import Outcome, raise_failures, values_of
from fleet.remote.push import push_files
from fleet.remote.quoting import one_line
from fleet.remote.upload import Bundle, DataSource, printable, scan_files
from fleet.services import Services
from fleet.steps import Again
from provision.model import Host
from train.agent.protocol.records import EntryKind, FilesStored


@dataclass(frozen=True)
class PushRequest:
    """Request of the command.

    Attributes:
        fleet: Name of the fleet.
        files: Files and directories on this computer.
        directory: Directory on the hosts, relative to the login directory, or absolute.
        worker: The hosts, as in `select_hosts`.
    """

    fleet: str
    files: tuple[str, ...]
    directory: str
    worker: str = ALL


def run(request: PushRequest, services: Services, sink: Sink) -> None:
    """Copy the files to all requested hosts.

    Raises:
        UsageError: a file cannot be sent, or the directory is not valid.
        NotFoundError: the fleet or host does not exist.
        NotReadyError: a host cannot store the files; the others have them.
        UnreachableError: a host does not answer; the others have the files.
        CancelledError: interrupted; no file is incomplete.
    """
    target = parse_target(request.directory)
    sources = find_sources(request.files, services.store.root)
    directory, record = services.store.need(request.fleet)
    hosts = select_hosts(request.fleet, record.hosts, request.worker)
    try:
        bundle = scan_files(sources, services.store.hashes, state=services.store.root)
        sink.emit(fleet_opened(record, directory, services.clock()))
        for text in bundle.notes:
            sink.emit(Note(text))
        outcomes = _push(hosts, directory.key, Access(record.spec, services, sink), target, bundle, sink)
    except KeyboardInterrupt:
        raise CancelledError(
            "interrupted; files that were not complete are not on the hosts", next_steps=[Again({})]
        ) from None
    files = [entry for entry in bundle.entries if entry.kind in (EntryKind.FILE, EntryKind.DATA)]
    size = sum(entry.size for entry in files)
    if not record.spec.options.remote:
        sink.emit(Note("the hosts are this computer: fleet down does not delete these files"))
    sink.emit(FilesPushed(request.fleet, len(files), size, tuple(map(_result, outcomes))))
    raise_failures(outcomes, "push to all hosts")


def parse_target(text: str) -> str:
    """Return a directory on the hosts; ``~`` is the login directory.

    Raises:
        UsageError: the text is not a path.
    """
    first, _, rest = text.partition("/")
    if not text or "\0" in text or (first.startswith("~") and first != "~"):
        raise UsageError(
            f"--to {text!r} is not a directory on the hosts",
            hint="give a path relative to the login directory, or an absolute one",
        )
    return (rest.lstrip("/") or ".") if first == "~" else text


def find_sources(given: Sequence[str], state: Path) -> list[DataSource]:
    """Return the files and directories to send, each with its name on the hosts.

    Args:
        given: Their paths.
        state: Directory with the keys of fleets.

    Raises:
        UsageError: one does not exist, cannot be sent, or has the name of another.
    """
    by_name: dict[str, DataSource] = {}
    for text in given:
        source = _find_source(text, state.resolve())
        other = by_name.setdefault(source.destination, source)
        if other.source != source.source:
            raise UsageError(
                f"{printable(str(other.source))} and {printable(str(source.source))} have the same name",
                hint="push them to different directories with --to",
            )
    return list(by_name.values())


def _find_source(text: str, state: Path) -> DataSource:
    path = Path(text).expanduser()
    source = Path(os.path.realpath(path))
    name = source.name if path.name in ("", "..") else path.name
    if not text or not os.path.exists(source):  # noqa: PTH110 - Path.exists raises errors
        raise UsageError(f"there is no {printable(text)!r}", hint="check the path")
    if not source.is_file() and not source.is_dir():
        raise UsageError(f"{printable(text)!r} is neither a file nor a directory")
    if not name or source == Path.home().resolve():
        which = "your home directory" if name else "the root directory"
        raise UsageError(f"refusing to push all of {which}", hint="name files or directories in it")
    if source.is_relative_to(state):
        raise UsageError(f"{printable(text)!r} is not pushed: it is in the directory with the keys of fleets")
    return DataSource(source, str(PurePosixPath(name)))


def _push(
    hosts: Sequence[Host], key: Path, access: Access, target: str, bundle: Bundle, sink: Sink
) -> list[Outcome[FilesStored]]:
    """Return the outcome of each host, in their order."""
    with opened(hosts, key, access) as connected:
        answers = call_each(
            values_of(connected),
            lambda client: push_files(
                client, target, bundle, lambda *counts: sink.emit(PushProgress(client.host.name, *counts))
            ),
        )
    outcomes: dict[str, Outcome[FilesStored]] = {answer.host.name: answer for answer in answers}
    failed = [Outcome[FilesStored](outcome.host, error=outcome.error) for outcome in connected if outcome.error]
    outcomes |= {outcome.host.name: outcome for outcome in failed}
    return [outcomes[host.name] for host in hosts]


def _result(outcome: Outcome[FilesStored]) -> PushedHost:
    if outcome.value is None:
        return PushedHost(outcome.host.name, None, None, outcome.error.message if outcome.error else "")
    return PushedHost(outcome.host.name, one_line(outcome.value.directory), outcome.value.written)


@command("Hosts")
def push(
    files: Annotated[list[str], argument("FILE...", "Files and directories to copy.")],
    to: Annotated[
        str, option("--to", "Directory on the hosts: relative to the login directory, or absolute.", "DIR")
    ] = "fleet-files",
    worker: HostsOption = "all",
    fleet: Fleet = "",
    output: OutputOption = Output.AUTO,
) -> None:
    """Copy files from this computer to the hosts.

    Sends only what has changed. Each file gets its name on the host only when it is complete, and replaces a file of
    that name.

    Examples:
      fleet push images.tfrecord
      fleet push data/train data/test --to /mnt/data
      fleet push --worker 0 settings.json
    """
    request = PushRequest(resolve_fleet(fleet), tuple(files), to, worker)
    run_command(request.fleet, output, lambda sink: run(request, make_services(sink), sink))
