"""The command `fleet ssh`: its options, and the request that they make."""

from __future__ import annotations

import re
import sys
from typing import Annotated, Any

import typer

from fleet.cli.completion import complete_worker
from fleet.cli.options import Fleet, Output, argument, option
from fleet.cli.program import AFTER_DASHES, WithProgram
from fleet.cli.runtime import CommandEnded, make_services, resolve_fleet, run_command
from fleet.errors import UsageError
from fleet.steps import Step

_JOB = "--job"
_NEWEST = "-1"
_NOT_A_JOB = re.compile(r"-(?![1-9]).*|[0-9]+|(chief|worker|ps|evaluator)-[0-9]+", re.ASCII)


class WithJob(WithProgram):
    """A command that takes ``--job``, with or without a job."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Add the newest job to the option if no job follows it."""
        return super().parse_args(ctx, fill_in_job(args))


def fill_in_job(words: list[str]) -> list[str]:
    """Return the words of a command line; the newest job follows ``--job`` if no job does."""
    end = words.index("--") if "--" in words else len(words)
    if _JOB not in words[:end]:
        return words
    at = words.index(_JOB) + 1
    is_given = at < end and not _NOT_A_JOB.fullmatch(words[at])
    return words if is_given else [*words[:at], _NEWEST, *words[at:]]


def ssh(
    ctx: typer.Context,
    worker: Annotated[
        str,
        argument(
            "[WORKER]",
            "Host: 1 or worker-1; with --job a task.  [default: the first]",
            autocompletion=complete_worker,
        ),
    ] = "",
    command: Annotated[list[str] | None, argument("-- CMD", "Command to run instead of a shell.")] = None,
    job: Annotated[
        str,
        option(
            _JOB,
            "Use the directory and environment of this job's task; without JOB those of the newest job.",
            "[JOB]",
            default="the login directory",
        ),
    ] = "",
    fleet: Fleet = "",
) -> None:
    """Open a shell on a host, or run one command.

    Passes the size of the terminal, all keys, and the exit code. ~. at the start of a line ends the session.

    Examples:
      fleet ssh worker-1
      fleet ssh 0 --job -- ls checkpoints
    """
    from fleet.commands.fleets import ssh as verb

    words = ctx.meta.get(AFTER_DASHES, ())
    if command:
        raise UsageError(
            f"unexpected argument {command[0]!r}",
            hint="a command goes after --",
            next_steps=[Step("ssh", worker, "--", *command, *words)],
        )
    input_terminal, output_terminal = sys.stdin.isatty(), sys.stdout.isatty()
    request = verb.SshRequest(
        resolve_fleet(fleet), worker, words, job, input_terminal, input_terminal and output_terminal
    )
    codes: list[int] = []
    run_command(
        request.fleet, Output.LINES, lambda sink: codes.append(verb.run(request, make_services(sink), sink)), raw=True
    )
    raise CommandEnded(codes[0])
