"""The command `fleet lint`: its options, and the request that they make."""

from __future__ import annotations

from typing import Annotated

from fleet.cli.options import Output, OutputOption, argument, option
from fleet.cli.program import NoAdapt
from fleet.cli.runtime import run_command
from fleet.config import DEFAULT_FLEET


def lint(
    script: Annotated[str, argument("SCRIPT", "Training script, e.g. task.py.")],
    workdir: Annotated[str, option("--workdir", "Directory that SCRIPT starts in.", "DIR", default="its own")] = "",
    workers: Annotated[int, option("--workers", "Number of workers to assume.", "N", short="-w", min=1)] = 2,
    gpus: Annotated[int | None, option("--gpus", "GPUs per worker to assume.", "N", min=0)] = None,
    no_adapt: NoAdapt = False,
    output: OutputOption = Output.AUTO,
) -> None:
    """Find distributed-training bugs in SCRIPT without running it.

    Reads SCRIPT and the local modules that it imports; executes nothing. Warnings and hints leave the exit code 0.

    Examples:
      fleet lint task.py
      fleet lint task.py --workers 4 --gpus 2
    """
    from fleet.commands.jobs import lint as verb

    request = verb.LintRequest(script=script, workdir=workdir, workers=workers, gpus=gpus, adapt=not no_adapt)
    run_command(DEFAULT_FLEET, output, lambda sink: verb.run(request, sink), live=False)
