"""`fleet push`: copy files from this computer to the hosts of a fleet."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from fleet.cli.application import command
from fleet.cli.options import FLEET, HOSTS, OUTPUT, Output, argument, option
from fleet.cli.runtime import resolve_fleet, session
from fleet.errors import UsageError, explain_interrupt
from fleet.events import FilesPushed, PushedHost, PushProgress
from fleet.fleets.access import select_hosts
from fleet.fleets.agents import ExistingFleet, call_each, opened
from fleet.remote.bundles import push_files
from fleet.remote.fanout import Outcome, raise_failures, values_of
from fleet.remote.quoting import one_line
from fleet.remote.upload import Bundle, DataSource, printable, scan_files
from fleet.steps import Again
from provision.model import Host
from train.agent.protocol.records import EntryKind, FilesStored


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
        raise UsageError(f"{printable(text)!r} does not exist", hint="check the path")
    if not source.is_file() and not source.is_dir():
        raise UsageError(f"{printable(text)!r} is neither a file nor a directory")
    if not name or source == Path.home().resolve():
        which = "your home directory" if name else "the root directory"
        raise UsageError(f"refusing to push all of {which}", hint="name files or directories in it")
    if source.is_relative_to(state):
        raise UsageError(f"{printable(text)!r} is not pushed: it is in the directory with the keys of fleets")
    return DataSource(source, str(PurePosixPath(name)))


def _push(hosts: Sequence[Host], fleet: ExistingFleet, target: str, bundle: Bundle) -> list[Outcome[FilesStored]]:
    """Return the outcome of each host, in their order."""
    with opened(hosts, fleet.directory.key, fleet.access) as connected:
        answers = call_each(
            values_of(connected),
            lambda client: push_files(
                client, target, bundle, lambda *counts: fleet.sink.emit(PushProgress(client.host.name, *counts))
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
    files: list[str] = argument(..., "FILE...", "Files and directories to copy."),
    to: str = option(
        "fleet-files", "--to", "Directory on the hosts: relative to the login directory, or absolute.", "DIR"
    ),
    worker: str = HOSTS,
    fleet: str = FLEET,
    output: Output = OUTPUT,
) -> None:
    """Copy files from this computer to the hosts.

    Sends only what has changed. Each file gets its name on the host only when it is complete, and replaces a file of
    that name.

    Examples:
      fleet push images.tfrecord
      fleet push data/train data/test --to /mnt/data
      fleet push --worker 0 settings.json
    """
    with session(resolve_fleet(fleet), output) as run:
        target, services = parse_target(to), run.services
        sources = find_sources(files, services.store.root)
        existing = run.find_fleet()
        hosts = select_hosts(run.fleet, existing.record.hosts, worker)
        unfinished = "interrupted; files that were not complete are not on the hosts"
        with explain_interrupt(unfinished, Again({})):
            bundle = scan_files(sources, services.store.hashes, state=services.store.root)
            existing.announce()
            for text in bundle.notes:
                run.note(text)
            outcomes = _push(hosts, existing, target, bundle)
        sizes = [entry.size for entry in bundle.entries if entry.kind in (EntryKind.FILE, EntryKind.DATA)]
        if not existing.record.spec.options.remote:
            run.note("the hosts are this computer: fleet down does not delete these files")
        run.emit(FilesPushed(run.fleet, len(sizes), sum(sizes), tuple(map(_result, outcomes))))
        raise_failures(outcomes, "push to all hosts")
