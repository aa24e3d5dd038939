"""The command `fleet stop`: its options, and the request that they make."""

from __future__ import annotations

from fleet.cli.options import Duration, Fleet, Grace, JobArgument, Output, OutputOption, SameJob, one_job
from fleet.cli.runtime import make_services, resolve_fleet, run_command
from train.agent.protocol.records import GRACE_S


def stop(
    job: JobArgument = "",
    grace: Grace = Duration(GRACE_S),
    same_job: SameJob = "",
    fleet: Fleet = "",
    output: OutputOption = Output.AUTO,
) -> None:
    """Stop the running job; keep the fleet.

    Examples:
      fleet stop
      fleet stop --grace 60s
    """
    from fleet.commands.jobs import stop as verb

    request = verb.StopRequest(fleet=resolve_fleet(fleet), job=one_job(job, same_job), grace_s=grace)
    run_command(request.fleet, output, lambda sink: verb.run(request, make_services(sink), sink))
