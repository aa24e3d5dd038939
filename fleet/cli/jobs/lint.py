"""`fleet lint`: find distributed-training bugs in the source of a script."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fleet.cli.application import command
from fleet.cli.options import Output, OutputOption, argument, option
from fleet.cli.program import NoAdapt
from fleet.cli.runtime import run_command
from fleet.errors import UsageError, translate_errors
from fleet.events import Note, Sink
from fleet.steps import DEFAULT_FLEET, Again
from provision.quantities import counted
from train.agent.protocol.wording import join_names
from train.lint import linter
from train.lint.finding import Finding, Severity
from train.script.entry import EntryPoint, find_entry
from train.script.source import check_script


@dataclass(frozen=True)
class LintRequest:
    """Request of the command.

    Attributes:
        script: The training script.
        workdir: Directory that it would be started in; empty: its own.
        workers: Number of workers.
        gpus: GPUs of each worker; None: unset.
        adapt: `fleet train` adapts the interpreters; not with --no-adapt.
    """

    script: str
    workdir: str = ""
    workers: int = 2
    gpus: int | None = None
    adapt: bool = True


def run(request: LintRequest, sink: Sink) -> list[Finding]:
    """Read a script and the local modules that it imports; execute nothing.

    Returns:
        Warnings and hints, by files and lines; there are no errors.

    Raises:
        UsageError: the script cannot be read or does not compile, or something in it is an error.
    """
    entry = _find(request)
    workdir = entry.workdir if Path(request.script).is_absolute() else Path(os.path.relpath(entry.workdir))
    first, workers, gpus = next(iter(entry.texts)), request.workers, request.gpus
    findings = [
        dataclasses.replace(finding, file=(workdir / finding.file).as_posix())
        for finding in linter.lint(entry.texts, first, workers=workers, gpus=gpus, adapt=request.adapt)
    ]
    for finding in findings:
        sink.emit(finding)
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    if errors:
        raise UsageError(
            f"{request.script} has {_count_findings(findings)}",
            hint=f"fix the script, or suppress a finding with a comment: # fleet: ignore[{errors[0].rule}]",
            next_steps=[Again({})],
        )
    sink.emit(
        Note(
            f"{request.script} has {_count_findings(findings)}" if findings else f"nothing found in {request.script}"
        )
    )
    return findings


def _find(request: LintRequest) -> EntryPoint:
    """Return the entry point, as `fleet train` runs it."""
    script = Path(request.script)
    with translate_errors():
        check_script(script)
    if request.workdir and not script.absolute().is_relative_to(Path(request.workdir).absolute()):
        raise UsageError(
            f"{request.script} is outside of the working directory {request.workdir}",
            hint="--workdir must contain the script",
            next_steps=[Again({"--workdir": None})],
        )
    with translate_errors():
        return find_entry(request.script, "", (), request.workdir)


def _count_findings(findings: Sequence[Finding]) -> str:
    """Return ``2 errors, 1 warning and 3 hints``."""
    counts = Counter(finding.severity for finding in findings)
    return join_names([counted(counts[kind], kind.value) for kind in Severity if counts[kind]])


@command("Jobs")
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
    request = LintRequest(script=script, workdir=workdir, workers=workers, gpus=gpus, adapt=not no_adapt)
    run_command(DEFAULT_FLEET, output, lambda sink: run(request, sink), live=False)
