"""The command `fleet lint`: its options, and the request that they make."""

from __future__ import annotations

from typing import Annotated

import typer

from fleet.cli.options import Output, OutputOption
from fleet.cli.program import NoAdapt
from fleet.cli.runtime import run_command
from fleet.config import DEFAULT_FLEET


def lint(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="Training script, e.g. task.py.")],
    workdir: Annotated[
        str, typer.Option("--workdir", metavar="DIR", help="Directory that SCRIPT starts in.  [default: its own]")
    ] = "",
    workers: Annotated[
        int, typer.Option("--workers", "-w", metavar="N", min=1, help="Number of workers to assume.")
    ] = 2,
    gpus: Annotated[
        int | None, typer.Option("--gpus", metavar="N", min=0, help="GPUs per worker to assume.", show_default=False)
    ] = None,
    no_adapt: NoAdapt = False,
    output: OutputOption = Output.AUTO,
) -> None:
    """Find distributed-training bugs in SCRIPT without running it.

    Reads SCRIPT and the local modules that it imports; executes nothing. Warnings and hints leave the exit code 0.
    """
    from fleet.commands.jobs import lint as verb

    request = verb.LintRequest(script=script, workdir=workdir, workers=workers, gpus=gpus, adapt=not no_adapt)
    run_command(DEFAULT_FLEET, output, lambda sink: verb.run(request, sink), live=False)
