"""The command `fleet report`: its options, and the request that they make."""

from __future__ import annotations

from typing import Annotated

from fleet.cli.again import split_train
from fleet.cli.options import Fleet, JobArgument, Output, OutputOption, SameJob, one_job, option
from fleet.cli.runtime import make_services, resolve_fleet, run_command


def report(
    job: JobArgument = "",
    to: Annotated[str, option("--to", "File of the page.", "FILE", default="JOB.html")] = "",
    directory: Annotated[
        str, option("--dir", "Describe the results that fleet pull copied to this directory.", "DIR")
    ] = "",
    capsule: Annotated[
        bool, option("--capsule/--no-capsule", "Write a capsule, from which fleet train repeats the job.")
    ] = True,
    same_job: SameJob = "",
    fleet: Fleet = "",
    output: OutputOption = Output.AUTO,
) -> None:
    """Write a page about a job, and a capsule that repeats it.

    The page is one HTML file that works without a network: metrics, step time, and use of resources by worker,
    attempts and faults, the cause of a failure, TF_CONFIG, versions, and costs. The capsule has the command, the
    uploaded files, and the logs; fleet train --from-capsule repeats the job.

    Examples:
      fleet report
      fleet report baseline --to baseline.html
      fleet report --dir results/baseline
    """
    from fleet.commands.jobs import report as verb

    request = verb.ReportRequest(
        fleet=resolve_fleet(fleet),
        job=one_job(job, same_job),
        to=to,
        directory=directory,
        split=split_train if capsule else None,
    )
    run_command(request.fleet, output, lambda sink: verb.run(request, make_services(sink), sink), live=False)
