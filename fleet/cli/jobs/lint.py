"""`fleet lint`: find distributed-training bugs in the source of a script."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fleet.cli.application import command
from fleet.cli.options import OUTPUT, Output, argument, option
from fleet.cli.program import NO_ADAPT
from fleet.cli.runtime import session
from fleet.errors import UsageError
from fleet.steps import DEFAULT_FLEET, Again
from provision.quantities import counted
from train.agent.protocol.wording import join_names
from train.lint.finding import Finding, Severity
from train.lint.linter import lint as lint_sources
from train.script.entry import EntryPoint, find_entry
from train.script.source import check_script


def _find(script: str, workdir: str) -> EntryPoint:
    """Return the entry point, as `fleet train` runs it."""
    check_script(Path(script))
    if workdir and not Path(script).absolute().is_relative_to(Path(workdir).absolute()):
        raise UsageError(
            f"{script} is outside of the working directory {workdir}",
            hint="--workdir must contain the script",
            next_steps=[Again({"--workdir": None})],
        )
    return find_entry(script, "", (), workdir)


def _count_findings(findings: Sequence[Finding]) -> str:
    """Return ``2 errors, 1 warning and 3 hints``."""
    counts = Counter(finding.severity for finding in findings)
    return join_names([counted(counts[kind], kind.value) for kind in Severity if counts[kind]])


@command("Jobs")
def lint(
    script: str = argument(..., "SCRIPT", "Training script, e.g. task.py."),
    workdir: str = option("", "--workdir", "Directory that SCRIPT starts in.", "DIR", shown="its own"),
    workers: int = option(2, "--workers", "Number of workers to assume.", "N", short="-w", min=1),
    gpus: int | None = option(None, "--gpus", "GPUs per worker to assume.", "N", min=0),
    no_adapt: bool = NO_ADAPT,
    output: Output = OUTPUT,
) -> None:
    """Find distributed-training bugs in SCRIPT without running it.

    Reads SCRIPT and the local modules that it imports; executes nothing. Warnings and hints leave the exit code 0.

    Examples:
      fleet lint task.py
      fleet lint task.py --workers 4 --gpus 2
    """
    with session(DEFAULT_FLEET, output, live=False) as run:
        entry = _find(script, workdir)
        directory = entry.workdir if Path(script).is_absolute() else Path(os.path.relpath(entry.workdir))
        findings = lint_sources(entry.sources, workers=workers, gpus=gpus, adapt=not no_adapt)
        for finding in findings:
            run.emit(dataclasses.replace(finding, file=(directory / finding.file).as_posix()))
        errors = [finding for finding in findings if finding.severity is Severity.ERROR]
        if errors:
            raise UsageError(
                f"{script} has {_count_findings(findings)}",
                hint=f"fix the script, or suppress a finding with a comment: # fleet: ignore[{errors[0].rule}]",
                next_steps=[Again({})],
            )
        run.note(f"{script} has {_count_findings(findings)}" if findings else f"nothing found in {script}")
