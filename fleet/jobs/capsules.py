"""Capsules of jobs: store what was uploaded with the command that repeats it; check and show what a capsule runs."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from fleet.errors import CancelledError, FleetError, NotReadyError, UsageError, fold
from fleet.events import Level, Note, Sink
from fleet.fleets.agents import call_each
from fleet.jobs.program import environment
from fleet.jobs.results import StoredJobs
from fleet.remote.bundles import contents_of, fetch_contents, get_bundle
from fleet.remote.client import AgentClient
from fleet.remote.fanout import raise_failures
from fleet.remote.quoting import show_command
from fleet.reports.capsule import FORMAT, LARGEST, Manifest, write_capsule
from fleet.reports.record import JobRecord, encode_record
from fleet.services import Services
from fleet.state import TrainCommand
from fleet.steps import Again
from train.agent.files.disk import readable_size
from train.agent.files.paths import is_inner_path
from train.agent.protocol.records import Prepared

_DROPPED = ("--requirements", "--no-requirements", "--workdir")
_NAMED = ("--env", "--secret")
_FORBIDDEN = (
    "--env-file", "--requirements", "--no-requirements", "--pull", "--fleet", "--output", "--resume",
    "--from-capsule",
)  # fmt: skip
_LONGEST = 200
_LONGEST_PACKAGE = 300

Words = Sequence[tuple[str, tuple[str, ...]]]
"""Words of a command line: the name of the option, or an empty string for an operand, and the arguments as typed."""


# --- write a capsule ------------------------------------------------------------------------------------------------


def store_capsule(
    path: Path, job: StoredJobs, slots: Sequence[AgentClient], record: JobRecord, command: TrainCommand, words: Words
) -> tuple[JobRecord, list[str]]:
    """Write the capsule of a job.

    Args:
        path: The file.
        job: The job.
        slots: Agents of its slots.
        record: Its description.
        command: The command that started it.
        words: The words of this command.

    Returns:
        The description with what was learned, and sentences on what cannot be repeated.

    Raises:
        FleetError: a host does not have the files, they are too large, or the capsule cannot be written.
    """
    options, notes = repeat(command, words)
    answers = call_each(slots, lambda agent: get_bundle(agent, job.job))
    infos = {answer.host.name: answer.value for answer in answers if answer.value is not None}
    if not infos:
        raise_failures(answers, "list the files of the job")
        raise NotReadyError(f"no host has the files of job {job.job}")
    source = next(agent for agent in slots if agent.host.name in infos)
    info = infos[source.host.name]
    size = sum(contents_of(info.entries).values())
    if size > LARGEST // 2:
        limit = readable_size(LARGEST // 2)
        raise NotReadyError(f"the uploaded files have {readable_size(size)}, and {limit} are the limit")
    record = record._replace(environment=info.environment)
    texts = {"job.json": encode_record(record)}
    for task in record.tasks:
        if task.slot in infos:
            packages = (package[:_LONGEST_PACKAGE] for package in infos[task.slot].packages)
            texts[f"packages/{task.task}.txt"] = "".join(f"{line}\n" for line in packages).encode()
    manifest = Manifest(
        format=FORMAT,
        job=job.job,
        options=options,
        entries=info.entries,
        program=list(command.program),
        name=command.name,
        requirements=without_logins(info.requirements),
        constraints=without_logins(info.constraints),
        versions=dict(record.tasks[0].versions) if record.tasks else {},
        environment=info.environment,
    )
    with tempfile.TemporaryDirectory(prefix="fleet-capsule-") as contents:
        fetch_contents(source, info.entries, Path(contents))
        try:
            write_capsule(path, manifest, texts, Path(contents))
        except (OSError, ValueError) as error:
            raise NotReadyError(f"{str(path)!r} cannot be written: {error}") from error
    return record, notes


def without_logins(text: str) -> str:
    """Return a text without user names and passwords in its URLs."""
    return re.sub(r"(?<=://)[^/\s]*@", "", text)


def repeat(command: TrainCommand, words: Words) -> tuple[list[str], list[str]]:
    """Return the options and SCRIPT that repeat a job in a directory with the uploaded files.

    Values of environment variables are replaced by their names: they are copied when the command is repeated.

    Args:
        command: The command that started the job.
        words: Its words.

    Returns:
        The options, with paths relative to the uploaded files; and sentences on what cannot be repeated.
    """
    here = Path(command.directory)
    values = [(option, _value(option, text)) for option, text in words]
    is_module = any(option in ("-m", "--module") for option, _ in values)
    workdir = next((here / Path(value).expanduser() for option, value in values if option == "--workdir"), None)
    script = next((value for option, value in values if not option and not is_module), "")
    path = here / Path(script).expanduser()
    root = workdir or (path if not script or path.is_dir() else path.parent)
    options: list[str] = []
    notes: list[str] = []
    for (option, value), (_, text) in zip(values, words, strict=True):
        if option == "--env-file":
            try:
                names = environment((), (str(here / Path(value).expanduser()),), {})
                options += [word for name in names for word in ("--env", name)]
            except FleetError as error:
                notes.append(f"the variables of --env-file {value} are left out: {error.message}")
        elif option in _NAMED:
            options += [option, value.partition("=")[0]]
        elif option == "--data":
            destination = _destination(value, here)
            options += ["--data", f"{destination}:{destination}"] if destination else []
        elif not option and script:
            options.append(_relative(path, root))
            script = ""
        elif option not in _DROPPED:
            options += text
    return [*options, "--workdir", "."], notes


def _value(option: str, text: tuple[str, ...]) -> str:
    if len(text) > 1 or not option:
        return text[-1]
    name, sign, value = text[0].partition("=")
    return value if sign and name.startswith("--") else text[0][2:]


def _relative(path: Path, root: Path) -> str:
    """Return the script relative to the uploaded directory; its name if it is in no other one."""
    for part, base in ((path, root), (path.resolve().parent / path.name, root.resolve())):
        if part.is_relative_to(base):
            return part.relative_to(base).as_posix()
    return path.name


def _destination(text: str, here: Path) -> str:
    """Return the destination of ``--data``, as `parse_data` decides; empty: the uploaded directory itself."""
    source, separator, destination = text.rpartition(":")
    if not separator or (here / Path(text).expanduser()).exists():
        source, destination = text, ""
    path = PurePosixPath(destination)
    if not destination or destination.endswith("/"):
        path = path / Path(source).name
    return "" if str(path) == "." else str(path)


# --- repeat the job of a capsule ------------------------------------------------------------------------------------


class Capsule(NamedTuple):
    """A capsule from which a job comes.

    Attributes:
        variables: Names of variables of this computer that its options copy, and that the user has not named.
        pip_options: Options in its requirements, such as the package index.
    """

    variables: tuple[str, ...] = ()
    pip_options: tuple[str, ...] = ()


def check_repetition(words: Words, source: Path) -> None:
    """Check the words of a capsule, which can come from anywhere: nothing outside its own files may be named.

    Raises:
        UsageError: a word is not one that `repeat` makes.
    """
    operands = 0
    for option, text in words:
        value = _value(option, text) if len(text) > 1 or "=" in text[0] or not option else ""
        if not option:
            operands += 1
            is_valid = operands == 1 and not value.startswith("-") and _is_inside(value, source)
        elif option in _NAMED:
            is_valid = "=" not in value
        elif option == "--data":
            path, _, destination = value.partition(":")
            is_valid = path == destination and _is_inside(path, source)
        elif option == "--workdir":
            is_valid = value == "."
        else:
            is_valid = option not in _FORBIDDEN
        if not is_valid:
            raise UsageError(
                "the capsule has an option that no capsule of fleet report has", cause=" ".join(text)[:_LONGEST]
            )


def _is_inside(path: str, source: Path) -> bool:
    return is_inner_path(path) and (source / path).exists()


def located(words: Words, source: Path) -> Iterator[str]:
    """Yield the options of a capsule whose files are in a directory."""
    for option, text in words:
        if not option:
            yield str(source / text[0])
        elif option == "--data":
            yield from (option, f"{source}/{_value(option, text)}")
        elif option == "--workdir":
            yield from (option, str(source))
        else:
            yield from text


def variables_in(words: Words) -> set[str]:
    """Return the names of the variables that options copy."""
    return {_value(option, text).partition("=")[0] for option, text in words if option in _NAMED}


def confirm_capsule(
    capsule: Capsule, command: Sequence[str], services: Services, sink: Sink, *, dry_run: bool
) -> None:
    """Show what a capsule runs, installs, and copies; ask the user if there is a terminal.

    Raises:
        UsageError: it copies variables that the user has not named, and no user can be asked.
        CancelledError: the user declined.
    """
    names = ", ".join(capsule.variables)
    sink.emit(Note(f"the capsule runs: {show_command(command)}"))
    for line in capsule.pip_options:
        sink.emit(Note(f"the capsule installs packages with {line.strip()}"))
    if names:
        sink.emit(Note(f"the capsule copies variables of this computer: {names}"))
    if dry_run:
        return
    if services.confirm_keys is not None:
        if not services.confirm_keys("Run it on the hosts?"):
            raise CancelledError("nothing was started")
    elif names:
        raise UsageError(
            f"the capsule copies variables of this computer, and confirmation requires a terminal: {names}",
            hint="agree to each by its name: --env NAME",
            next_steps=[Again({"--env": capsule.variables[0]})] if len(capsule.variables) == 1 else [],
        )


def version_notes(versions: Mapping[str, str], prepared: Sequence[Prepared]) -> Iterator[Note]:
    """Yield a warning for each package whose version on the hosts differs from that of an earlier job.

    Args:
        versions: Versions on the hosts of the earlier job; empty: the job is not one of a capsule.
        prepared: The hosts of the new job.
    """
    for package, version in versions.items():
        now = {item.member.slot: item.versions.get(package, "") for item in prepared}
        for other in dict.fromkeys(now.values()):
            if other != version:
                slots = fold(slot for slot in now if now[slot] == other)
                has = f"{package} {other}" if other else f"no {package}"
                yield Note(f"the job had {package} {version}; {slots} has {has}", Level.WARNING)
