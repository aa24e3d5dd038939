"""The command `fleet logs`: its options, and the request that they make."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from fleet.cli.options import (
    Fleet,
    JobArgument,
    Output,
    OutputOption,
    Raw,
    SameJob,
    Worker,
    one_job,
    option,
    parse_since,
)
from fleet.cli.runtime import make_services, resolve_fleet, run_command
from fleet.errors import UsageError
from fleet.steps import Step

_TASK = re.compile(r"[0-9]+|(chief|worker|ps|evaluator)-[0-9]+", re.ASCII)


def _parse_pattern(text: str) -> re.Pattern[str]:
    """Return a regular expression."""
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise typer.BadParameter(f"{text!r} is not a regular expression: {error}") from None


def logs(
    job: JobArgument = "",
    follow: Annotated[bool, option("--follow/--no-follow", "Follow until the job ends.", short="-f")] = False,
    lines: Annotated[
        int | None,
        option("--lines", "Show only the last N lines of the newest attempt.", "N", short="-n", min=0, default="all"),
    ] = None,
    since: Annotated[
        float | None,
        option(
            "--since",
            "Show only output since this time: a duration such as 10m, or a time such as 2026-11-22T19:30.",
            "TIME",
            parser=parse_since,
        ),
    ] = None,
    grep: Annotated[
        re.Pattern[str] | None,
        option("--grep", "Show only lines that match a regular expression.", "PATTERN", parser=_parse_pattern),
    ] = None,
    timestamps: Annotated[bool, option("--timestamps", "Show the time of each line, in UTC.", short="-t")] = False,
    raw: Raw = False,
    worker: Worker = "all",
    same_job: SameJob = "",
    fleet: Fleet = "",
    output: OutputOption = Output.AUTO,
) -> None:
    """Show the logs of a job.

    Shows the output of all workers in the order of time. The output of a single worker is not prefixed. Exits with
    the exit code of the job.

    Examples:
      fleet logs --follow
      fleet logs --lines 20 --grep loss
      fleet logs --since 10m --timestamps --worker 1
    """
    from fleet.commands.jobs import logs as verb
    from fleet.jobs.following.log_view import Selection

    if _TASK.fullmatch(job):
        raise UsageError(f"{job!r} is a task, not a job", next_steps=[Step("logs", "--worker", job), Step("jobs")])
    is_text = output is not Output.JSON  # JSON has times in a field, and startup messages
    selection = Selection(
        lines=lines,
        since=since or 0.0,
        pattern=grep,
        timestamps=timestamps and is_text,
        startup=raw or not is_text,
    )
    request = verb.LogsRequest(
        fleet=resolve_fleet(fleet), follow=follow, selection=selection, worker=worker, job=one_job(job, same_job)
    )
    run_command(
        request.fleet,
        output,
        lambda sink: verb.run(request, make_services(sink), sink),
        prefix=worker == "all",
        raw=raw,
        live=follow,
    )
