"""The Typer application, and the help of its commands."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

from fleet.cli.command_line import Option, separate_jobs

_CONTEXT = {"help_option_names": ["-h", "--help"]}
_EXAMPLES = "\n\nExamples:\n"


class CommandGroups(TyperGroup):
    """The program, whose help lists its commands in groups, each under the panel of the command."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write one section for each panel."""
        commands = [self.commands[name] for name in self.list_commands(ctx)]
        width = max(len(command.name or "") for command in commands)
        sections: dict[str, list[tuple[str, str]]] = {}
        for command in commands:
            summary = command.get_short_help_str(formatter.width)
            panel = str(getattr(command, "rich_help_panel", "Commands"))
            sections.setdefault(panel, []).append(((command.name or "").ljust(width), summary))
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


def register(panel: str, command: Callable[..., None], kind: type[TyperCommand] | None = None) -> None:
    """Add a command to the program.

    Args:
        panel: Its group in the help.
        command: Its docstring is its help; lines after ``Examples:`` are not wrapped.
        kind: Its class; None: Typer's own.
    """
    help_text = inspect.getdoc(command) or ""
    name = command.__name__.strip("_").replace("_", "-")
    with_examples = help_text.replace(_EXAMPLES, f"\n\n\b{_EXAMPLES[1:]}")
    app.command(name, cls=kind, help=with_examples, rich_help_panel=panel, context_settings=_CONTEXT)(command)


@functools.cache
def root_command() -> TyperGroup:
    """Return the command whose subcommands are those of `app`, all of which must be registered."""
    return cast("TyperGroup", typer.main.get_command(app))


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


class WithJobs(TyperCommand):
    """A command whose arguments are jobs: ``-1`` is one of them, not an option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Move arguments such as ``-1`` behind the options."""
        return super().parse_args(ctx, separate_jobs(args, list_options(self)))


class Grouped(TyperCommand):
    """A command whose help shows its options in groups, each under the panel that the option names."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, options of no panel, then each panel."""
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                plain = "Arguments" if param.param_type_name == "argument" else "Options"
                groups.setdefault(getattr(param, "rich_help_panel", None) or plain, []).append(record)
        for title, records in groups.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
