"""The command `fleet exec`: its options, and the request that they make."""

from __future__ import annotations

from typing import Annotated

import typer

from fleet.cli.options import Fleet, HostsOption, Output, OutputOption, argument
from fleet.cli.program import AFTER_DASHES
from fleet.cli.runtime import CommandEnded, make_services, resolve_fleet, run_command
from fleet.errors import UsageError
from fleet.steps import Step


def exec_(
    ctx: typer.Context,
    command: Annotated[list[str] | None, argument("-- CMD", "Command to run.")] = None,
    worker: HostsOption = "all",
    fleet: Fleet = "",
    output: OutputOption = Output.AUTO,
) -> None:
    """Run a command on all hosts at the same time.

    Hosts with equal output share one prefix. Exits with the largest exit code of a host. Ctrl-C ends the command
    on all hosts.

    Examples:
      fleet exec -- nvidia-smi
      fleet exec --worker 0,2 -- df -h /
    """
    from fleet.commands.fleets import exec as verb

    words: tuple[str, ...] = ctx.meta.get(AFTER_DASHES, ())
    if command or not words:
        raise UsageError(
            f"unexpected argument {command[0]!r}" if command else "nothing to run",
            hint="the command goes after --",
            next_steps=[Step("exec", "--", *(command or ("hostname",)), *words)],
        )
    request = verb.ExecRequest(resolve_fleet(fleet), words, worker)
    codes: list[int] = []
    run_command(
        request.fleet,
        output,
        lambda sink: codes.append(verb.run(request, make_services(sink), sink)),
        prefix=worker == "all" or "," in worker,
        raw=True,
        live=False,
    )
    raise CommandEnded(codes[0])
