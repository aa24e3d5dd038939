"""`fleet rerun`, and what `fleet train` does for a job that it repeats."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fleet.cli.application import WithJobs, command, list_options, root_command
from fleet.cli.command_line import CommandLine, Word, parse
from fleet.cli.options import FLEET, JOB, OUTPUT, SAME_JOB, Output, one_job, option
from fleet.cli.runtime import failures_of, make_services, resolve_fleet
from fleet.errors import UsageError
from fleet.state import TrainCommand
from fleet.steps import Step

if TYPE_CHECKING:
    from fleet.jobs.capsules import Capsule
    from fleet.reports.capsule import Manifest


_ONE_RUN = ("--fleet", "--name", "--resume", "--output", "--detach", "--dry-run", "--pull", "--after")


REPEATED = "fleet.repeated"
"""Key of the job that a command repeats, in the context of the command."""


class Repeated(NamedTuple):
    """The job of a capsule.

    Attributes:
        command: The command that repeats it.
        versions: Versions of Python and packages on its hosts.
        capsule: What it does with this computer.
    """

    command: TrainCommand
    versions: Mapping[str, str]
    capsule: Capsule


def remembered(typed: CommandLine, name: str) -> TrainCommand:
    """Return what is stored about a command: all but the options that concern only one run."""
    kept = typed.changed(dict.fromkeys(_ONE_RUN))
    options = kept.step().words[1:]
    end = options.index("--") if kept.program else len(options)
    return TrainCommand(str(Path.cwd()), options[:end], kept.program, name)


def find_remembered(job: str, fleet: str) -> tuple[str, TrainCommand]:
    """Return a job and the command that started it; a failure is raised as `CommandFailed`."""
    from fleet.jobs.resume import find_command
    from fleet.reports.page import CAPSULE_SUFFIX

    with failures_of(fleet):
        if job.endswith(CAPSULE_SUFFIX):
            raise UsageError(f"{job!r} is a capsule, not a job", next_steps=[Step("train", "--from-capsule", job)])
        return find_command(job, make_services().store.need(fleet)[0], fleet)


def run_capsule(typed: CommandLine, file: str, fleet: str) -> None:
    """Repeat the job of a capsule, with the further options of a command line.

    Raises:
        CommandFailed: the capsule is damaged, or the command line names a program.
    """
    from fleet.jobs.capsules import Capsule, check_repetition, located, variables_in
    from fleet.reports.capsule import unpack_capsule

    with tempfile.TemporaryDirectory(prefix="fleet-capsule-") as name:
        source = Path(name) / "source"
        source.mkdir()
        with failures_of(fleet):
            conflict = next((word.text[0] for word in typed.words if _names_program(word)), None)
            if conflict or typed.program:
                raise UsageError(
                    f"--from-capsule excludes {conflict or 'arguments after --'}",
                    cause="the capsule has the script, its arguments, and its files",
                    next_steps=[Step("train", "--from-capsule", file)],
                )
            manifest = unpack_capsule(Path(file).expanduser(), source)
            words = split_train(manifest.options)
            check_repetition(words, source)
            mine = variables_in([(word.option, word.text) for word in typed.words])
            words = [word for word in words if not mine & variables_in([word])]
            options = [*located(words, source), *_requirements(manifest, Path(name))]
        indexes = [line for line in manifest.requirements.splitlines() if line.lstrip().startswith("-")]
        capsule = Capsule(tuple(sorted(variables_in(words))), tuple(indexes))
        further = typed.changed({"--from-capsule": None, "--fleet": None})
        options += [part for word in further.words for part in word.text]
        command = TrainCommand(str(Path.cwd()), tuple(options), tuple(manifest.program))
        about = Repeated(remembered(typed, ""), manifest.versions, capsule)
        run_again(command, fleet, [], about)


def _names_program(word: Word) -> bool:
    return word.is_operand or word.option in ("-m", "--workdir", "--data", "--requirements", "--no-requirements")


def _requirements(manifest: Manifest, directory: Path) -> list[str]:
    """Write the requirements of a capsule; return the option that names them.

    Raises:
        UsageError: they name a file of this computer.
    """
    from train.script.requirements import read_requirements

    if not manifest.requirements.strip():
        return ["--no-requirements"]
    constraints, requirements = directory / "constraints.txt", directory / "requirements.txt"
    for file, text in ((constraints, manifest.constraints), (requirements, manifest.requirements)):
        file.write_text(text)
        read_requirements(file, includes=False)
    requirements.write_text(f"-c {constraints.name}\n{manifest.requirements}")
    return ["--requirements", str(requirements)]


def split_train(options: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Return the words of a `fleet train`: the name of the option, empty for an operand, and the arguments."""
    typed = parse("train", options, list_options(root_command("train").commands["train"]))
    return [(word.option, word.text) for word in typed.words]


def run_again(command: TrainCommand, fleet: str, options: Sequence[str], repeated: Repeated | None = None) -> None:
    """Run a command again in its directory, with further options.

    Args:
        command: The command.
        fleet: Name of the fleet.
        options: The options.
        repeated: The job of a capsule that it repeats.
    """
    os.chdir(command.directory)
    train = root_command("train").commands["train"]
    program = ["--", *command.program] if command.program else []
    arguments = [*command.options, *options, "--fleet", fleet, *program]
    with train.make_context("train", arguments) as context:
        context.meta[REPEATED] = repeated
        train.invoke(context)


@command("Jobs", WithJobs)
def rerun(
    job: str = JOB,
    name: str = option("", "--name", "Name of the new job.", "NAME", shown="none"),
    detach: bool = option(False, "--detach", "Return as soon as the job is running.", short="-d"),
    dry_run: bool = option(False, "--dry-run", "Show the TF_CONFIG and the command of each task; start nothing."),
    same_job: str = SAME_JOB,
    fleet: str = FLEET,
    output: Output = OUTPUT,
) -> None:
    """Run a job again with the current files of its directory.

    Repeats the fleet train that started the job, in the same directory, with the same options and arguments. Secrets
    are not stored: their variables must be set.

    Examples:
      fleet rerun
      fleet rerun baseline --name baseline-2
    """
    fleet = resolve_fleet(fleet)
    _, command = find_remembered(one_job(job, same_job), fleet)
    options = ["--output", output.value, *(["--name", name] if name else [])]
    options += [flag for flag, is_set in (("--detach", detach), ("--dry-run", dry_run)) if is_set]
    run_again(command, fleet, options)
