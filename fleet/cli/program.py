"""The program that a command line names: a script, a module, or any command after ``--``."""

from __future__ import annotations

from typing import Any, NamedTuple

import typer

from fleet.cli.application import Grouped
from fleet.durations import seconds

LOCAL_FIRST = "--local-first"


AFTER_DASHES = "fleet.behind"  # what stands behind --, in the context of a command


class WithProgram(Grouped):
    """A command that takes a script, whose arguments stand behind ``--``; without a script, any program does."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put aside what stands behind ``--``."""
        at = args.index("--") if "--" in args else len(args)
        ctx.meta[AFTER_DASHES] = tuple(args[at + 1 :])
        return super().parse_args(ctx, args[:at])


class WithTrial(WithProgram):
    """A command that takes ``--local-first``, alone or with a length of time behind it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give the option its usual time where it has none."""
        if LOCAL_FIRST in args[: args.index("--") if "--" in args else len(args)]:
            at = args.index(LOCAL_FIRST)
            if not (args[at + 1 : at + 2] and is_duration(args[at + 1])):
                args = [*args[: at + 1], "60", *args[at + 1 :]]
        return super().parse_args(ctx, args)


def is_duration(word: str) -> bool:
    """Return whether a word is a duration, such as 90s."""
    try:
        seconds(word)
    except ValueError:
        return False
    return True


class Words(NamedTuple):
    """The program on a command line; at most one of `script`, `module` and `command` is given."""

    script: str
    module: str
    command: tuple[str, ...]
    arguments: tuple[str, ...]


def find_words(ctx: typer.Context, script: str, arguments: list[str] | None, module: str) -> Words:
    """Return the program that a command line names, with its arguments."""
    behind: tuple[str, ...] = ctx.meta.get(AFTER_DASHES, ())
    before = (*([script] if script else []), *(arguments or ()))
    if module:
        return Words("", module, (), (*before, *behind))
    if before:
        return Words(before[0], "", (), (*before[1:], *behind))
    return Words("", "", behind, ())
