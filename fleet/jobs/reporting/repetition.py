"""Decide which command repeats a job from a copy of what was uploaded. Pure but for files of variables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from fleet.errors import CancelledError, FleetError, UsageError, fold
from fleet.events import Level, Note, Sink
from fleet.jobs.program import environment
from fleet.remote.quoting import show_command
from fleet.services import Services
from fleet.state import TrainCommand
from fleet.steps import Again
from train.agent.files.paths import is_inner_path
from train.agent.protocol.records import Prepared

_DROPPED = ("--requirements", "--workdir")
_NAMED = ("--env", "--secret")
_FORBIDDEN = (
    "--env-file", "--requirements", "--no-requirements", "--pull", "--fleet", "--output", "--resume",
    "--from-capsule",
)  # fmt: skip
_LONGEST = 200
_FLAGS = ("--no-requirements",)


@dataclass(frozen=True)
class Repetition:
    """The command that repeats a job.

    Attributes:
        options: Options and SCRIPT; paths are relative to the uploaded files.
        notes: Sentences on what cannot be repeated.
    """

    options: tuple[str, ...]
    notes: tuple[str, ...] = ()


Words = Sequence[tuple[str, tuple[str, ...]]]
"""Words of a command line: the name of the option, or an empty string for an operand, and the arguments as typed."""


def repeat(command: TrainCommand, words: Words) -> Repetition:
    """Return the command that repeats a job in a directory with the uploaded files.

    Values of environment variables are replaced by their names: they are copied when the command is repeated.

    Args:
        command: The command that started the job.
        words: Its words.
    """
    values = [(option, _value(option, text)) for option, text in words]
    is_module = any(option in ("-m", "--module") for option, _ in values)
    here = Path(command.directory)
    workdir = next((here / Path(value).expanduser() for option, value in values if option == "--workdir"), None)
    script = next((value for option, value in values if not option), "") if not is_module else ""
    path = here / Path(script).expanduser()
    root = workdir or (_directory_of(path) if script else here)
    options: list[str] = []
    notes: list[str] = []
    for (option, value), (_, text) in zip(values, words, strict=True):
        if option in (*_DROPPED, *_FLAGS):
            continue
        if option == "--env-file":
            options += _names_in(value, here, notes)
        elif option in _NAMED:
            options += [option, value.partition("=")[0]]
        elif option == "--data":
            destination = _destination(value, here)
            options += ["--data", f"{destination}:{destination}"] if destination else []
        elif not option and value == script and script:
            options.append(_relative(path, root))
            script = ""
        else:
            options += text
    return Repetition((*options, "--workdir", "."), tuple(notes))


def _value(option: str, text: tuple[str, ...]) -> str:
    if len(text) > 1 or not option:
        return text[-1]
    name, sign, value = text[0].partition("=")
    return value if sign and name.startswith("--") else text[0][2:]


def _directory_of(script: Path) -> Path:
    return script if script.is_dir() else script.parent


def _relative(path: Path, root: Path) -> str:
    """Return the script relative to the uploaded directory; its name if it is in no other one."""
    for part, base in ((path, root), (path.resolve().parent / path.name, root.resolve())):
        if part.is_relative_to(base):
            return part.relative_to(base).as_posix()
    return path.name


def _names_in(file: str, here: Path, notes: list[str]) -> list[str]:
    try:
        names = environment((), (str(here / Path(file).expanduser()),), {})
    except FleetError as error:
        notes.append(f"the variables of --env-file {file} are left out: {error.message}")
        return []
    return [word for name in names for word in ("--env", name)]


def _destination(text: str, here: Path) -> str:
    """Return the destination of ``--data``, as `parse_data` decides; empty: the uploaded directory itself."""
    source, separator, destination = text.rpartition(":")
    if not separator or (here / Path(text).expanduser()).exists():
        source, destination = text, ""
    path = PurePosixPath(destination)
    if not destination or destination.endswith("/"):
        path = path / Path(source).name
    return "" if str(path) == "." else str(path)


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


@dataclass(frozen=True)
class Capsule:
    """A capsule from which a job comes.

    Attributes:
        variables: Names of variables of this computer that its options copy, and that the user has not named.
        pip_options: Options in its requirements, such as the package index.
    """

    variables: tuple[str, ...] = ()
    pip_options: tuple[str, ...] = ()


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


def repetition_notes(versions: Mapping[str, str], prepared: Sequence[Prepared]) -> Iterator[Note]:
    """Yield what the user should know before the job of a capsule starts.

    Args:
        versions: Versions on the hosts of the earlier job; empty: the job is not one of a capsule.
        prepared: The hosts of the new job.
    """
    for text in version_changes(versions, {item.member.slot: item.versions for item in prepared}):
        yield Note(text, Level.WARNING)


def version_changes(before: Mapping[str, str], now: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """Yield a sentence for each package whose version on the hosts differs from that of an earlier job.

    Args:
        before: Versions by package.
        now: Versions by package, by slot.
    """
    for package, version in before.items():
        differing: dict[str, list[str]] = {}
        for slot, versions in now.items():
            if versions.get(package, "") != version:
                differing.setdefault(versions.get(package, ""), []).append(slot)
        for other, slots in differing.items():
            has = f"{package} {other}" if other else f"no {package}"
            yield f"the job had {package} {version}; {fold(slots)} has {has}"
