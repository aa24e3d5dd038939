"""The Typer application, its commands, and the groups of its help."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar, cast

import typer
from typer.core import TyperCommand, TyperGroup

from fleet.cli.command_line import Option, separate_jobs

F = TypeVar("F", bound=Callable[..., None])

COMMANDS = {
    "demo": "demo",
    "doctor": "fleets.doctor",
    "up": "fleets.up",
    "bake": "fleets.bake",
    "status": "fleets.status",
    "extend": "fleets.extend",
    "down": "fleets.down",
    "gc": "fleets.gc",
    "ssh": "fleets.ssh",
    "exec": "fleets.exec",
    "push": "fleets.push",
    "ssh-config": "fleets.ssh_config",
    "inventory": "fleets.ssh_config",
    "lint": "jobs.lint",
    "check": "jobs.check",
    "train": "jobs.train",
    "logs": "jobs.logs",
    "stop": "jobs.stop",
    "rerun": "rerun",
    "agent": "jobs.agent",
    "jobs": "jobs.jobs",
    "pull": "jobs.pull",
    "tensorboard": "jobs.tensorboard",
    "report": "jobs.report",
    "compare": "jobs.jobs",
}
"""The module of each command below fleet.cli, in the order of the help."""

_CONTEXT = {"help_option_names": ["-h", "--help"]}
_EXAMPLES = "\n\nExamples:\n"


class CommandGroups(TyperGroup):
    """The program, whose help lists its commands in groups, each under the panel of the command."""

    commands: dict[str, Any]

    def format_commands(self, _ctx: Any, formatter: Any) -> None:
        """Write one section for each panel."""
        width = max(map(len, self.commands))
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            summary = (command.help or "").partition("\n")[0]
            sections.setdefault(str(command.rich_help_panel), []).append((name.ljust(width), summary))
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


app = typer.Typer(
    name="fleet",
    cls=CommandGroups,
    help="Run a TensorFlow training script as a multi-worker job over plain SSH.",
    rich_markup_mode=None,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings=_CONTEXT,
    epilog="Start here: fleet demo. Exit codes: 0 success, 1 bug, 2 usage, 10 credentials, 11 quota, 12 capacity, "
    "13 unreachable, 14 not ready, 100 job failed, 101 job not finished, 102 not found, 103 cancelled.",
)


def _print_version(is_set: bool) -> None:
    if is_set:
        from fleet import __version__

        typer.echo(f"fleet {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: bool = typer.Option(
        False, "--version", "-V", callback=_print_version, is_eager=True, help="Show the version."
    ),
) -> None:
    pass


def list_options(command: Any) -> list[Option]:
    """Return the options that a command takes."""
    return [
        Option(
            (*sorted(param.opts, key=lambda name: name[:2] != "--"), *param.secondary_opts),
            not getattr(param, "is_flag", False),
        )
        for param in command.params
        if param.param_type_name == "option"
    ]


def _list_arguments(command: Any) -> list[Any]:
    return [param for param in command.params if param.param_type_name == "argument"]


AFTER_DASHES = "fleet.after_dashes"  # key of the words after --, in the context of a command
HELP_ALL = "--help-all"


class Grouped(TyperCommand):
    """A command whose help shows its options in groups, each under the panel that the option names.

    Options that few users need are hidden, and shown by ``--help-all``.
    """

    optional_values: tuple[tuple[str, str, Callable[[str], bool]], ...] = ()
    """Options whose value may be left out: the value then, and whether a word that follows is a value."""

    def complete(self, args: list[str]) -> list[str]:
        """Return the arguments with the values that are left out."""
        for name, default, is_value in self.optional_values:
            end = args.index("--") if "--" in args else len(args)
            at = args.index(name) + 1 if name in args[:end] else 0
            if at and not (at < end and is_value(args[at])):
                args = [*args[:at], default, *args[at:]]
        return args

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Show all options if the user asks for them."""
        if HELP_ALL in args[: args.index("--") if "--" in args else len(args)]:
            hidden: list[Any] = [param for param in self.get_params(ctx) if getattr(param, "hidden", False)]
            for param in hidden:
                param.hidden = False
            typer.echo(ctx.get_help())
            for param in hidden:
                param.hidden = True
            ctx.exit()
        return super().parse_args(ctx, self.complete(args))

    def collect_usage_pieces(self, _ctx: Any) -> list[str]:
        """Return the arguments as they are declared; versions of Typer add different brackets to them."""
        pieces = ["[OPTIONS]"]
        for param in _list_arguments(self):
            pieces.append(param.metavar if param.required or param.metavar[0] == "[" else f"[{param.metavar}]")
        return pieces

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, options of no panel, then each panel."""
        required = {True: "  [required]", False: ""}
        arguments = [(param.metavar, param.help + required[param.required]) for param in _list_arguments(self)]
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": arguments, "Options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if param.param_type_name == "option" else None
            if record is not None:
                groups.setdefault(getattr(param, "rich_help_panel", None) or "Options", []).append(record)
        if any(getattr(param, "hidden", False) for param in self.get_params(ctx)):
            groups["Options"].append((HELP_ALL, "Show all options."))
        for title, records in groups.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class WithProgram(Grouped):
    """A command that takes a script, with its arguments after ``--``; without a script, any program."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the words after ``--`` in the context."""
        at = args.index("--") if "--" in args else len(args)
        ctx.meta[AFTER_DASHES] = tuple(args[at + 1 :])
        return super().parse_args(ctx, args[:at])


class WithJobs(Grouped):
    """A command whose arguments are jobs: ``-1`` is one of them, not an option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Move arguments such as ``-1`` behind the options."""
        return super().parse_args(ctx, separate_jobs(args, list_options(self)))


@functools.cache
def root_command(*names: str) -> CommandGroups:
    """Return the program with some commands; without names, with all.

    Only the modules of these commands are imported: all of them take about three times as long as one.
    """
    for name in names or COMMANDS:
        import_module(f"fleet.cli.{COMMANDS[name]}")
    program = cast("CommandGroups", typer.main.get_command(app))
    program.commands = {name: program.commands[name] for name in names or COMMANDS}
    return program


def command(panel: str, kind: type[Grouped] = Grouped) -> Callable[[F], F]:
    """Add a function to the program, as the command of its name.

    Args:
        panel: Its group in the help of the program.
        kind: Its class.
    """

    def add(function: F) -> F:
        name = function.__name__.strip("_").replace("_", "-")
        text = (inspect.getdoc(function) or "").replace(_EXAMPLES, f"\n\n\b{_EXAMPLES[1:]}")
        app.command(name, cls=kind, help=text, rich_help_panel=panel, context_settings=_CONTEXT)(function)
        return function

    return add
