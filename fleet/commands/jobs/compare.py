"""`fleet compare`: what differs between two jobs, and what came of each."""

from __future__ import annotations

from dataclasses import dataclass

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
