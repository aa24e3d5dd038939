"""Repeat the `fleet train` that started a job."""

from __future__ import annotations

import os
from collections.abc import Sequence

from fleet.cli.application import root_command
from fleet.cli.command_line import CommandLine
from fleet.cli.runtime import failures_of, make_services
from fleet.state import TrainCommand

_ONE_RUN = ("--fleet", "--name", "--resume", "--output", "--detach", "--dry-run", "--pull")


def remembered(typed: CommandLine, name: str) -> TrainCommand:
    """Return what is stored about a command: all but the options that concern only one run."""
    kept = typed.changed(dict.fromkeys(_ONE_RUN))
    options = kept.step().words[1:]
    end = options.index("--") if kept.program else len(options)
    return TrainCommand(os.getcwd(), options[:end], kept.program, name)  # noqa: PTH109


def find_remembered(job: str, fleet: str) -> tuple[str, TrainCommand]:
    """Return a job and the command that started it; a failure is raised as `CommandFailed`."""
    from fleet.jobs.resume import find_command

    with failures_of(fleet):
        directory, _ = make_services().store.need(fleet)
        return find_command(job, directory, fleet)


def run_again(command: TrainCommand, fleet: str, options: Sequence[str]) -> None:
    """Run a command again in its directory, with further options."""
    os.chdir(command.directory)
    train = root_command().commands["train"]
    program = ["--", *command.program] if command.program else []
    arguments = [*command.options, *options, "--fleet", fleet, *program]
    with train.make_context("train", arguments) as context:
        train.invoke(context)
