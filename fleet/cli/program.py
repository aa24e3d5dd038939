"""The program that a command line names: a script, a module, or any command after ``--``."""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import typer

from fleet.cli.application import AFTER_DASHES, HELP_ALL, WithProgram, list_options
from fleet.cli.command_line import explain_mistake, parse
from fleet.cli.options import CHECKPOINTS, FAILURES, FLEET, TASKS, TIMEOUTS, Duration, argument, option
from fleet.cli.runtime import read_settings, resolve_fleet
from fleet.errors import UsageError
from fleet.jobs.program import ProgramRequest, environment, secrets, withheld
from fleet.steps import Step
from provision.quantities import read_duration

RESUME, AFTER = "--resume", "--after"
TYPED = "fleet.typed"  # key of the command line, in the context of a command
NEWEST = "-1"
_JOB = re.compile(r"-[0-9]+|[a-z0-9][a-z0-9-]*")
LOCAL_FIRST = "--local-first"
SMOKE_TEST_S = Duration(60)  # how long --local-first runs a script


def _is_job(word: str) -> bool:
    """Return whether a word after ``--resume`` or ``--after`` is a job, not the script."""
    return bool(_JOB.fullmatch(word)) and not Path(word).exists()


class WithResume(WithProgram):
    """A command that takes ``--resume`` and ``--after``, and options from fleet.toml."""

    optional_values = ((RESUME, NEWEST, _is_job), (AFTER, NEWEST, _is_job))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Add the options of fleet.toml; keep what was typed."""
        args = self.complete(args)
        ctx.meta[TYPED] = parse("train", args, list_options(self))
        return super().parse_args(ctx, [*self._read_defaults(ctx, args), *args])

    def _read_defaults(self, ctx: Any, typed: list[str]) -> list[str]:
        """Return the table [train] of fleet.toml as options.

        Raises:
            UsageError: a key is none of the options about failures, timeouts, checkpoints, and tasks, or a value is
                invalid.
        """
        if ctx.resilient_parsing or not {"-h", "--help"}.isdisjoint(typed):  # an error would hide the result
            return []
        settings, words = read_settings(), list[str]()
        groups = {FAILURES, TIMEOUTS, CHECKPOINTS, TASKS}
        grouped = [param for param in self.params if getattr(param, "rich_help_panel", None) in groups]
        params = {param.opts[0].lstrip("-"): param for param in grouped if param.opts[0] != RESUME}
        for key, value in settings.train.items():
            where = f"{settings.file}: {key[:60]} in [train]"
            if key not in params:
                raise UsageError(f"{where} is not one of its keys", cause=f"valid keys: {', '.join(params)}")
            is_flag = getattr(params[key], "is_flag", False)
            if not isinstance(value, bool if is_flag else (str, int, float)):
                kind = "true or false" if is_flag else "a text or a number"
                raise UsageError(f"{where} must be {kind}", hint="correct the value")
            given = [f"--{key}"] if value is True else [] if is_flag else [f"--{key}", str(value)]
            try:
                super().parse_args(type(ctx)(self, info_name=ctx.info_name), given)
            except Exception as error:
                if not hasattr(error, "format_message"):  # not an error of Typer
                    raise
                message = explain_mistake(error.format_message(), "train", None).message
                raise UsageError(f"{where}: {message}", next_steps=[Step("train", HELP_ALL)]) from None
            words += given
        return words


def is_duration(word: str) -> bool:
    """Return whether a word is a duration, such as 90s."""
    try:
        read_duration(word)
    except ValueError:
        return False
    return True


class WithTrial(WithProgram):
    """A command that takes ``--local-first``."""

    optional_values = ((LOCAL_FIRST, f"{SMOKE_TEST_S:g}", is_duration),)


NO_ADAPT: bool = option(False, "--no-adapt", "Do not adapt older scripts to current TensorFlow; see docs/scripts.md.")
ENV: list[str] | None = option(
    None, "--env", "Set an environment variable; K alone copies its current value. Repeatable.", "K[=V]", short="-e"
)


class ProgramOptions(NamedTuple):
    """The options of `train` and `check` that name a program."""

    script: str = argument("", "[SCRIPT]", "Training script: task.py, task.R, or a directory with __main__.py.")
    arguments: list[str] | None = argument(
        None, "-- ARGS", "Arguments of SCRIPT, or a command; {rank} etc.: see docs/scripts.md."
    )
    module: str = option("", "-m", "Run a module (python -m), e.g. trainer.task.", "MODULE")
    workdir: str = option(
        "", "--workdir", "Directory to upload.", "DIR", shown="SCRIPT's directory, or the current one"
    )
    data: list[str] | None = option(
        None,
        "--data",
        "Additional data to upload, available at DEST in the working directory. Repeatable.",
        "SRC[:DEST]",
    )
    requirements: str | None = option(
        None,
        "--requirements",
        "Requirements file or pyproject.toml to install first.",
        "FILE",
        shown="pyproject.toml or requirements.txt next to SCRIPT",
    )
    no_requirements: bool = option(False, "--no-requirements", "Do not install a requirements file.", rare=True)
    no_adapt: bool = NO_ADAPT
    env: list[str] | None = ENV
    env_file: list[str] | None = option(
        None, "--env-file", "File of environment variables, one K=V per line. Repeatable.", "FILE", rare=True
    )
    secret: list[str] | None = option(
        None, "--secret", "Set a secret variable from this environment or a file. Repeatable.", "K[=@FILE]"
    )
    fleet: str = FLEET


def program_request(ctx: typer.Context, options: ProgramOptions) -> ProgramRequest:
    """Return the program that the options name.

    Raises:
        UsageError: a variable or a secret is invalid.
    """
    after_dashes: tuple[str, ...] = ctx.meta.get(AFTER_DASHES, ())
    words = (*([options.script] if options.script else []), *(options.arguments or ()))
    named = words[0] if words and not options.module else ""
    has_script = bool(named or options.module)
    return ProgramRequest(
        script=named,
        module=options.module,
        command=() if has_script else after_dashes,
        arguments=(*(words[1:] if named else words), *after_dashes) if has_script else (),
        fleet=resolve_fleet(options.fleet),
        workdir=options.workdir,
        data=tuple(options.data or ()),
        requirements="" if options.no_requirements else options.requirements,
        adapt=not options.no_adapt,
        env=environment(options.env or (), options.env_file or (), os.environ),
        secrets=secrets(options.secret or (), os.environ),
        withheld=withheld(options.secret or (), options.env_file or ()),
    )


def with_program(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of ProgramOptions; it takes them as one argument, `program`.

    They come first, except --fleet, which comes before --output as in the help of all commands.
    """
    options = get_type_hints(ProgramOptions)
    others = inspect.signature(command, eval_str=True).parameters
    kind, defaults = inspect.Parameter.KEYWORD_ONLY, ProgramOptions()
    merged = {
        name: inspect.Parameter(name, kind, default=getattr(defaults, name), annotation=hint)
        for name, hint in options.items()
    }
    merged |= {name: parameter.replace(kind=kind) for name, parameter in others.items() if name != "program"}
    names = ["ctx", *(name for name in merged if name not in ("ctx", "fleet"))]
    names.insert(names.index("output"), "fleet")

    @functools.wraps(command)
    def call(**given: Any) -> None:
        command(program=ProgramOptions(*(given.pop(name) for name in options)), **given)

    call.__signature__ = inspect.Signature([merged[name] for name in names])  # type: ignore[attr-defined]
    return call
