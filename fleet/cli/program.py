"""The program that a command line names: a script, a module, or any command after ``--``."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from fleet.cli.application import Grouped
from fleet.cli.options import Duration
from fleet.cli.runtime import resolve_fleet
from provision.durations import seconds

LOCAL_FIRST = "--local-first"
SMOKE_TEST_S = Duration(60)  # how long --local-first runs a script
AFTER_DASHES = "fleet.after_dashes"  # key of the words after --, in the context of a command


class WithProgram(Grouped):
    """A command that takes a script, with its arguments after ``--``; without a script, any program."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the words after ``--`` in the context."""
        at = args.index("--") if "--" in args else len(args)
        ctx.meta[AFTER_DASHES] = tuple(args[at + 1 :])
        return super().parse_args(ctx, args[:at])


class WithTrial(WithProgram):
    """A command that takes ``--local-first``, with or without a duration."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Add the default duration to the option if it has none."""
        if LOCAL_FIRST in args[: args.index("--") if "--" in args else len(args)]:
            at = args.index(LOCAL_FIRST)
            if not (args[at + 1 : at + 2] and is_duration(args[at + 1])):
                args = [*args[: at + 1], f"{SMOKE_TEST_S:g}", *args[at + 1 :]]
        return super().parse_args(ctx, args)


def is_duration(word: str) -> bool:
    """Return whether a word is a duration, such as 90s."""
    try:
        seconds(word)
    except ValueError:
        return False
    return True


def program_fields(ctx: typer.Context) -> dict[str, Any]:
    """Return the fields of a ProgramRequest, from the options that `train` and `check` share.

    Raises:
        UsageError: a variable or a secret is invalid.
    """
    from fleet.jobs.variables import environment, secrets, withheld

    given = ctx.params
    env_files, secret = given["env_file"] or (), given["secret"] or ()
    return {
        **_program(ctx),
        "fleet": resolve_fleet(given["fleet"]),
        "workdir": given["workdir"],
        "data": tuple(given["data"] or ()),
        "requirements": "" if given["no_requirements"] else given["requirements"],
        "adapt": not given["no_adapt"],
        "env": environment(given["env"] or (), env_files, os.environ),
        "secrets": secrets(secret, os.environ),
        "withheld": withheld(secret, env_files),
    }


def _program(ctx: typer.Context) -> dict[str, Any]:
    after_dashes: tuple[str, ...] = ctx.meta.get(AFTER_DASHES, ())
    script, module = ctx.params["script"], ctx.params["module"]
    before = (*([script] if script else []), *(ctx.params["arguments"] or ()))
    if module:
        return {"module": module, "arguments": (*before, *after_dashes)}
    if before:
        return {"script": before[0], "arguments": (*before[1:], *after_dashes)}
    return {"command": after_dashes}


Script = Annotated[
    str,
    typer.Argument(
        metavar="[SCRIPT]",
        help="Training script: task.py, task.R, or a directory with __main__.py.",
        show_default=False,
    ),
]


Arguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="-- ARGS", help="Arguments passed to SCRIPT; without SCRIPT, the command to run."),
]


Module = Annotated[
    str,
    typer.Option("-m", metavar="MODULE", help="Run a module (python -m), e.g. trainer.task.", show_default=False),
]


Workdir = Annotated[
    str,
    typer.Option(
        "--workdir",
        metavar="DIR",
        help="Directory to upload.  [default: SCRIPT's directory, or the current one]",
        show_default=False,
    ),
]


Data = Annotated[
    list[str] | None,
    typer.Option(
        "--data",
        metavar="SRC[:DEST]",
        help="Additional data to upload, available at DEST in the working directory. Repeatable.",
    ),
]


RequirementsFile = Annotated[
    str | None,
    typer.Option(
        "--requirements",
        metavar="FILE",
        help="Requirements file to install first.  [default: requirements.txt next to SCRIPT]",
    ),
]


NoRequirements = Annotated[bool, typer.Option("--no-requirements", help="Do not install a requirements file.")]


NoAdapt = Annotated[
    bool, typer.Option("--no-adapt", help="Do not adapt older scripts to current TensorFlow; see docs/scripts.md.")
]


VariableFiles = Annotated[
    list[str] | None,
    typer.Option("--env-file", metavar="FILE", help="File of environment variables, one K=V per line. Repeatable."),
]


Secrets = Annotated[
    list[str] | None,
    typer.Option(
        "--secret", metavar="K[=@FILE]", help="Set a secret variable from this environment or a file. Repeatable."
    ),
]


Variables = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        "-e",
        metavar="K[=V]",
        help="Set an environment variable; K alone copies its current value. Repeatable.",
    ),
]
