"""`fleet compare`: what differs between two jobs, and what came of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fleet.cli.application import WithJobs, command
from fleet.cli.options import JOB_HELP, Fleet, Output, OutputOption, argument
from fleet.cli.runtime import make_services, resolve_fleet, run_command
from fleet.errors import UsageError
from fleet.events import JobsCompared, Sink
from fleet.fleets.access import Access
from fleet.fleets.agents import open_some
from fleet.jobs.results import survey_agents
from fleet.jobs.selection import is_id
from fleet.services import Services
from fleet.steps import Step


@dataclass(frozen=True)
class CompareRequest:
    """Request of the command; the jobs as in `select_job`."""

    fleet: str
    first: str
    second: str


def run(request: CompareRequest, services: Services, sink: Sink) -> JobsCompared:
    """Compare two jobs.

    Raises:
        NotFoundError: the fleet or job does not exist.
        UsageError: several jobs are meant, or both are the same.
        UnreachableError: no host answers.
    """
    directory, record = services.store.need(request.fleet)
    references = [request.first, request.second]
    with open_some(record.hosts, directory.key, Access(record.spec, services, sink)) as (clients, unreached):
        stored = survey_agents(clients, directory, references if all(map(is_id, references)) else (), unreached)
    first, second = (stored.select(reference, request.fleet) for reference in references)
    if first.job == second.job:
        raise UsageError(f"both are job {first.job}", next_steps=[Step("jobs")])
    compared = JobsCompared(request.fleet, first.summary(), second.summary())
    sink.emit(compared)
    return compared


@command("Results", WithJobs)
def compare(
    first: Annotated[str, argument("JOB", JOB_HELP)],
    second: Annotated[str, argument("JOB", "The other job.")],
    fleet: Fleet = "",
    output: OutputOption = Output.AUTO,
) -> None:
    """Compare two jobs: arguments, code, versions, metrics.

    Marks lines that differ with an asterisk.

    Examples:
      fleet compare -2 -1
      fleet compare baseline wide -o json
    """
    request = CompareRequest(fleet=resolve_fleet(fleet), first=first, second=second)
    run_command(request.fleet, output, lambda sink: run(request, make_services(sink), sink), live=False)
